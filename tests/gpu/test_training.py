"""Does a run on CUDA train, stop, and go on with the same losses?"""

from pathlib import Path

import pytest

from megapack.steps.train import train
from tests.support.tiny_dataset import make_dataset, make_rows, train_job


def curve(dataset, output: Path, steps: int) -> dict[int, float]:
    metrics: list[dict] = []
    job = train_job(dataset, output, steps=steps)
    done = train(job, on_line=lambda *_: None, on_metric=metrics.append)
    assert done.step == steps
    return {one["step"]: one["loss"] for one in metrics if one["kind"] == "train"}


def test_a_run_learns_and_is_repeated_to_the_last_digits(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", make_rows(10, seed=1), make_rows(3, seed=2))
    first, second = (curve(dataset, tmp_path / name, 6) for name in ("one", "two"))
    assert first[6] < first[1]
    assert [second[step] for step in first] == pytest.approx(list(first.values()), rel=1e-4)
