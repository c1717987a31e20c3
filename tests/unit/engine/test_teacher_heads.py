"""Rows of a teacher's LM head in the column order of a student's tensor parallel rank."""

import json

import numpy as np
import pytest
import torch

from megapack.engine.teacher_heads import lm_head_rows, teacher_columns
from megapack.jobs.distill import Distillation, TeacherRequest
from megapack.layout.granularity import ParallelSizes
from megapack.parallel.context import ParallelContext
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.steps.distill.resolve import resolve_teacher
from megapack.steps.distill.teachers import open_teachers
from megapack.store import lm_head as store
from megapack.store.lm_head import lm_head_info, write_lm_head
from megapack.store.location import open_location
from tests.support.payloads import commit_payloads, payloads_of
from tests.support.tiny_dataset import make_rows

STUDENT, TEACHER, WIDTH = 25, 21, 3
COLUMNS = 16  # of each of two ranks


@pytest.fixture(scope="module")
def head():
    """Raw bfloat16 rows; all rows differ."""
    return np.arange(0x3F80, 0x3F80 + TEACHER * WIDTH, dtype="<u2").reshape(TEACHER, WIDTH)


@pytest.fixture
def teacher(tmp_path, monkeypatch, head):
    """One with an LM head in files of four rows."""
    monkeypatch.setattr(store, "SHARD_ROWS", 4)
    monkeypatch.setattr("megapack.engine.teacher_heads.SHARD_ROWS", 4)
    hidden = payloads_of(
        make_rows(1, seed=1),
        PayloadKind.HIDDEN,
        PayloadDtype.BF16,
        lambda tokens: {"values": np.zeros((tokens.size, WIDTH), "<u2")},
    )
    parts = write_lm_head(open_location(tmp_path / "payload"), [head], PayloadDtype.BF16)
    commit_payloads(
        tmp_path / "payload",
        hidden,
        files=parts,
        vocab_size=TEACHER,
        lm_heads={0: lm_head_info(parts, PayloadDtype.BF16)},
    )

    def opened(pairs=None):
        file = tmp_path / "map.json"
        file.write_text(json.dumps(pairs))
        request = TeacherRequest(
            payload=str(tmp_path / "payload"), vocabulary=None if pairs is None else str(file)
        )
        distill = Distillation(teachers=(resolve_teacher(request),))
        return open_teachers(distill, vocab_size=STUDENT)

    return opened


def columns_of(teachers, tp_rank):
    context = ParallelContext.fake(ParallelSizes(tp=2), tp_rank=tp_rank)
    (found,) = teacher_columns(teachers, kind=PayloadKind.HIDDEN, columns=COLUMNS, context=context)
    return found.column_of.numpy(), found.weight


@pytest.mark.parametrize("pairs", [None, [[0, 20], [24, 0], [3, 7], [17, 8], [16, 1]]])
def test_each_rank_has_the_rows_of_its_columns(teacher, head, pairs):
    teacher_of = dict(pairs) if pairs else {one: one for one in range(TEACHER)}
    for rank in (0, 1):
        column_of, weight = columns_of(teacher(pairs), rank)
        ids = range(rank * COLUMNS, (rank + 1) * COLUMNS)
        assert column_of.tolist() == [teacher_of.get(one, -1) for one in ids]
        assert weight.dtype == torch.bfloat16
        raw = weight.view(torch.uint16).numpy()
        for row, of in zip(raw, column_of, strict=True):
            assert np.array_equal(row, head[of] if of >= 0 else np.zeros(WIDTH))


def test_each_file_is_read_once_and_only_those_of_the_rank(teacher, monkeypatch):
    (only,) = teacher()
    read = []
    original = store.read_named
    monkeypatch.setattr(
        store, "read_named", lambda at, part: read.append(part.name) or original(at, part)
    )
    lm_head_rows(only.payloads.lm_head(), np.arange(6, 15))
    assert [name[-20:-12] for name in read] == ["00000004", "00000008", "00000012"]
