"""What is refused before a rank starts: teachers that cannot teach this student on this dataset."""

import json
from dataclasses import replace

import numpy as np
import pytest

from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.conversation.vocabulary import vocabulary_of
from megapack.errors import ConfigError, StoreError
from megapack.jobs.distill import Distillation, DistillRequest, DistillSettings, TeacherRequest
from megapack.jobs.train import TrainJob
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.steps.distill.check import check_distillation, check_vocabulary
from megapack.steps.distill.resolve import resolve_distillation, resolve_teacher
from megapack.steps.distill.teachers import open_teachers
from megapack.steps.train import check_train_job
from megapack.store.location import open_location
from megapack.store.payload_vocabulary import write_vocabulary
from megapack.store.versions import read_version
from tests.support.payloads import commit_payloads, payloads_of, topk_payloads
from tests.support.rows import VOCAB
from tests.support.tiny_dataset import make_dataset, make_rows, train_job
from tests.support.toy_tokenizers import words_tokenizer

TRAIN, VALIDATION = make_rows(4, seed=1), make_rows(3, seed=2)


def from_source(rows, name):
    return [
        PackedRow(
            tokens=row.tokens,
            target_runs=row.target_runs,
            layout=row.layout,
            document_ids=row.document_ids,
            sources=(name,) * len(row.document_ids),
        )
        for row in rows
    ]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    train = [*from_source(TRAIN[:2], "chat"), *from_source(TRAIN[2:], "code")]
    return make_dataset(folder, train, from_source(VALIDATION, "chat"))


def teacher(folder, payloads, *, name="teacher", sources=None, vocabulary=None, **info):
    commit_payloads(folder / name, payloads, **info)
    return resolve_teacher(
        TeacherRequest(payload=str(folder / name), sources=sources, vocabulary=vocabulary)
    )


def job_of(dataset, folder, *teachers, evaluation_rows=3, **loss) -> TrainJob:
    plain = train_job(dataset, folder / "out", evaluation_rows=evaluation_rows)
    distill = Distillation(settings=DistillSettings(**loss), teachers=teachers)
    return plain.model_copy(update={"distill": distill})


def check(job):
    check_distillation(job, read_version(job.dataset.uri, job.dataset.version))


ALL = topk_payloads([*TRAIN, *VALIDATION])


def test_one_payload_for_each_document_is_taken(dataset, tmp_path):
    job = job_of(dataset, tmp_path, teacher(tmp_path, ALL))
    check(job)
    check_train_job(job)


def test_documents_without_a_payload_are_counted(dataset, tmp_path):
    job = job_of(dataset, tmp_path, teacher(tmp_path, ALL[2:]))
    first, second = (one.document_id for one in ALL[:2])
    message = rf"2 of {len(ALL)} documents have no payload, the first {first}, {second}\. Extract"
    with pytest.raises(ConfigError, match=message):
        check_train_job(job)


def test_only_the_validation_rows_that_are_read_need_payloads(dataset, tmp_path):
    some = topk_payloads([*TRAIN, *VALIDATION[:2]])
    one = teacher(tmp_path, some)
    check(job_of(dataset, tmp_path, one, evaluation_rows=2))
    missing = len(VALIDATION[2].document_ids)
    with pytest.raises(ConfigError, match=f"{missing} of {len(ALL)} documents have no payload"):
        check(job_of(dataset, tmp_path, one, evaluation_rows=3))


def test_a_document_of_two_teachers_is_refused_unless_sources_say_whose_it_is(dataset, tmp_path):
    one, other = teacher(tmp_path, ALL), teacher(tmp_path, ALL, name="other")
    with pytest.raises(ConfigError, match=f"{len(ALL)} of {len(ALL)} documents have payloads of s"):
        check(job_of(dataset, tmp_path, one, other))
    check(
        job_of(
            dataset,
            tmp_path,
            one.model_copy(update={"sources": ("chat",)}),
            other.model_copy(update={"sources": ("code",)}),
        )
    )
    with pytest.raises(ConfigError, match="documents have no payload"):
        check(job_of(dataset, tmp_path, one.model_copy(update={"sources": ("chat",)})))


