"""The pictures of a packing report: lengths, fill, supervised shares, sources."""

import numpy as np

from megapack.steps.charts import Bars, binned
from megapack.steps.report_details import SHARE_BINS, PackingDetails

_FILL_BINS = 20
_MOST_LOW = 90


def charts(details: PackingDetails) -> list[Bars]:
    """Three charts, in the order in which they are read."""
    edges, counts = binned(details.lengths)
    return [
        Bars(
            title="Length of documents",
            x_label="positions",
            y_label="documents",
            edges=edges,
            counts=counts,
        ),
        _fill(details),
        Bars(
            title="Share of a document that is trained",
            x_label="trained positions over all its positions",
            y_label="documents",
            edges=[f"{at / SHARE_BINS:.0%}" for at in range(SHARE_BINS + 1)],
            counts=details.shares.tolist(),
        ),
    ]


def _fill(details: PackingDetails) -> Bars:
    """Rows by fill, from the emptiest row on, so that full rows do not hide the differences."""
    length = details.fill.size - 1
    percents = np.arange(details.fill.size) * 100 / length
    present = np.flatnonzero(details.fill)
    low = min(_MOST_LOW, int(percents[present[0]])) if present.size else 0
    width = (100 - low) / _FILL_BINS
    bins = np.clip((percents - low) / width, 0, _FILL_BINS - 1).astype(np.int64)
    counts = np.bincount(bins, details.fill, _FILL_BINS)
    return Bars(
        title="How full rows are",
        x_label="real tokens over positions of a row",
        y_label="rows",
        edges=[f"{low + at * width:.4g}%" for at in range(_FILL_BINS + 1)],
        counts=[int(count) for count in counts],
    )
