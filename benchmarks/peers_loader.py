"""Peers of loading: a packed row to the tensors of a training step, on one rank.

Each maker takes rows, lets the peer prepare what it prepares once, and gives a function from a row
number to its `RowTensors`. Peers lay a row out differently (Megatron-Bridge leaves the last token
of every document out), so rows are compared by what they train: `supervision` lists it.
Makers raise ImportError when the peer is not there.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.alone import import_alone
from benchmarks.inputs import TokenRow

# No id of a text: peers drop positions that hold the end or the padding id from the loss.
_UNUSED_ID = 999
_IGNORED = -100


class RowTensors(NamedTuple):
    """One row, as arrays or tensors over T positions.

    Attributes:
        tokens: [T].
        labels: [T], the id that position t predicts.
        mask: [T], 0 where the label does not count.
        positions: [T], from 0 in each document.
        cu_seqlens: boundaries of documents, from 0.
    """

    tokens: Any
    labels: Any
    mask: Any
    positions: Any
    cu_seqlens: Any


Load = Callable[[int], RowTensors]


def supervision(row: RowTensors) -> NDArray[np.int64]:
    """What a row trains, whatever its layout.

    Returns:
        int64 [k, 4], one line for each label that counts: document, position in it, id there, and
        the id to predict.
    """
    tokens, labels, mask, positions, bounds = (np.asarray(field).reshape(-1) for field in row)
    at = np.flatnonzero((mask != 0) & (labels != _IGNORED))
    documents = np.searchsorted(bounds, at, side="right") - 1
    return np.stack([documents, positions[at], tokens[at], labels[at]], axis=1).astype(np.int64)


def expected_supervision(row: TokenRow) -> NDArray[np.int64]:
    """The same from the row itself, document by document: the reference for every loader."""
    lines = []
    begin = 0
    for number, length in enumerate(row.lengths.tolist()):
        tokens = row.tokens[begin : begin + length].tolist()
        mask = row.mask[begin : begin + length].tolist()
        lines += [
            (number, at, tokens[at], tokens[at + 1]) for at in range(length - 1) if mask[at + 1]
        ]
        begin += length
    return np.asarray(lines, np.int64).reshape(-1, 4)


def megatron_bridge(rows: Sequence[TokenRow], folder: Path) -> Load:
    """Megatron-Bridge's packed Parquet: its writer, `GPTSFTPackedParquetDataset` and `collate_fn`.

    Args:
        rows: to write first.
        folder: an empty folder.
    """
    # Its tokenizer class is a type annotation here; importing it would need TransformerEngine.
    stand_in = {"megatron.bridge.training.tokenizers.tokenizer": {"MegatronTokenizer": object}}
    for parent in ("data.datasets.gpt_sft", "utils.safe_pickle"):
        import_alone(f"megatron.bridge.{parent}", stand_ins=stand_in)
    bridge = import_alone("megatron.bridge.data.packing.parquet", stand_ins=stand_in)
    path = folder / "rows.idx.parquet"
    bridge.write_packed_parquet([_bridge_row(row) for row in rows], path)
    dataset = bridge.GPTSFTPackedParquetDataset(
        str(path),
        SimpleNamespace(eos_id=_UNUSED_ID),
        max_seq_length=max(row.tokens.size for row in rows),
        prompt_template="{text} {answer}",
    )

    def load(number: int) -> RowTensors:
        made = dataset.collate_fn([dataset[number]])
        names = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens_q")
        return RowTensors(*(made[name] for name in names))

    return load


def megatron_sft_dataset(rows: Sequence[TokenRow]) -> Load:
    """megatron-core's `SFTDataset.__getitem__` with tokenizing made free.

    Its tokenizer hands out ids that are there already, so only the work on the row is timed.
    """
    module = import_alone("megatron.training.datasets.sft_dataset")
    conversations: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
    merged: list[list[dict[str, Any]]] = []
    for row in rows:
        messages = []
        for tokens, mask in _documents(row):
            messages.append({"role": "system", "content": len(conversations)})
            conversations.append((tokens, np.where(mask, tokens, _IGNORED).astype(np.int32)))
        merged.append(messages)

    def tokenize(conversation: Sequence[dict[str, Any]], **_: bool) -> Any:  # noqa: ANN401
        return conversations[conversation[0]["content"]]

    dataset = object.__new__(module.SFTDataset)
    tokenizer = SimpleNamespace(tokenize_conversation=tokenize, eod=_UNUSED_ID, pad=_UNUSED_ID)
    vars(dataset).update(
        dataset=merged,
        indices=np.arange(len(merged)),
        config=SimpleNamespace(
            tokenizer=tokenizer,
            sequence_length=rows[0].tokens.size,
            context_parallel_size=1,
            reset_position_ids=False,
            reset_attention_mask=False,
            create_attention_mask=False,
        ),
    )

    def load(number: int) -> RowTensors:
        made = dataset[number]
        names = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens")
        return RowTensors(*(made[name] for name in names))

    return load


def hugging_face_flattening(rows: Sequence[TokenRow]) -> Load:
    """`DataCollatorWithFlattening` over documents that are lists in memory already.

    Its labels are aligned with tokens, as Hugging Face models shift inside; `load` shifts them by
    views, and the mask is one comparison more than the peer makes.
    """
    transformers = import_module("transformers")
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    features = [
        [
            {"input_ids": tokens.tolist(), "labels": np.where(mask, tokens, _IGNORED).tolist()}
            for tokens, mask in _documents(row)
        ]
        for row in rows
    ]

    def load(number: int) -> RowTensors:
        made = collate(features[number])
        tokens, labels = made["input_ids"][0, :-1], made["labels"][0, 1:]
        positions = made["position_ids"][0, :-1]
        return RowTensors(tokens, labels, labels != _IGNORED, positions, made["cu_seq_lens_q"])

    return load


def _bridge_row(row: TokenRow) -> dict[str, list[int]]:
    """Megatron-Bridge aligns the mask with what a position predicts."""
    starts = np.cumsum(row.lengths) - row.lengths
    target = np.append(row.mask[1:], 0)
    return {
        "input_ids": row.tokens.tolist(),
        "loss_mask": target.tolist(),
        "seq_start_id": starts.tolist(),
    }


def _documents(row: TokenRow) -> list[tuple[NDArray[np.int32], NDArray[np.uint8]]]:
    cuts = np.cumsum(row.lengths)[:-1]
    return list(zip(np.split(row.tokens, cuts), np.split(row.mask, cuts), strict=True))
