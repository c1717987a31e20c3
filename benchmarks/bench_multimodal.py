"""The multimodal stream: samples and tokens a second by data workers, where time goes, memory.

Images are JPEGs of 256 to 1024 pixels a side, made here: captioned ones (VAE), questions about them
(VIT), and edits of two (both), in rows of 32k tokens with the published limits. Rates are by the
clock and depend on what else runs; shares of time are CPU seconds of one thread, by stage. Nested
masks hold a byte for each pair of positions of a sample, and data workers send them. Memory is what
the process holds while 100k tiny samples go through; it must not grow.
"""

import io
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.record import emit
from megapack.batch.multimodal import MultimodalDataset
from megapack.batch.multimodal_loader import multimodal_loader
from megapack.jobs.multimodal import GroupKind, MultimodalJob, SampleGroup, SampleSource
from megapack.multimodal.config import ImageTransform, MaskForm, VisionConfig
from megapack.packing.row_limits import RowLimits
from megapack.steps.multimodal.stream import MultimodalStream

FLEX, NESTED = MaskForm.FLEX, MaskForm.NESTED
IMAGES = 96
ROWS = 12
TINY = 100_000
EVERY = 20_000
FLAT_MB = 16
_MB = 1 << 20
_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")
_VAE = ImageTransform(stride=16, max_size=1024, min_size=256)
_VIT = ImageTransform(stride=14, max_size=980, min_size=224)
_STAGES = {
    "read": "megapack.steps.multimodal.groups.GroupReader.next",
    "decode": "megapack.steps.multimodal.judge.with_pixels",
    "assemble": "megapack.batch.multimodal.assemble",
    "tensors": "megapack.batch.multimodal.to_batch",
}


def main() -> None:
    """Print a line for each measurement."""
    with tempfile.TemporaryDirectory() as name:
        job = _mixture(Path(name))
        for mask, workers in ((FLEX, 0), (FLEX, 1), (FLEX, 2), (NESTED, 2)):
            emit("multimodal loader", mask=mask, workers=workers, **_rates(job, mask, workers))
        for mask in MaskForm:
            emit("multimodal time by stage", mask=mask, **_shares(job, mask))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_multimodal", "memory"],
        check=True,
        capture_output=True,
        text=True,
    )
    emit("multimodal memory", **json.loads(done.stdout))


def _rates(job: MultimodalJob, mask: MaskForm, workers: int) -> dict[str, float]:
    """Of `ROWS` rows a worker has begun to hand out."""
    loader = multimodal_loader(MultimodalDataset(job, mask=mask), workers=workers)
    rows = iter(loader)
    next(rows)
    begin = time.perf_counter()
    batches = [next(rows) for _ in range(ROWS)]
    seconds = time.perf_counter() - begin
    samples = sum(len(batch.samples) for batch in batches)
    tokens = sum(batch.length for batch in batches)
    images = sum(len(batch.vit_lengths) + len(batch.vae_shapes) for batch in batches)
    return {
        "rows": ROWS,
        "samples_per_s": round(samples / seconds, 1),
        "images_per_s": round(images / seconds, 1),
        "tokens_per_s": round(tokens / seconds),
        "samples_per_row": round(samples / ROWS, 1),
        "fill": round(tokens / ROWS / job.limits.max_tokens, 3),
    }


def _shares(job: MultimodalJob, mask: MaskForm) -> dict[str, float]:
    """CPU seconds of the stages over `ROWS` rows in one thread; what is left is packing."""
    spent: Counter[str] = Counter()

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the stage takes
            begin = time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                spent[name] += time.thread_time() - begin

        return run

    patches = []
    for name, target in _STAGES.items():
        patches.append(mock.patch(target, timed(name, _find(target))))
    for patch in patches:
        patch.start()
    begin = time.thread_time()
    rows = iter(MultimodalDataset(job, mask=mask, prefetch=0))
    for _ in range(ROWS):
        next(rows)
    total = time.thread_time() - begin
    for patch in patches:
        patch.stop()
    spent["pack"] = total - sum(spent.values())
    shares = {f"{name}_percent": round(100 * part / total, 1) for name, part in spent.items()}
    return {
        "rows": ROWS,
        "cpu_s": round(total, 2),
        "collate_ms_per_row": round(1000 * (spent["assemble"] + spent["tensors"]) / ROWS, 1),
        **shares,
    }


