"""Divergence over the whole vocabulary in one process, against brute force token by token.

Over vocabulary shards: tests/distributed/test_distill_losses.py.
"""

import pytest
import torch

from megapack.errors import ContractError
from megapack.jobs.distill import Divergence
from megapack.parallel.lm_head import LmHead, StoredLogits
from megapack.parallel.teacher_columns import TeacherColumns, TeacherLogits, project, same_ids
from megapack.parallel.vocab import VocabShard
from megapack.parallel.vocab_divergence import Compared, vocab_divergence
from megapack.parallel.vocab_picked import picked_logprobs
from tests.support.dense_distill import over_vocabulary
from tests.support.largest_tensor import LargestTensor

REAL, COLUMNS, HIDDEN, TOKENS = 11, 16, 6, 9
TWO_AT_ONCE = VocabShard(start=0, real=REAL, tokens_per_chunk=2)
CPU = torch.device("cpu")
# Student id -> teacher id: the same ones but for 9 and 10, which the teacher lacks; and a
# shuffle with gaps on either side.
SAME = {v: v for v in range(9)}
SHUFFLED = {0: 5, 2: 12, 3: 0, 7: 3, 10: 9}
TEACHER_VOCAB = {"same": 9, "shuffled": 13}
PAIRS = {"same": SAME, "shuffled": SHUFFLED}
ROWS = {"same": [0, 3, 4, 8], "shuffled": [1, 2, 6]}
WIDTH = {"same": 4, "shuffled": 7}


def random(*shape: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


def columns(name: str, weight: torch.Tensor | None) -> TeacherColumns:
    """The student's columns of a teacher, whose LM head is [V_t, H_t]."""
    column_of = torch.full((COLUMNS,), -1)
    for mine, theirs in PAIRS[name].items():
        column_of[mine] = theirs
    if weight is None:
        return TeacherColumns(column_of=column_of)
    rows = torch.where(column_of[:, None] >= 0, weight[column_of], 77.0)
    return TeacherColumns(column_of=column_of, weight=rows)


def teachers_and_logits(*, stored: bool) -> tuple[list[TeacherLogits], dict[str, torch.Tensor]]:
    """Both teachers, and their whole logits [TOKENS, V_t]; NaN in what must not be read."""
    found, logits = [], {}
    for seed, name in enumerate(PAIRS):
        hidden = random(TOKENS, WIDTH[name], seed=seed)
        weight = random(TEACHER_VOCAB[name], WIDTH[name], seed=10 + seed)
        logits[name] = hidden @ weight.T
        values = torch.full((TOKENS, 14), torch.nan, dtype=torch.float64)
        own = logits[name] if stored else hidden
        values[ROWS[name], : own.shape[1]] = own[ROWS[name]]
        found.append(
            TeacherLogits(
                columns=columns(name, None if stored else weight),
                rows=torch.tensor(ROWS[name]),
                values=values,
            )
        )
    return found, logits


@pytest.mark.parametrize("divergence", Divergence)
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("lm_head", [True, False], ids=["lm-head", "logits"])
@pytest.mark.parametrize("stored", [True, False], ids=["teacher-logits", "teacher-hidden"])
def test_two_teachers_of_other_widths_and_vocabularies_equal_the_book(
    *, divergence: Divergence, temperature: float, lm_head: bool, stored: bool
) -> None:
    teachers, logits = teachers_and_logits(stored=stored)
    hidden, weight = random(TOKENS, HIDDEN, seed=20), random(COLUMNS, HIDDEN, seed=21)
    ours = [value.clone().requires_grad_() for value in (hidden, weight)]
    theirs = [value.clone().requires_grad_() for value in (hidden, weight)]
    head = LmHead(hidden=ours[0], weight=ours[1])
    source = head if lm_head else StoredLogits(logits=head.hidden @ head.weight.T)
    how = Compared(divergence=divergence, temperature=temperature)
    got = vocab_divergence(source, teachers, TWO_AT_ONCE, how)
    factors = random(TOKENS, seed=22)
    whole = (theirs[0] @ theirs[1].T)[:, :REAL]
    expected = torch.zeros(TOKENS, dtype=torch.float64)
    for name, pairs in PAIRS.items():
        for row in ROWS[name]:
            expected[row] = over_vocabulary(
                whole[row], logits[name][row], pairs, divergence, temperature
            )
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)
    assert got[[5, 7]].tolist() == [0.0, 0.0], "no teacher has these"
    (got * factors).sum().backward()
    (expected * factors).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-12, atol=1e-13)
    assert not ours[0].grad[[5, 7]].any()


