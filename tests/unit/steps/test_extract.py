import pytest

from megapack.errors import ConfigError
from megapack.jobs.addresses import extract_address, train_address
from megapack.jobs.extract import PayloadChoice
from megapack.jobs.model import BackendName
from megapack.records.payload import PayloadDtype
from megapack.records.refs import FolderRef
from megapack.steps.extract import extract
from megapack.steps.hugging_face.folder import open_folder
from megapack.steps.launch import backend
from megapack.steps.prepare import prepare
from megapack.store.files import upload_files
from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.versions import commit, read_version
from tests.support.hf_folder import write_folder
from tests.support.prepare_jobs import plain_line, prepare_job
from tests.support.tiny_dataset import extract_job, layout, make_dataset, make_rows, train_job
from tests.support.toy_tokenizers import save_tokenizer, words_tokenizer


def never(command, *, on_line, on_metric):
    raise AssertionError(f"started {command.module} {command.arguments[0]}")


def run(job):
    return extract(job, on_line=lambda *_: None, on_metric=lambda _: None, launcher=never)


@pytest.fixture
def dataset(tmp_path):
    return make_dataset(tmp_path / "data", make_rows(3, seed=1))


@pytest.fixture
def teacher(dataset, tmp_path):
    """A committed checkpoint as far as an extraction looks at it before it starts."""
    return commit_teacher(dataset, tmp_path, packed={})


def commit_teacher(dataset, folder, *, packed):
    job = train_job(dataset, folder / "teacher")
    (folder / "files").mkdir(exist_ok=True)
    (folder / "files" / "shard").write_bytes(b"weights")
    info = read_version(dataset.uri).manifest.packed.model_dump(mode="json")
    location = open_location(job.output)
    contents = Contents(
        schema_id="megapack.checkpoint/1",
        kind="checkpoint",
        parts=upload_files(location, folder / "files"),
        address=train_address(job),
        counts={"step": 6, "consumed_rows": 24},
        settings={"job": job.model_dump(mode="json"), "packed": info | packed},
    )
    return commit(location, contents.manifest()).checkpoint_ref()


def test_extract_starts_when_all_fits(dataset, teacher, tmp_path):
    with pytest.raises(AssertionError, match=r"started megapack\.engine\.worker extract"):
        run(extract_job(dataset, teacher, tmp_path / "out"))


def test_extract_refuses_te_without_its_package_before_it_starts_ranks_here(
    dataset, teacher, tmp_path, monkeypatch
):
    monkeypatch.setattr(backend, "find_spec", lambda _: None)
    job = extract_job(dataset, teacher, tmp_path / "out", backend=BackendName.TE)
    with pytest.raises(ConfigError, match=r"^backend = te: expected .*transformer_engine, found"):
        extract(job, on_line=lambda *_: None, on_metric=lambda _: None)


def test_extract_returns_a_committed_payload_without_starting_anything(dataset, teacher, tmp_path):
    job = extract_job(dataset, teacher, tmp_path / "out")
    contents = Contents(
        schema_id="megapack.teacher_payload/2",
        kind="payload",
        parts=(),
        address=extract_address(job),
        counts={"num_documents": 0, "num_positions": 0},
    )
    committed = commit(job.output, contents.manifest())
    assert run(job) == committed.payload_ref(reused=True)


def test_extract_refuses_multiples_that_do_not_serve_the_layout(dataset, teacher, tmp_path):
    with pytest.raises(ConfigError, match=r"needs multiples of 16 \(segment\)"):
        run(extract_job(dataset, teacher, tmp_path / "out", parallel=layout(cp=8)))


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        ({"vocab_size": 102}, r"trained with vocab_size = 102, the dataset .* has 101"),
        ({"tokenizer_digest": "other"}, r"trained with tokenizer_digest = other.*has tiny"),
    ],
)
def test_extract_refuses_a_teacher_with_another_vocabulary(dataset, tmp_path, packed, message):
    teacher = commit_teacher(dataset, tmp_path, packed=packed)
    with pytest.raises(ConfigError, match=message):
        run(extract_job(dataset, teacher, tmp_path / "out"))


def test_extract_refuses_another_model_than_was_trained(dataset, teacher, tmp_path):
    job = extract_job(dataset, teacher, tmp_path / "out")
    other = job.model.model_copy(update={"num_layers": 3})
    with pytest.raises(ConfigError, match=r"model.num_layers = 3, the teacher was trained with 2"):
        run(job.model_copy(update={"model": other}))


def test_extract_refuses_a_version_that_is_no_checkpoint(dataset, teacher, tmp_path):
    wrong = teacher.model_copy(
        update={"uri": dataset.uri, "version": dataset.version, "digest": dataset.digest}
    )
    with pytest.raises(ConfigError, match="expected a checkpoint, found kind 'dataset'"):
        run(extract_job(dataset, wrong, tmp_path / "out"))


def test_extract_address_changes_with_what_is_stored_and_not_with_layout_or_limits(
    dataset, teacher, tmp_path
):
    address = extract_address(extract_job(dataset, teacher, tmp_path / "a"))
    again = extract_job(dataset, teacher, tmp_path / "b", parallel=layout(cp=2))
    assert address == extract_address(again)
    limits = extract_job(dataset, teacher, tmp_path / "b", max_bytes=10, tokens_per_chunk=3)
    assert address == extract_address(limits)
    half = PayloadChoice(top_k=None, hidden=PayloadDtype.FP16)
    for change in ({"payload": half}, {"shard_rows": 2}, {"temperature": 2.0}):
        assert address != extract_address(extract_job(dataset, teacher, tmp_path / "a", **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_bytes": 1000}, r"max_bytes = 1,000 bytes, expected at least the [\d,]+ or so that"),
        ({"payload": PayloadChoice(top_k=102)}, r"top_k = 102, expected at most .* of 101"),
        ({"sources": ("chat",)}, r"has no rows of chat among those chosen"),
    ],
)
def test_extract_refuses_before_it_starts_what_could_not_be_stored(
    dataset, teacher, tmp_path, change, message
):
    with pytest.raises(ConfigError, match=message):
        run(extract_job(dataset, teacher, tmp_path / "out", **change))


def test_extract_refuses_a_folder_whose_tokenizer_gives_other_ids(tmp_path):
    """The check of the step; `test_request` has its cases."""
    (tmp_path / "chats.jsonl").write_text("".join(f"{plain_line(n)}\n" for n in range(20)))
    dataset = prepare(prepare_job(tmp_path, tmp_path / "chats.jsonl")).dataset
    folder = write_folder(tmp_path / "hf")
    save_tokenizer(words_tokenizer("other words"), folder)
    ref = FolderRef(uri=str(folder), digest=open_folder(str(folder)).digest())
    model = open_folder(str(folder)).model
    job = extract_job(dataset, ref, tmp_path / "out").model_copy(update={"model": model})
    with pytest.raises(ConfigError, match="tokens differ, first 'other': expected no such"):
        run(job)


def test_extract_refuses_a_dataset_without_rows(dataset, teacher, tmp_path):
    packed = read_version(dataset.uri).manifest.packed
    contents = Contents(
        schema_id="megapack.packed_rows/2",
        kind="dataset",
        parts=(),
        counts={"num_rows": 0, "num_real_tokens": 0, "num_target_tokens": 0},
        packed=packed,
    )
    empty = commit(tmp_path / "empty", contents.manifest()).dataset_ref()
    with pytest.raises(ConfigError, match="expected rows, found none"):
        run(extract_job(empty, teacher, tmp_path / "out"))
