"""Is the te backend the portable one: numbers, boundaries, checkpoints, offload, zigzag?"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.device_cases import MODELS, ROWS
from tests.support.device_run import Answer, Ask
from tests.support.rows import worst_error

Answers = Callable[[Ask], Answer]
# Attention kernels take heads of at least 16.
JOB = {"hidden_size": 64, "ffn_hidden_size": 96}


def model(name: str, **changes: object) -> dict[str, object]:
    return {**JOB, **MODELS[name], **changes}


def backend_run(answers: Answers, backend: str, **changes: object) -> Answer:
    request = {"device": "cuda", "dtype": "bfloat16", "rows": ROWS, "job": model("dense")}
    return answers(Ask(backend=backend, **{**request, **changes}))


def exact_run(answers: Answers) -> Answer:
    return answers(Ask(device="cpu", dtype="float64", rows=ROWS, job=model("dense")))


@pytest.mark.parametrize("backend", ["te-exact", "te-slots"])
def test_error_of_te_is_at_most_4x_that_of_portable(answers: Answers, backend: str) -> None:
    exact = exact_run(answers)
    portable, te = (backend_run(answers, name) for name in ("portable", backend))
    assert te.loaded == ("transformer_engine",)
    assert te.gradients.keys() == portable.gradients.keys()
    assert all(np.isfinite(value).all() for value in te.gradients.values())
    allowed = 4 * worst_error(portable.gradients, exact.gradients)
    assert worst_error(te.gradients, exact.gradients) <= allowed


@pytest.mark.parametrize("backend", ["te-exact", "te-slots"])
def test_grouped_experts_learn_what_experts_one_by_one_do(answers: Answers, backend: str) -> None:
    portable, te = (
        backend_run(answers, name, job=model("experts")) for name in ("portable", backend)
    )
    assert te.gradients.keys() == portable.gradients.keys()
    assert te.loss_sum == pytest.approx(portable.loss_sum, rel=2e-2)


@pytest.mark.parametrize(("writer", "reader"), [("portable", "te"), ("te", "portable")])
def test_a_checkpoint_goes_from_one_backend_to_the_other(
    answers: Answers, tmp_path: Path, writer: str, reader: str
) -> None:
    # Other weights than those that the reader starts from.
    job = model("dense", init_std=0.3)
    written = backend_run(answers, writer, job=job, write=str(tmp_path))
    read = backend_run(answers, reader, read=str(tmp_path))
    fresh = backend_run(answers, reader)
    assert read.loss_sum == pytest.approx(written.loss_sum, rel=1e-2)
    assert abs(fresh.loss_sum - written.loss_sum) > 3 * abs(read.loss_sum - written.loss_sum)


def test_offload_does_not_change_numbers(answers: Answers) -> None:
    offload = model("dense", offload=["core_attn", "qkv_linear"])
    plain, offloaded = (backend_run(answers, "te", job=job) for job in (model("dense"), offload))
    assert offloaded.loss_sum == pytest.approx(plain.loss_sum, rel=1e-6)
    assert worst_error(offloaded.gradients, plain.gradients) < 1e-6


@pytest.mark.parametrize("cp", [2, 4])
def test_zigzag_of_transformer_engine_is_ours(cp: int) -> None:
    import torch
    import transformer_engine_torch

    for row in ROWS:
        layout = row.layout
        if layout.granularity.segment % (2 * cp):
            continue
        slots = torch.from_numpy(layout.cu_seqlens_padded).int().cuda()
        for rank in range(cp):
            theirs = transformer_engine_torch.thd_get_partitioned_indices(
                slots, int(slots[-1]), cp, rank
            )
            ours = layout.cp_index(cp_size=cp, cp_rank=rank)[: theirs.numel()]
            assert theirs.cpu().tolist() == ours.tolist()
