"""Top-k payloads as plain columns, for queries: one row a position, lists of log-probs and ids.

Parts keep them as planes of bytes, which are half the size and which no query language reads.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from megapack.errors import ConfigError
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.store.payload_frames import frame_to_payloads
from megapack.store.schema import KindInfo

_DTYPES = {2: PayloadDtype.FP16, 4: PayloadDtype.FP32}
_COLUMNS = pl.Schema(
    {
        "document_id": pl.String(),
        "position": pl.Int32(),
        "target_logprob": pl.Float32(),
        "tail_logprob": pl.Float32(),
        "logprobs": pl.List(pl.Float32()),
        "ids": pl.List(pl.Int32()),
    }
)


def top_positions(frame: pl.DataFrame) -> pl.DataFrame:
    """Positions of a part of kind topk, read with any reader of Parquet.

    Args:
        frame: records of the part, all columns.

    Returns:
        `document_id`, `position` from 0, `target_logprob` (NaN where no label counts),
        `tail_logprob`, `logprobs` and `ids` [K] with the likeliest first; natural logarithms.

    Raises:
        ConfigError: the frame holds another kind.
        ContractError: the columns are not those of the schema.
        DataError: a record contradicts itself.
    """
    if "indices" not in frame.columns or frame["indices"].null_count():
        raise ConfigError(
            "top_positions: expected records of a part of kind topk, found records without "
            "indices. Read a part whose kind in the manifest is payload_topk."
        )
    if not frame.height:
        return pl.DataFrame(schema=_COLUMNS)
    kind = _kind_of(frame)
    payloads = list(frame_to_payloads(frame, kind=kind, where="top_positions"))
    lengths = [one.num_positions for one in payloads]
    tails = [one.tail_logprobs for one in payloads if one.tail_logprobs is not None]
    indices = [one.indices for one in payloads if one.indices is not None]
    return pl.DataFrame(
        {
            "document_id": np.repeat([one.document_id for one in payloads], lengths),
            "position": np.concatenate([np.arange(one, dtype=np.int32) for one in lengths]),
            "target_logprob": np.concatenate([one.target_logprobs for one in payloads]),
            "tail_logprob": np.concatenate(tails),
            "logprobs": _lists(np.concatenate([one.values.astype(np.float32) for one in payloads])),
            "ids": _lists(np.concatenate(indices)),
        },
        schema=_COLUMNS,
    )


def _kind_of(frame: pl.DataFrame) -> KindInfo:
    """What the records are: their dtype follows from their size."""
    width, positions, size = frame.select(
        pl.col("width").first(), pl.col("num_tokens").sum(), pl.col("values").bin.size().sum()
    ).row(0)
    dtype = _DTYPES.get(size // max(1, positions * width), PayloadDtype.FP16)
    return KindInfo(kind=PayloadKind.TOPK, dtype=dtype, width=width)


def _lists(values: npt.NDArray[Any]) -> pl.Series:
    return pl.Series(values, dtype=pl.Array(_inner(values), values.shape[1])).arr.to_list()


def _inner(values: npt.NDArray[Any]) -> pl.DataType:
    return pl.Float32() if values.dtype == np.float32 else pl.Int32()
