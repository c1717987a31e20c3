"""A small job over rendered shapes, and the comparison of packed rows."""

from dataclasses import fields

import numpy as np

from infra.shapes.build import Amounts, build_shapes
from infra.shapes.job import shapes_job
from megapack.jobs.multimodal import PackMultimodalJob
from megapack.multimodal.config import DropoutConfig
from megapack.packing.row_limits import RowLimits

LIMITS = RowLimits(
    max_tokens=320,
    expected_tokens=256,
    max_sample_tokens=240,
    prefer_buffer_before=128,
    max_buffered=3,
    max_images=8,
)


def pack_job(folder, *, epochs=1, rows_per_part=3):
    """A job over 20 samples and 5 flaws an epoch; builds the shapes into the folder."""
    amounts = Amounts(captions=8, talks=8, chains=4, held_out=1, flaws=1)
    build_shapes(folder / "data", amounts)
    return PackMultimodalJob(
        stream=shapes_job(str(folder / "data"), limits=LIMITS).model_copy(
            update={"dropout": DropoutConfig(text=0.3, vit=0.3, vae=0.3)}
        ),
        epochs=epochs,
        store=str(folder / "store"),
        name="shapes",
        rows_per_part=rows_per_part,
    )


def same_row(one, other):
    """Whether two packed rows are identical in every field, dtypes and bits included."""
    return all(_same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


def _same(one, other):
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    return one == other
