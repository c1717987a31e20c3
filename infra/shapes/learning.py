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
_STEPS_BETWEEN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """How long and how fast is learnt.

    For some 200 steps the answers follow the questions alone; then, within a hundred, they come to
    follow the pictures. At twice this `lr` that takes twice as long.

    Attributes:
        steps: of the optimizer.
        rows: of a step.
        lr: at its highest, after the warm-up; falls to zero in a line.
        warm_up: steps until then.
        beta2: of AdamW.
        held_back: rows that are measured on and not trained on, spread over the version: the last
            ones of an epoch hold what is left of one group.
        seed: of weights, noise and order.
    """

    steps: int = 400
    rows: int = 1
    lr: float = 2e-3
    warm_up: int = 20
    beta2: float = 0.98
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

    def line(self, steps: int) -> str:
        """In words, out of so many steps."""
        return (
            f"evaluation step={self.step} of {steps} cross_entropy={self.cross_entropy:.4f} "
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
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lesson.lr, betas=(0.9, lesson.beta2), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / lesson.warm_up, (lesson.steps - step) / lesson.steps),
    )
    measured = [_measure(model, held_back, 0)]
    say(f"training lasts {lesson.steps} steps, one or two minutes of a free core")
    say(measured[-1].line(lesson.steps))
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
            if step % _STEPS_BETWEEN == 0 or step == lesson.steps:
                measured.append(_measure(model, held_back, step))
                spent = time.monotonic() - begin
                left = spent / step * (lesson.steps - step)
                say(f"{measured[-1].line(lesson.steps)} seconds={spent:.0f} left={left:.0f}")
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