def test_a_source_that_no_document_has_is_refused(dataset, tmp_path):
    """Another teacher may hold all documents, so that none is missing."""
    one, other = teacher(tmp_path, ALL), teacher(tmp_path, ALL, name="other")
    misspelt = one.model_copy(update={"sources": ("cdoe",)})
    with pytest.raises(ConfigError, match=r"read.* \(chat, code\), found cdoe\. Mend") as caught:
        check(job_of(dataset, tmp_path, misspelt, other))
    assert one.payload.uri in str(caught.value)
    with pytest.raises(ConfigError, match=r"found cdoe\. Mend"):
        check(job_of(dataset, tmp_path, misspelt))


def test_a_teacher_of_no_document_is_refused(dataset, tmp_path):
    foreign = teacher(tmp_path, topk_payloads(make_rows(1, seed=9)), name="other")
    with pytest.raises(ConfigError, match=f"/other version 1: .* none of its {len(ALL)}. Leave"):
        check(job_of(dataset, tmp_path, teacher(tmp_path, ALL), foreign))


def test_two_teachers_with_documents_of_their_own_need_no_sources(dataset, tmp_path):
    one = teacher(tmp_path, ALL[::2])
    check(job_of(dataset, tmp_path, one, teacher(tmp_path, ALL[1::2], name="other")))


def test_documents_that_were_cut_otherwise_are_counted(dataset, tmp_path):
    shorter = ALL[3]
    cut = replace(
        shorter,
        values=shorter.values[:-1],
        indices=shorter.indices[:-1],
        tail_logprobs=shorter.tail_logprobs[:-1],
        target_logprobs=shorter.target_logprobs[:-1],
    )
    masked = replace(ALL[5], labels_digest=ALL[5].labels_digest ^ 1)
    made = [cut if one is shorter else masked if one is ALL[5] else one for one in ALL]
    m = shorter.num_positions
    message = (
        rf"2 of {len(ALL)} documents have other positions or labels than their payload, the first "
        rf"{shorter.document_id} \({m} positions here, {m - 1} in the payload\)"
    )
    with pytest.raises(ConfigError, match=message):
        check(job_of(dataset, tmp_path, teacher(tmp_path, made)))


def test_settings_that_a_payload_does_not_serve_are_refused(dataset, tmp_path):
    one = teacher(tmp_path, ALL, temperature=2.0)
    with pytest.raises(ConfigError, match=r"temperature = 1\.0, expected that of the top-k"):
        check(job_of(dataset, tmp_path, one, temperature=1.0))
    check(job_of(dataset, tmp_path, one, temperature=2.0))
    with pytest.raises(ConfigError, match="expected a payload of kind hidden, found topk"):
        check(job_of(dataset, tmp_path, one, kind=PayloadKind.HIDDEN))
    halves = teacher(tmp_path, ALL[::2], name="a"), teacher(tmp_path, ALL[1::2], name="b")
    warm = teacher(tmp_path, ALL[1::2], name="c", temperature=2.0)
    with pytest.raises(ConfigError, match=r"payloads of one temperature, found .*a version 1: 1\."):
        check(job_of(dataset, tmp_path, halves[0], warm))
    half = [replace(o, dtype=PayloadDtype.FP16, values=o.values.astype("<f2")) for o in ALL[1::2]]
    with pytest.raises(ConfigError, match=r"of one dtype, found .*fp32.*fp16"):
        check(job_of(dataset, tmp_path, halves[0], teacher(tmp_path, half, name="d")))


def test_hidden_states_without_an_lm_head_are_refused(dataset, tmp_path):
    hidden = payloads_of(
        [*TRAIN, *VALIDATION],
        PayloadKind.HIDDEN,
        PayloadDtype.FP32,
        lambda tokens: {"values": np.zeros((tokens.size, 8), "<f4")},
    )
    one = teacher(tmp_path, hidden)
    with pytest.raises(ConfigError, match="LM head"):
        check(job_of(dataset, tmp_path, one, kind=PayloadKind.HIDDEN))


def in_other_ids(rows):
    """Rows of the same documents in a vocabulary where id v is called VOCAB - v."""
    return [
        PackedRow(
            tokens=VOCAB - row.tokens,
            target_runs=row.target_runs,
            layout=row.layout,
            document_ids=row.document_ids,
        )
        for row in rows
    ]


