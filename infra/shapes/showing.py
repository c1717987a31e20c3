"""What a model that learnt from the shapes answers and paints."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image, ImageDraw
from tokenizers import Tokenizer

from infra.shapes.job import shapes_job
from infra.shapes.scenes import draw_scene
from megapack.jobs.multimodal import GroupKind, MultimodalJob, SampleSource
from megapack.model.multimodal import MixtureModel
from megapack.model.multimodal_sampling import Euler, answers, paint
from megapack.multimodal.config import WritingRules
from megapack.multimodal.pixels import with_pixels
from megapack.records.multimodal_sample import PlanItem, Sample, SampleRef, SpanKind
from megapack.records.shard import Shard
from megapack.steps.multimodal.groups import open_group
from megapack.steps.multimodal.tokenizer import open_tokenizer

_SIDE = 48
_SCALE = 3
_CELL = _SIDE * _SCALE
_LABEL = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question about a picture that was nowhere else: what is true, and what was said."""

    question: str
    truth: str
    said: str


def answer_held_out(
    model: MixtureModel, folder: Path, rules: WritingRules, *, most: int = 32
) -> list[Answered]:
    """Questions of `held_out`, answered."""
    job = shapes_job(str(folder))
    decoder = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    asked = _held_out(job, folder)[:most]
    prompts = [with_pixels(replace(one, items=one.items[:-1])) for one in asked]
    said = answers(model, prompts, rules, max_tokens=12)

    def words(item: PlanItem) -> str:
        return str(decoder.decode([] if item.text is None else item.text.tolist())).strip()

    return [
        Answered(
            question=words(sample.items[-2]),
            truth=words(sample.items[-1]),
            said=decoder.decode(ids),
        )
        for sample, ids in zip(asked, said, strict=True)
    ]


def paint_captions(
    model: MixtureModel, folder: Path, rules: WritingRules, *, file: Path, euler: Euler
) -> list[str]:
    """Paint eight captions into one picture; returns the captions."""
    tokenizer = open_tokenizer(shapes_job(str(folder)))
    scenes = [draw_scene(Random(f"paint/{number}"), shapes=1) for number in range(8)]
    captions = [scene.caption() for scene in scenes]
    prompts = [
        Sample(
            ref=SampleRef(group="paint", source="main", file="captions", row=number),
            items=(
                PlanItem(kind=SpanKind.TEXT, text=tokenizer.encode(caption)),
                PlanItem(kind=SpanKind.VAE, image=0, height=_SIDE, width=_SIDE, loss=True),
            ),
            pixels=(np.zeros((_SIDE, _SIDE, 3), dtype=np.uint8),),
        )
        for number, caption in enumerate(captions)
    ]
    images = [
        Image.fromarray((image.permute(1, 2, 0) * 255).round().byte().numpy())
        for image in paint(model, prompts, rules, euler)
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    _grid(images, captions).save(file)
    return captions


def _held_out(job: MultimodalJob, folder: Path) -> list[Sample]:
    """Samples of the questions, without pixels, in an order of their own."""
    of_talks = next(group for group in job.groups if group.kind is GroupKind.UNDERSTANDING)
    source = SampleSource(uri=str(folder / "held_out" / "talks.jsonl"))
    group = of_talks.model_copy(update={"sources": (source,)})
    reader = open_group(group, job, open_tokenizer(job)).reader(Shard(), epoch=0)
    samples = []
    while (drawn := reader.next()) is not None:
        if isinstance(drawn.outcome, Sample):
            samples.append(drawn.outcome)
    return samples


def _grid(images: Sequence[Image.Image], captions: Sequence[str]) -> Image.Image:
    """Pictures in rows of four, each over its caption."""
    columns = 4
    lines = -(-len(images) // columns)
    page = Image.new("RGB", (columns * _CELL, lines * (_CELL + _LABEL)), "white")
    pencil = ImageDraw.Draw(page)
    for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
        x, y = number % columns * _CELL, number // columns * (_CELL + _LABEL)
        page.paste(image.resize((_CELL, _CELL), Image.Resampling.NEAREST), (x, y))
        half = caption.find(" ", len(caption) // 2)
        pencil.text(
            (x + 2, y + _CELL + 2), f"{caption[:half]}\n{caption[half + 1 :]}", fill="black"
        )
    return page
