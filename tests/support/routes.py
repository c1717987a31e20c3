"""Random routes for the documents of rows; no torch."""

from collections.abc import Sequence

import numpy as np

from megapack.records.packed_row import PackedRow
from megapack.records.routed_experts import RoutedExperts, RouteShape


def random_routes(
    rows: Sequence[PackedRow], shape: RouteShape, *, seed: int
) -> list[RoutedExperts]:
    """Distinct random experts for each position and layer of each document."""
    draw = np.random.default_rng(seed)
    return [
        RoutedExperts(
            document_id=document_id,
            experts=draw.random((length, shape.num_layers, shape.num_experts))
            .argsort(axis=-1)[..., : shape.top_k]
            .astype(np.int16),
        )
        for row in rows
        for document_id, length in zip(row.document_ids, row.layout.lengths.tolist(), strict=True)
    ]
