import json
import logging
import shutil

import pytest

from megapack.errors import ConfigError
from megapack.jobs.extract import ExtractRequest
from megapack.records.refs import CheckpointRef, FolderRef
from megapack.steps.extraction.request import resolve_extraction
from megapack.steps.extraction.vocabulary import check_folder_vocabulary, dataset_vocabulary
from megapack.steps.hugging_face.folder import open_folder
from megapack.steps.prepare import prepare
from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.versions import commit, read_version
from tests.support.hf_folder import write_folder
from tests.support.prepare_jobs import WORDS, plain_line, prepare_job
from tests.support.tiny_dataset import MODEL, layout, make_dataset, make_rows, train_job
from tests.support.toy_tokenizers import save_tokenizer, words_tokenizer


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("data"), make_rows(3, seed=1))


def request_of(dataset, teacher, store, **changes):
    fields = {"extract": {"payload": {"top_k": 4}}, **changes}
    return ExtractRequest(dataset=dataset.uri, teacher=str(teacher), store=str(store), **fields)


def commit_training(dataset, uri, *, steps=1):
    """Checkpoints of one run, as far as a request looks at them."""
    job = train_job(dataset, uri)
    refs = []
    for step in range(1, steps + 1):
        contents = Contents(
            schema_id="megapack.checkpoint/1",
            kind="checkpoint",
            parts=(),
            counts={"step": step, "consumed_rows": 4 * step},
            settings={"job": job.model_dump(mode="json"), "packed": {}},
        )
        refs.append(commit(open_location(uri), contents.manifest()).checkpoint_ref())
    return refs


def test_a_training_run_is_a_teacher_by_its_newest_checkpoint_or_by_number(dataset, tmp_path):
    refs = commit_training(dataset, tmp_path / "run", steps=2)
    job = resolve_extraction(request_of(dataset, tmp_path / "run", tmp_path / "out"))
    assert (job.checkpoint, job.model, job.dataset) == (refs[1], MODEL, dataset)
    assert job.output.startswith(f"{tmp_path / 'out'}/payloads/")
    first = resolve_extraction(
        request_of(dataset, tmp_path / "run", tmp_path / "out", teacher_version=1)
    )
    assert first.checkpoint == refs[0]
    assert first.output != job.output


def test_a_store_with_one_training_run_is_a_teacher(dataset, tmp_path):
    (ref,) = commit_training(dataset, tmp_path / "store" / "checkpoints" / "a")
    job = resolve_extraction(request_of(dataset, tmp_path / "store", tmp_path / "store"))
    assert isinstance(job.checkpoint, CheckpointRef)
    assert job.checkpoint == ref
    commit_training(dataset, tmp_path / "store" / "checkpoints" / "b")
    with pytest.raises(ConfigError, match=r"found 2 under checkpoints/\. Name one: .*/a, .*/b"):
        resolve_extraction(request_of(dataset, tmp_path / "store", tmp_path / "store"))


def test_a_model_folder_is_a_teacher_without_versions(dataset, tmp_path):
    folder = write_folder(tmp_path / "teacher")
    job = resolve_extraction(request_of(dataset, folder, tmp_path / "out"))
    assert job.checkpoint == FolderRef(uri=str(folder), digest=open_folder(str(folder)).digest())
    assert job.model.vocab_size == 107
    with pytest.raises(ConfigError, match=r"teacher_version = 3: expected none"):
        resolve_extraction(request_of(dataset, folder, tmp_path / "out", teacher_version=3))


@pytest.mark.parametrize("what", ["dataset", "nothing"])
def test_what_is_no_teacher_is_refused(dataset, tmp_path, what):
    uri = dataset.uri if what == "dataset" else tmp_path / "nowhere"
    message = "found kind 'dataset'" if what == "dataset" else "found no version at all"
    with pytest.raises(ConfigError, match=message):
        resolve_extraction(request_of(dataset, uri, tmp_path / "out"))


def test_a_layout_that_does_not_fit_the_teacher_is_refused(dataset, tmp_path):
    commit_training(dataset, tmp_path / "run")
    extract = {"payload": {"top_k": 4}, "parallel": layout(tp=3)}
    with pytest.raises(ConfigError, match="the extraction is wrong:"):
        resolve_extraction(request_of(dataset, tmp_path / "run", tmp_path / "out", extract=extract))


@pytest.fixture
def worded(tmp_path):
    """A dataset made with a tokenizer that can be read."""
    (tmp_path / "chats.jsonl").write_text("".join(f"{plain_line(n)}\n" for n in range(40)))
    return prepare(prepare_job(tmp_path, tmp_path / "chats.jsonl")).dataset


def manifest_of(ref):
    return read_version(ref.uri).manifest


def test_vocabulary_of_a_dataset_is_that_of_its_tokenizer(worded, tmp_path, caplog):
    found = dataset_vocabulary(manifest_of(worded))
    assert found["w0"] == 8
    assert list(found.values()) == sorted(found.values())
    file = tmp_path / "tokenizer" / "tokenizer.json"
    file.write_text(file.read_text().replace("w49", "w94"))
    with caplog.at_level(logging.WARNING):
        assert dataset_vocabulary(manifest_of(worded)) is None
    assert "has changed since the data was made" in caplog.text
    shutil.rmtree(file.parent)
    assert dataset_vocabulary(manifest_of(worded)) is None


def test_teacher_whose_tokenizer_maps_tokens_to_other_ids_is_refused(worded, tmp_path):
    manifest = manifest_of(worded)
    folder = tmp_path / "teacher"
    folder.mkdir()
    check_folder_vocabulary(manifest, folder)
    # Another template is another digest, and the same ids.
    save_tokenizer(words_tokenizer(WORDS), folder)
    check_folder_vocabulary(manifest, folder)
    swapped = WORDS.replace("w3 w4", "w4 w3")
    save_tokenizer(words_tokenizer(f"{swapped} more"), folder)
    with pytest.raises(ConfigError) as caught:
        check_folder_vocabulary(manifest, folder)
    assert (
        "3 tokens differ, first 'w3': expected 11, found 12; 'w4': expected 12, found 11; 'more': "
        "expected no such token, found 58"
    ) in str(caught.value)


def test_teacher_is_not_compared_where_the_datasets_tokenizer_is_gone(worded, tmp_path, caplog):
    folder = tmp_path / "teacher"
    save_tokenizer(words_tokenizer("another"), folder)
    shutil.rmtree(tmp_path / "tokenizer")
    with caplog.at_level(logging.WARNING):
        check_folder_vocabulary(manifest_of(worded), folder)
    assert "was not compared" in caplog.text


def test_a_request_is_a_file_that_people_and_flows_share(dataset, tmp_path):
    request = request_of(dataset, tmp_path / "run", tmp_path / "out", teacher_version=2)
    request.save(tmp_path / "job.json")
    assert ExtractRequest.load(tmp_path / "job.json") == request
    assert set(json.loads((tmp_path / "job.json").read_text())) == {
        "dataset",
        "dataset_version",
        "teacher",
        "teacher_version",
        "extract",
        "store",
    }
