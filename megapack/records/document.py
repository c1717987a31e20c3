"""`Document`: one tokenized conversation (or one piece of a split one), before packing.

Nothing is shifted and nothing is padded here: runs say which *tokens* are supervised. The first
token has nothing before it to be predicted from, so no run may contain it. Letter: n tokens.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megapack.errors import ContractError
from megapack.layout.pack_layout import IGNORE_INDEX
from megapack.layout.runs import Int32, check_runs, count_targets, locked, mask_of_runs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Document:
    """Tokens of one conversation and which of them are supervised.

    Attributes:
        document_id: 32 hex digits, digest of the conversation's content and piece number.
        tokens: int32 [n], n >= 1.
        target_runs: int32 [2R], token-aligned runs of supervised tokens, inside [1, n].
        source: name of the source it came from.
        uri: file it was read from (provenance).
        line: record number in that file, counted from 0 (provenance).
        piece: 0, or the piece's number when a long conversation was split.
    """

    document_id: str
    tokens: Int32
    target_runs: Int32
    source: str = ""
    uri: str = ""
    line: int = 0
    piece: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "target_runs"):
            object.__setattr__(self, name, locked(getattr(self, name)))
        if self.tokens.size < 1:
            raise ContractError(f"Document {self.document_id}: expected at least one token.")
        check_runs(
            self.target_runs,
            low=1,
            high=self.tokens.size,
            where=f"Document {self.document_id}.target_runs",
        )

    @property
    def num_tokens(self) -> int:
        """n."""
        return int(self.tokens.size)

    @property
    def num_target_tokens(self) -> int:
        """Supervised tokens."""
        return count_targets(self.target_runs)

    def labels(self, num_positions: int | None = None) -> npt.NDArray[np.int32]:
        """int32 [m], target-aligned: the next token where it is supervised, else IGNORE_INDEX.

        Args:
            num_positions: m, n by default; n - 1 when the last token is only a label.
        """
        length = self.num_tokens if num_positions is None else num_positions
        following = np.append(self.tokens[1:], np.int32(IGNORE_INDEX))
        mask = np.append(mask_of_runs(self.target_runs, self.num_tokens)[1:], False)
        return np.where(mask, following, np.int32(IGNORE_INDEX))[:length]


def labels_digest(tokens: npt.ArrayLike, labels: npt.ArrayLike) -> int:
    """64-bit digest of a document's positions, to refuse a payload join on other tokens.

    Args:
        tokens: int [m], the document's tokens at its positions.
        labels: int [m], target-aligned, IGNORE_INDEX where masked.

    Returns:
        BLAKE2b-64 of both arrays as little-endian int32, as an unsigned integer.
    """
    digest = hashlib.blake2b(digest_size=8)
    for array in (tokens, labels):
        digest.update(np.ascontiguousarray(array, dtype="<i4").tobytes())
    return int.from_bytes(digest.digest(), "little")
