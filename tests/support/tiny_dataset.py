"""A small committed dataset and jobs over it: no torch, so the test process may import it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from megapack.jobs.extract import ExtractJob, ExtractSettings, PayloadChoice
from megapack.jobs.model import ModelJob
from megapack.jobs.parallel import ParallelJob
from megapack.jobs.train import OptimizerJob, Saving, TrainJob, TrainSettings
from megapack.layout.granularity import Granularity
from megapack.records.packed_row import PackedRow
from megapack.records.payload import PayloadDtype
from megapack.records.refs import CheckpointRef, DatasetRef
from megapack.store.location import open_location
from megapack.store.manifest import Contents, Split
from megapack.store.schema import PackedInfo, SchemaId
from megapack.store.sinks import RowSink, row_counts
from megapack.store.versions import commit
from tests.support.rows import GRANULARITY, VOCAB, make_row

MODEL = ModelJob(
    num_layers=2,
    hidden_size=32,
    ffn_hidden_size=48,
    num_attention_heads=4,
    num_query_groups=2,
    init_std=0.2,
    vocab_multiple=16,
)
ROW_LENGTH = 96


def make_rows(count: int, *, seed: int, granularity: Granularity = GRANULARITY) -> list[PackedRow]:
    """Rows of three or four documents of odd lengths."""
    draw = np.random.default_rng(seed)
    return [
        make_row(
            [int(n) for n in draw.integers(5, 24, size=draw.integers(3, 5))],
            seed=1000 * seed + i,
            row_length=ROW_LENGTH,
            granularity=granularity,
        )
        for i in range(count)
    ]


def make_dataset(
    folder: Path, train: Sequence[PackedRow], validation: Sequence[PackedRow] = ()
) -> DatasetRef:
    """Commit rows as a dataset version."""
    location = open_location(folder)
    multiples = train[0].layout.granularity
    info = PackedInfo(
        row_length=train[0].layout.row_length,
        segment_granularity=multiples.segment,
        row_granularity=multiples.row,
        pad_id=0,
        vocab_size=VOCAB,
        tokenizer_digest="tiny",
        format="identity",
    )
    parts = []
    for split, rows in ((Split.TRAIN, train), (Split.VALIDATION, validation)):
        sink = RowSink(location, info=info, split=split)
        for row in rows:
            sink.add(row)
        parts += sink.close()
    contents = Contents(
        schema_id=SchemaId.PACKED_ROWS,
        kind="dataset",
        parts=parts,
        counts=row_counts(parts),
        packed=info,
    )
    return commit(location, contents.manifest()).dataset_ref()


def train_job(dataset: DatasetRef, output: Path, **changes) -> TrainJob:
    """Six steps of four rows, with evaluations and checkpoints on the way, which steps wait for."""
    settings = {
        "model": MODEL,
        "optimizer": OptimizerJob(lr=1e-2, min_lr=1e-3, warmup_steps=2),
        "steps": 6,
        "global_batch_rows": 4,
        "evaluate_every": 3,
        "evaluation_rows": 3,
        "checkpoint_every": 2,
        "saving": Saving.WAIT,
        "seed": 5,
    }
    return TrainJob(
        dataset=dataset, settings=TrainSettings(**{**settings, **changes}), output=str(output)
    )


def extract_job(
    dataset: DatasetRef, checkpoint: CheckpointRef, output: Path, **changes
) -> ExtractJob:
    """Hidden states of all rows, as float32."""
    settings = {"payload": PayloadChoice(top_k=None, hidden=PayloadDtype.FP32)}
    return ExtractJob(
        dataset=dataset,
        checkpoint=checkpoint,
        model=MODEL,
        settings=ExtractSettings(**{**settings, **changes}),
        output=str(output),
    )


def layout(**sizes: int) -> ParallelJob:
    """Layout by short names: tp, cp, pp, dp."""
    names = {"tp": "tensor_model", "cp": "context", "pp": "pipeline_model", "dp": "data"}
    return ParallelJob(**{f"{names[axis]}_parallel_size": size for axis, size in sizes.items()})