def _find(target: str) -> Callable[..., Any]:
    """What a dotted name stands for."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:cut]))
        if module is not None:
            found: Any = module
            for part in parts[cut:]:
                found = getattr(found, part)
            return found  # type: ignore[no-any-return]
    raise LookupError(target)


def _memory() -> None:
    """Print what the process holds after each `EVERY` of `TINY` samples."""
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        image = _jpeg(np.random.default_rng(0), 16, 16)
        rows = [{"image": image, "captions": f"picture {number}"} for number in range(TINY)]
        pq.write_table(pa.Table.from_pylist(rows), folder / "tiny.parquet", row_group_size=1000)
        del rows
        limits = RowLimits(
            max_tokens=2048, expected_tokens=2000, max_sample_tokens=512, prefer_buffer_before=1024
        )
        job = _job(folder, (_group("tiny", GroupKind.TEXT_TO_IMAGE, folder / "tiny.parquet"),))
        stream = MultimodalStream(job.model_copy(update={"limits": limits}))
        begin, seen, held = time.process_time(), 0, []
        for row in stream:
            seen += len(row.laid)
            if seen // EVERY > len(held):
                held.append(round(process.memory_info().rss / _MB, 1))
        seconds = time.process_time() - begin
    grown = held[-1] - held[0]
    sys.stdout.write(
        json.dumps(
            {
                "samples": seen,
                "cpu_us_per_sample": round(1e6 * seconds / seen),
                **{f"after_{(number + 1) * EVERY}_mb": mb for number, mb in enumerate(held)},
                "grown_mb": round(grown, 1),
                "flat": grown < FLAT_MB,
            }
        )
    )


def _mixture(folder: Path) -> MultimodalJob:
    random = np.random.default_rng(0)
    images = [_jpeg(random, *random.integers(256, 1025, 2)) for _ in range(IMAGES)]
    (folder / "images").mkdir()
    for number, image in enumerate(images):
        (folder / "images" / f"{number}.jpg").write_bytes(image)
    words = [f"word{number}" for number in range(500)]

    def text(most: int) -> str:
        return " ".join(random.choice(words, random.integers(8, most)))

    pairs = [{"image": image, "captions": text(80)} for image in images]
    pq.write_table(pa.Table.from_pylist(pairs), folder / "pairs.parquet", row_group_size=16)
    edits = [
        {
            "image_list": [images[number], images[number - 1]],
            "instruction_list": [[text(20)]],
        }
        for number in range(IMAGES)
    ]
    pq.write_table(pa.Table.from_pylist(edits), folder / "edits.parquet", row_group_size=16)
    turns = [
        {
            "image": f"{number}.jpg",
            "conversations": [
                {"from": "human", "value": f"<image>{text(30)}"},
                {"from": "gpt", "value": text(200)},
            ],
        }
        for number in range(IMAGES)
    ]
    lines = "".join(f"{json.dumps(turn)}\n" for turn in turns)
    (folder / "talk.jsonl").write_text(lines, encoding="utf-8")
    return _job(
        folder,
        (
            _group("pairs", GroupKind.TEXT_TO_IMAGE, folder / "pairs.parquet"),
            _group("edits", GroupKind.EDITING, folder / "edits.parquet"),
            _group("talk", GroupKind.UNDERSTANDING, folder / "talk.jsonl", folder / "images"),
        ),
    )


def _group(name: str, kind: GroupKind, file: Path, images: Path | str = "") -> SampleGroup:
    """Read without end, so that rows are full."""
    return SampleGroup(
        name=name,
        kind=kind,
        sources=(SampleSource(uri=str(file), images=str(images)),),
        readings=1 if name == "tiny" else None,
        vae=None if kind is GroupKind.UNDERSTANDING else _tiny(name, _VAE),
        vit=None if kind is GroupKind.TEXT_TO_IMAGE else _VIT,
    )


def _tiny(name: str, transform: ImageTransform) -> ImageTransform:
    return transform.model_copy(update={"min_size": 16}) if name == "tiny" else transform


def _job(folder: Path, groups: tuple[SampleGroup, ...]) -> MultimodalJob:
    words = [*_SPECIAL, "<|unknown|>", *(f"word{number}" for number in range(500))]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, "<|unknown|>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(_SPECIAL))
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    return MultimodalJob(
        groups=groups,
        tokenizer=str(folder / "tokenizer"),
        vision=VisionConfig(vae_max_side=64),
    )


def _jpeg(random: np.random.Generator, width: int, height: int) -> bytes:
    """A picture with as much in it as a photograph: colours that change slowly, and some noise."""
    coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((int(width), int(height)), Image.Resampling.BICUBIC))
    noise = random.normal(0, 6, smooth.shape)
    data = io.BytesIO()
    picture = Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))
    picture.save(data, "JPEG", quality=90)
    return data.getvalue()


if __name__ == "__main__":
    _memory() if sys.argv[1:] == ["memory"] else main()