def test_a_stated_vocabulary_map_is_held_against_the_documents(dataset, tmp_path):
    payloads = topk_payloads(in_other_ids([*TRAIN, *VALIDATION]), vocab=VOCAB + 1)
    pairs = [[own, VOCAB - own] for own in range(VOCAB)]

    def mapped(name, pairs):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(pairs))
        return teacher(
            tmp_path,
            payloads,
            name=name,
            vocabulary=str(file),
            vocab_size=VOCAB + 1,
            tokenizer_digest="another",
        )

    right = mapped("right", pairs)
    check(job_of(dataset, tmp_path, right))
    with pytest.raises(ConfigError, match="documents have tokens that the vocabulary map leaves"):
        check(job_of(dataset, tmp_path, mapped("gap", pairs[:-9])))
    swapped = [[0, VOCAB - 1], [1, VOCAB], *pairs[2:]]
    with pytest.raises(ConfigError, match="documents have other positions or labels"):
        check(job_of(dataset, tmp_path, mapped("swapped", swapped)))
    (tmp_path / "right.json").write_text(json.dumps(swapped))
    with pytest.raises(ConfigError, match="the file was changed"):
        check(job_of(dataset, tmp_path, right))


def test_a_payload_of_another_tokenizer_whose_map_cannot_be_compared_is_refused(dataset, tmp_path):
    one = teacher(tmp_path, ALL, tokenizer_digest="another")
    with pytest.raises(ConfigError, match="no tokenizer is recorded"):
        check(job_of(dataset, tmp_path, one))


def test_a_request_is_resolved_to_what_stands_there(dataset, tmp_path):
    commit_payloads(tmp_path / "teacher", ALL)
    commit_payloads(tmp_path / "teacher", ALL, temperature=2.0)
    settings = train_job(dataset, tmp_path).settings
    store = str(tmp_path / "store")
    asked = DistillRequest(
        dataset=dataset.uri,
        teachers=(TeacherRequest(payload=str(tmp_path / "teacher")),),
        store=store,
    )
    job = resolve_distillation(asked, settings)
    assert job.dataset == dataset
    assert job.distill.teachers[0].payload.version == 2
    assert job.output.startswith(f"{store}/checkpoints/")
    first = asked.model_copy(
        update={"teachers": (TeacherRequest(payload=str(tmp_path / "teacher"), version=1),)}
    )
    assert resolve_distillation(first, settings).output != job.output
    gone = job.distill.teachers[0].model_copy(
        update={"payload": job.distill.teachers[0].payload.model_copy(update={"digest": "0" * 64})}
    )
    with pytest.raises(StoreError, match="replaced"):
        check(job_of(dataset, tmp_path, gone))


@pytest.fixture
def tokenizers(tmp_path):
    """Folder of a tokenizer by the words that it knows."""

    def saved(name, words):
        folder = tmp_path / name
        folder.mkdir()
        words_tokenizer(words).save(str(folder / "tokenizer.json"))
        return read_tokenizer_files(str(folder))

    return saved


def with_tokenizer(dataset, files):
    """The dataset as if it was packed with these files."""
    found = read_version(dataset.uri, dataset.version)
    packed = found.manifest.packed_info().model_copy(update={"tokenizer_digest": files.digest})
    changes = {"settings": {"tokenizer": files.uri}, "packed": packed}
    return replace(found, manifest=found.manifest.model_copy(update=changes))


def test_token_to_id_maps_are_compared_and_the_first_differences_told(
    dataset, tokenizers, tmp_path
):
    student, other = tokenizers("student", "red green blue"), tokenizers("other", "red blue green")
    source = with_tokenizer(dataset, student)

    def check_against(files, name, digest="another"):
        published = write_vocabulary(open_location(tmp_path / name), vocabulary_of(files))
        made = teacher(tmp_path, ALL, name=name, files=[published], tokenizer_digest=digest)
        (opened,) = open_teachers(Distillation(teachers=(made,)), vocab_size=VOCAB)
        check_vocabulary(opened, source)

    check_against(student, "equal")
    message = r"another: 2 tokens differ, first 'green': expected 9, found 10; 'blue': expected 10"
    with pytest.raises(ConfigError, match=message):
        check_against(other, "differs")
    check_against(other, "trusted", digest=student.digest)
    (tmp_path / "student" / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has changed since .* cannot be compared"):
        check_against(student, "changed")
