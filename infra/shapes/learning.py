"""A small model learns from the packed shapes: what it loses before and after, and what it can do.

Losses are measured on rows that are not trained on, with the noise levels written in them and one
seed of noise, so the same weights give the same numbers. Their pictures may also stand in rows of
another epoch; those of the questions stand nowhere else.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from megapack.batch.multimodal_batch import MultimodalBatch
from megapack.batch.multimodal_loader import multimodal_loader
from megapack.batch.multimodal_stored import StoredMultimodalDataset
from megapack.batch.multimodal_tensors import to_batch
from megapack.model.multimodal import MixtureModel
from megapack.model.multimodal_config import MixtureConfig
from megapack.model.multimodal_training import evaluate, train_step
from megapack.multimodal.config import MaskForm
from megapack.steps.multimodal.pictures import spread
from megapack.steps.multimodal.stored import StoredRows, open_multimodal

_EVALUATION_SEED = 2**31
_WARM_UP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """How long and how fast is learnt.

    Attributes:
        steps: of the optimizer.
        rows: of a step.
        lr: at its highest, after the warm-up; falls to zero in a line.
        held_back: rows that are measured on and not trained on, spread over the version: the last
            ones of an epoch hold what is left of one group.
        seed: of weights, noise and order.
    """

    steps: int = 150
    rows: int = 1
    lr: float = 4e-3
    held_back: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Losses over the rows held back.

    Attributes:
        step: after so many steps.
        cross_entropy: nats a predicted token, weighted.
        squared_error: of a latent's channel.
    """

    step: int
    cross_entropy: float
    squared_error: float

    def line(self) -> str:
        """In words."""
        return (
            f"evaluation step={self.step} cross_entropy={self.cross_entropy:.4f} "
            f"squared_error={self.squared_error:.4f}"
        )


def shapes_model(rows: StoredRows, *, seed: int) -> MixtureModel:
    """A model for a version's vocabulary and patches, with fresh weights."""
    vision = rows.rules.vision
    model = MixtureModel(
        MixtureConfig(
            vocab_size=rows.vocab_size,
            hidden_size=96,
            num_layers=3,
            ffn_size=192,
            vit_layers=1,
            vit_patch_size=vision.vit_patch_size,
            vit_max_side=vision.vit_max_side,
            vae_downsample=vision.vae_downsample,
            vae_max_side=vision.vae_max_side,
        )
    )
    model.initialize(seed=seed)
    return model


def learn(
    uri: str, kept: Path, lesson: Lesson, *, say: Callable[[str], None]
) -> tuple[MixtureModel, list[Measured]]:
    """Train on a version's newest rows, or take up what was learnt from them before.

    Args:
        uri: of the dataset.
        kept: file of the weights; a file of another version or lesson is written anew.
        lesson: how.
        say: gets a line now and then.

    Returns:
        The model, and its losses before, on the way, and after.
    """
    rows = open_multimodal(uri)
    model = shapes_model(rows, seed=lesson.seed)
    settings = {
        "lesson": asdict(lesson),
        "rows": rows.ref.digest,
        "model": asdict(model.config),
    }
    before = torch.load(kept, weights_only=True) if kept.is_file() else {}
    if before.get("settings") == settings:
        model.load_state_dict(before["weights"])
        measured = [Measured(**one) for one in before["measured"]]
        say(f"weights of an earlier run taken up: {kept.name}")
    else:
        measured = _train(rows, model, lesson, say)
        kept.parent.mkdir(parents=True, exist_ok=True)
        whole = {
            "settings": settings,
            "weights": model.state_dict(),
            "measured": [asdict(one) for one in measured],
        }
        torch.save(whole, kept)
    return model, measured


def _train(
    rows: StoredRows, model: MixtureModel, lesson: Lesson, say: Callable[[str], None]
) -> list[Measured]:
    held_back = [_batch(rows, number) for number in spread(rows.num_rows, lesson.held_back)]
    apart = {one.samples for one in held_back}
    dataset = StoredMultimodalDataset(rows, seed=lesson.seed)
    loader = multimodal_loader(dataset)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lesson.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / _WARM_UP, (lesson.steps - step) / lesson.steps),
    )
    measured = [_measure(model, held_back, 0)]
    say(measured[-1].line())
    epoch, step, begin = 0, 0, time.monotonic()
    waiting: list[MultimodalBatch] = []
    while step < lesson.steps:
        dataset.set_epoch(epoch)
        epoch += 1
        for batch in loader:
            if batch.samples in apart:
                continue
            waiting.append(batch)
            if len(waiting) < lesson.rows:
                continue
            train_step(model, optimizer, waiting, seed=step)
            schedule.step()
            waiting, step = [], step + 1
            if step % 30 == 0 or step == lesson.steps:
                measured.append(_measure(model, held_back, step))
                say(f"{measured[-1].line()} seconds={time.monotonic() - begin:.0f}")
            if step == lesson.steps:
                break
    return measured


def _measure(model: MixtureModel, batches: list[MultimodalBatch], step: int) -> Measured:
    losses = evaluate(model, batches, seed=_EVALUATION_SEED)
    if losses is None:
        return Measured(step=step, cross_entropy=0.0, squared_error=0.0)
    return Measured(
        step=step,
        cross_entropy=losses.mean_cross_entropy(),
        squared_error=losses.mean_squared_error(),
    )


def _batch(rows: StoredRows, number: int) -> MultimodalBatch:
    row = rows.row(number)
    return to_batch(row, mask=MaskForm.NESTED, padded_length=row.length)
