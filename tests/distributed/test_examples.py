"""The examples run, and their losses are those of every document alone, computed independently."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import RankServer

ROOT = Path(__file__).parents[2]


def megatron_losses(uri: str) -> tuple[list[float], float]:
    """Losses of the example, and the first of them from megatron-core's own attention and norm."""
    import torch
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    import megapack
    from examples.megatron_loop import train
    from examples.tiny import start_world, tiny_gpt

    rank, world = start_world()
    model = tiny_gpt()
    stock = tiny_gpt(get_gpt_layer_local_spec(normalization="RMSNorm"))
    stock.load_state_dict(model.state_dict())
    total, count = 0.0, 0
    for number in range(world):
        row = megapack.open(uri).hf()[number]
        at = 0
        for length in row["seq_lengths"].tolist():
            ids, labels = (row[name][at : at + length] for name in ("input_ids", "labels"))
            at += length
            target = torch.tensor([*labels[1:].tolist(), -100])
            losses = stock(
                torch.from_numpy(ids)[None],
                torch.arange(length)[None],
                torch.ones(1, 1, length, length, dtype=torch.bool).triu(1),
                labels=target.clamp(min=0)[None],
            )
            total += float((losses[0] * (target >= 0)).sum())
            count += int((target >= 0).sum())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return list(train(uri, model, optimizer, rank, world)), total / count


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    from examples.tiny import tiny_dataset

    return tiny_dataset(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def answers(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.hf_example", dataset]
    run = subprocess.run(
        [*command, str(tmp_path_factory.mktemp("trainer"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(run.stdout.rpartition("ANSWERS ")[2])
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_the_megatron_loop_gives_the_loss_of_documents_alone_and_learns(
    ranks: RankServer, dataset: str, world: int
) -> None:
    results = ranks.run(megatron_losses, world_size=world, uri=dataset)
    losses, alone = results[0]
    assert losses[0] == pytest.approx(alone, rel=2e-6)
    assert losses[-1] < losses[0]
    assert all(result == results[0] for result in results)


def test_a_hugging_face_model_gives_the_loss_of_documents_alone(answers: dict[str, Any]) -> None:
    # The model makes its loss in float32 whatever its weights are.
    assert answers["packed"] == pytest.approx(answers["alone"], rel=1e-6)


def test_the_trainer_begins_with_the_loss_of_documents_alone(answers: dict[str, Any]) -> None:
    assert len(answers["trainer"]) == 3
    assert answers["trainer"][0] == pytest.approx(answers["alone"], rel=1e-6)


def test_workers_of_a_loader_read_every_row_once_in_order(
    answers: dict[str, Any], dataset: str
) -> None:
    import megapack

    rows = [row["input_ids"].tolist() for row in megapack.open(dataset).hf()]
    assert answers["read"] == rows


def test_workers_forked_after_the_first_read_are_refused_instead_of_hanging(
    answers: dict[str, Any],
) -> None:
    assert "multiprocessing_context='spawn'" in answers["late"]


def accepted(*, uri: str, folder: str) -> tuple[float, float]:
    """Accepted proposals of a random draft and of one that was trained for some seconds."""
    from examples.draft_head import measure, training
    from megapack.store.location import open_location
    from megapack.store.versions import latest_version, read_version

    data = read_version(uri, latest_version(open_location(uri))).dataset_ref()
    job = training(data, Path(folder), steps=12, seed=0)
    # <user>, words that stand one after another in the chats, <assistant>.
    return measure(job, [[2, 5, 6, 3]], Path(folder) / "scratch")


def test_a_trained_draft_has_more_accepted_and_changes_no_answer(
    ranks: RankServer, dataset: str, tmp_path: Path
) -> None:
    before, after = ranks.run(accepted, uri=dataset, folder=str(tmp_path), timeout_s=240)[0]
    assert before < 0.5
    assert after > before + 1.0