@pytest.mark.parametrize("divergence", Divergence)
def test_gradient_agrees_with_differences(divergence: Divergence) -> None:
    teachers, _ = teachers_and_logits(stored=False)
    how = Compared(divergence=divergence, temperature=1.7)

    def loss(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return vocab_divergence(LmHead(hidden=hidden, weight=weight), teachers, TWO_AT_ONCE, how)

    inputs = [random(TOKENS, HIDDEN, seed=1), random(COLUMNS, HIDDEN, seed=2)]
    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in inputs])


@pytest.mark.parametrize("divergence", Divergence)
def test_equal_distributions_have_no_divergence(divergence: Divergence) -> None:
    logits = random(TOKENS, COLUMNS, seed=3).float().requires_grad_()
    column_of = same_ids(0, COLUMNS, student_vocab=REAL, teacher_vocab=REAL, device=CPU)
    teacher = TeacherLogits(
        columns=TeacherColumns(column_of=column_of),
        rows=torch.arange(TOKENS),
        values=logits.detach() + 3.0,
    )
    got = vocab_divergence(
        StoredLogits(logits=logits), [teacher], TWO_AT_ONCE, Compared(divergence=divergence)
    )
    got.sum().backward()
    assert float(got.detach().abs().max()) < 1e-6
    assert float(logits.grad.abs().max()) < 1e-6


def test_no_teacher_with_tokens_is_a_zero_that_can_be_differentiated() -> None:
    logits = random(TOKENS, COLUMNS, seed=3).requires_grad_()
    how = Compared(divergence=Divergence.FORWARD_KL)
    got = vocab_divergence(StoredLogits(logits=logits), [], TWO_AT_ONCE, how)
    got.sum().backward()
    assert got.tolist() == [0.0] * TOKENS
    assert not logits.grad.any()


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("hidden_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_teacher_logits_are_as_good_as_its_stored_values(
    monkeypatch: pytest.MonkeyPatch, hidden_dtype: torch.dtype, weight_dtype: torch.dtype
) -> None:
    monkeypatch.setattr("megapack.parallel.teacher_columns.WIDENED_VALUES", 64 * 5)
    hidden = random(40, 64, seed=1).to(hidden_dtype)
    weight = random(33, 64, seed=2).to(weight_dtype)
    truth = hidden.double() @ weight.double().T
    got = project(hidden, weight, torch.float32)
    assert got.dtype == torch.float32
    assert float((got - truth).abs().max()) < 2e-5
    narrow = (hidden.bfloat16() @ weight.bfloat16().T).double()
    assert float((narrow - truth).abs().max()) > 0.03, "bfloat16 products would not be"


@pytest.mark.parametrize("what", [*Divergence, "picked"])
def test_no_tensor_has_the_logits_of_all_tokens(what: Divergence | str) -> None:
    vocabulary, at_once = 512, 8
    shard = VocabShard(start=0, real=vocabulary, tokens_per_chunk=at_once)
    largest = {}
    for tokens in (24, 48):
        hidden = torch.randn(tokens, 4, requires_grad=True)
        head = LmHead(hidden=hidden, weight=torch.randn(vocabulary, 4, requires_grad=True))
        teacher = TeacherLogits(
            columns=TeacherColumns(
                column_of=torch.arange(vocabulary), weight=torch.randn(vocabulary, 3).bfloat16()
            ),
            rows=torch.arange(tokens),
            values=torch.randn(tokens, 3).bfloat16(),
        )
        with LargestTensor() as seen:
            if isinstance(what, Divergence):
                got = vocab_divergence(head, [teacher], shard, Compared(divergence=what))
                got.sum().backward()
            else:
                ids = torch.arange(5).expand(tokens, 5)
                sum(one.sum() for one in picked_logprobs(head, ids, shard)).backward()
        largest[tokens] = seen.values
    # The picks have a column to spare.
    chunk = at_once * (vocabulary + (what == "picked"))
    assert largest == {24: chunk, 48: chunk}


def test_columns_of_another_length_than_the_weight_are_refused() -> None:
    with pytest.raises(ContractError, match=r"TeacherColumns\.weight: expected \[16, H_t\]"):
        TeacherColumns(column_of=torch.zeros(16, dtype=torch.int64), weight=torch.zeros(15, 4))
    with pytest.raises(ContractError, match=r"column_of: expected int64 \[V/tp\]"):
        TeacherColumns(column_of=torch.zeros(16))


def test_last_rank_of_a_padded_vocabulary_shares_what_is_real_on_both_sides() -> None:
    found = same_ids(8, 8, student_vocab=REAL, teacher_vocab=10, device=CPU)
    assert found.tolist() == [8, 9, *[-1] * 6]
    teacher = TeacherColumns(column_of=found)
    assert (teacher.shared, teacher.last_shared) == (slice(0, 2), 1)
    nothing = TeacherColumns(column_of=torch.full((8,), -1))
    assert (nothing.shared, nothing.last_shared) == (slice(0, 0), -1)
