"""A payload beside a row: in the student's ids, in whatever geometry the row has."""

import json

import numpy as np
import pytest

from megapack.batch.documents import documents_of
from megapack.batch.join import join_rows
from megapack.batch.recipe import BatchKind, BatchRecipe, lay_documents
from megapack.engine.payload_fields import PayloadFields, in_student_ids
from megapack.engine.payload_join import read_documents
from megapack.errors import DataError
from megapack.jobs.distill import Distillation, TeacherRequest
from megapack.layout.token_fields import unplace
from megapack.records.packed_row import filler_row
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.steps.distill.resolve import resolve_teacher
from megapack.steps.distill.teachers import open_teachers
from megapack.steps.distill.vocabulary import NO_TOKEN, map_of_file
from tests.support.payloads import commit_payloads, payloads_of, topk_payloads
from tests.support.rows import VOCAB, replace_token
from tests.support.tiny_dataset import make_rows

ROWS = make_rows(3, seed=3)
TOPK = PayloadFields(kind=PayloadKind.TOPK, dtype=PayloadDtype.FP32, width=5)


def opened(folder, *payloads, **info):
    """A teacher for each list of payloads."""
    teachers = []
    for number, own in enumerate(payloads):
        commit_payloads(folder / str(number), own, **info)
        teachers.append(resolve_teacher(TeacherRequest(payload=str(folder / str(number)))))
    return open_teachers(Distillation(teachers=tuple(teachers)), vocab_size=VOCAB)


def test_payloads_of_two_teachers_meet_their_documents_in_any_geometry(tmp_path):
    made = topk_payloads(ROWS)
    narrow = topk_payloads(ROWS, k=3, seed=1)
    teachers = opened(tmp_path, made[::2], narrow[1::2])
    documents = read_documents(ROWS, teachers, TOPK)
    owned = {one.document_id: (0, one) for one in made[::2]}
    owned |= {one.document_id: (1, one) for one in narrow[1::2]}
    granularity = ROWS[0].layout.granularity
    recipe = BatchRecipe(kind=BatchKind.DENSE, granularity=granularity)
    dense = lay_documents(documents_of(ROWS), recipe)
    for row in (ROWS[1], join_rows(ROWS), dense):
        fields = TOPK.of_row(row, documents).local
        found = {name: unplace(values, row.layout) for name, values in fields.items()}
        padding = row.layout.padding_mask()
        assert (fields["teacher"][padding] == -1).all()
        assert (fields["teacher_topk_ids"][padding] == NO_TOKEN).all()
        assert np.isneginf(fields["teacher_topk_logprobs"][padding]).all()
        for i, document_id in enumerate(row.document_ids):
            number, payload = owned[document_id]
            k = payload.values.shape[1]
            assert (found["teacher"][i] == number).all()
            assert np.array_equal(found["teacher_topk_ids"][i][:, :k], payload.indices)
            assert np.array_equal(found["teacher_topk_logprobs"][i][:, :k], payload.values)
            assert (found["teacher_topk_ids"][i][:, k:] == NO_TOKEN).all()
            assert np.array_equal(found["teacher_tail_logprobs"][i], payload.tail_logprobs)
    empty = TOPK.of_row(filler_row(row_length=96, granularity=granularity), documents).local
    assert (empty["teacher"] == -1).all()


def test_narrower_hidden_states_are_widened_with_zeros(tmp_path):
    draw = np.random.default_rng(0)

    def hidden(width):
        return payloads_of(
            ROWS,
            PayloadKind.HIDDEN,
            PayloadDtype.BF16,
            lambda tokens: {"values": draw.integers(1, 99, (tokens.size, width)).astype("<u2")},
        )

    wide, narrow = hidden(8), hidden(6)
    teachers = opened(tmp_path, wide[:4], narrow[4:])
    fields = PayloadFields(kind=PayloadKind.HIDDEN, dtype=PayloadDtype.BF16, width=8)
    found = fields.of_row(join_rows(ROWS), read_documents(ROWS, teachers, fields)).local
    values = unplace(found["teacher_hidden"], join_rows(ROWS).layout)
    assert found["teacher_hidden"].dtype == np.uint16
    assert np.array_equal(values[0], wide[0].values)
    assert np.array_equal(values[-1][:, :6], narrow[-1].values)
    assert not values[-1][:, 6:].any()


def test_entries_that_the_student_lacks_are_in_the_tail():
    payload = topk_payloads(ROWS[:1], k=4)[0]
    lost = np.unique(payload.indices[:, ::2])
    kept = [one for one in range(VOCAB) if one not in lost]
    pairs = [[VOCAB - 1 - one, one] for one in kept]
    vocabulary = map_of_file(json.dumps(pairs).encode(), where="", student=VOCAB, teacher=VOCAB)
    logprobs, ids, tail = in_student_ids(payload, vocabulary)
    assert (ids[:, ::2] == NO_TOKEN).all()
    assert np.isneginf(logprobs[ids == NO_TOKEN]).all()
    there = ids != NO_TOKEN
    assert there.any()
    assert np.array_equal(ids[there], VOCAB - 1 - payload.indices[there])
    assert np.array_equal(logprobs[there], payload.values[there])
    mass = np.exp(logprobs.astype(np.float64)).sum(1) + np.exp(tail.astype(np.float64))
    np.testing.assert_allclose(mass, 1.0, rtol=0, atol=5e-7)
    whole = topk_payloads(ROWS[:1], k=VOCAB)[0]
    assert np.isneginf(whole.tail_logprobs).all()
    assert np.isfinite(in_student_ids(whole, vocabulary)[2]).all()


def test_a_payload_of_other_labels_or_none_is_refused_by_name(tmp_path):
    made = topk_payloads(ROWS)
    teachers = opened(tmp_path, made[1:])
    with pytest.raises(DataError, match=f"none for 1 of them, .*{made[0].document_id}"):
        read_documents(ROWS, teachers, TOPK)
    changed = replace_token(ROWS[1], 0)
    message = f"document {changed.document_ids[0]}: expected a payload of its .* positions and lab"
    with pytest.raises(DataError, match=message):
        read_documents([changed], teachers, TOPK)
