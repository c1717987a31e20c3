"""Files of multimodal groups, small enough to write hundreds of, and jobs that read them."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from megapack.errors import DataError
from megapack.jobs.multimodal import GroupKind, MultimodalJob, SampleGroup, SampleSource
from megapack.multimodal.config import ImageTransform
from megapack.records.multimodal_sample import SpanKind
from megapack.records.shard import Shard
from tests.support.toy_tokenizers import bytes_tokenizer, save_tokenizer

DELIMITERS = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>")
VAE = ImageTransform(stride=16, max_size=64, min_size=16)
VIT = ImageTransform(stride=14, max_size=56, min_size=14)
PAIRS = pa.schema([("image", pa.binary()), ("captions", pa.string())])
EDITS = pa.schema(
    [
        ("image_list", pa.list_(pa.binary())),
        ("instruction_list", pa.list_(pa.list_(pa.string()))),
    ]
)


def png(width=16, height=16, color=(200, 10, 10)):
    """A picture of one colour, as a file."""
    data = io.BytesIO()
    Image.new("RGB", (width, height), color).save(data, "PNG")
    return data.getvalue()


def write_parquet(path, rows, schema, *, row_group_size=4):
    """A Parquet file of rows; gives its path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, path, row_group_size=row_group_size)
    return str(path)


def write_pairs(path, captions, *, row_group_size=4):
    """Images of text-to-image, each with its caption."""
    rows = [{"image": png(), "captions": caption} for caption in captions]
    return write_parquet(path, rows, PAIRS, row_group_size=row_group_size)


def write_lines(path, records):
    """A JSONL file; gives its path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    lines = (one if isinstance(one, str) else json.dumps(one) for one in records)
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def chat(*texts, **fields):
    """A record of turns that alternate, the user first."""
    names = ("human", "gpt")
    turns = [{"from": names[at % 2], "value": text} for at, text in enumerate(texts)]
    return {"conversations": turns, **fields}


def sample_group(kind, uri, **changes):
    """A group of one source."""
    source = {
        key: changes.pop(key) for key in ("images", "metadata", "max_samples") if key in changes
    }
    values = {
        "name": "g",
        "kind": kind,
        "sources": (SampleSource(uri=str(uri), **source),),
        "vae": None if kind is GroupKind.UNDERSTANDING else VAE,
        "vit": None if kind is GroupKind.TEXT_TO_IMAGE else VIT,
    }
    return SampleGroup(**{**values, **changes})


def multimodal_job(folder, *groups, **changes):
    """A job with one token a byte."""
    tokenizer = Path(folder) / "tokenizer"
    if not tokenizer.exists():
        save_tokenizer(bytes_tokenizer(specials=DELIMITERS), tokenizer)
    return MultimodalJob(groups=groups, tokenizer=str(tokenizer), **changes)


def drain(reader):
    """All that a reader has left."""
    return list(iter(reader.next, None))


def all_shards(ranks, workers):
    """Every worker of every rank."""
    return [
        Shard(rank=rank, ranks=ranks, worker=worker, workers=workers)
        for rank in range(ranks)
        for worker in range(workers)
    ]


def byte_ids(text):
    """One id a byte, as the job's tokenizer has; a lone surrogate is no text."""
    try:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
    except UnicodeEncodeError as error:
        raise DataError(str(error)) from error


def outline(drafted):
    """What a record became, to compare by eye: "text!" is predicted, "text?" may be dropped."""
    return [
        (
            bytes(item.text.astype(np.uint8)).decode()
            if item.kind is SpanKind.TEXT
            else f"{item.kind}{item.image}"
        )
        + "!" * item.loss
        + "?" * item.droppable
        for item in drafted.items
    ]
