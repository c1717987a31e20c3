"""Are the portable backend's numbers on CUDA those of the CPU?"""

from collections.abc import Callable

import pytest

from tests.support.device_cases import MODELS, ROWS
from tests.support.device_run import Answer, Ask
from tests.support.rows import worst_error

Answers = Callable[[Ask], Answer]


def run(answers: Answers, model: str, device: str, dtype: str) -> Answer:
    return answers(Ask(device=device, dtype=dtype, rows=ROWS, job=MODELS[model]))


def test_one_process_on_cuda_speaks_nccl_and_never_imports_transformer_engine(
    answers: Answers,
) -> None:
    found = run(answers, "dense", "cuda", "float32")
    assert (found.device, found.communication, found.loaded) == ("cuda:0", "nccl", ())


@pytest.mark.parametrize("model", MODELS)
def test_float64_on_cuda_is_float64_on_the_cpu(answers: Answers, model: str) -> None:
    cpu, cuda = (run(answers, model, device, "float64") for device in ("cpu", "cuda"))
    assert cuda.loss_sum == pytest.approx(cpu.loss_sum, rel=1e-12)
    assert worst_error(cuda.gradients, cpu.gradients) < 1e-12


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["dense", "tied"])
def test_error_on_cuda_is_at_most_4x_that_of_the_cpu(
    answers: Answers, model: str, dtype: str
) -> None:
    exact = run(answers, model, "cpu", "float64")
    cpu, cuda = (run(answers, model, device, dtype) for device in ("cpu", "cuda"))
    allowed = 4 * worst_error(cpu.gradients, exact.gradients)
    assert 0 < worst_error(cuda.gradients, exact.gradients) <= allowed
    assert abs(cuda.loss_sum - exact.loss_sum) <= max(
        4 * abs(cpu.loss_sum - exact.loss_sum), 1e-6 * exact.loss_sum
    )
