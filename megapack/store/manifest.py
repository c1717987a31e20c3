"""`Manifest`: what one committed version is made of. Readers go by it and by nothing else.

Its digest covers content alone: parts, counts, drops, and what the records share. When, where, by
which package version and from which settings it was made is recorded beside that, so that the
same data made twice has the same digest.
"""

import platform
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from megapack.errors import ConfigError, ContractError
from megapack.layout.granularity import Granularity
from megapack.records.changes import Changes
from megapack.records.digest import digest_of
from megapack.records.drops import DropLedger
from megapack.store.multimodal_info import MultimodalInfo
from megapack.store.schema import PackedInfo, PayloadInfo

MANIFEST_FORMAT: Literal[1] = 1


class PartKind(StrEnum):
    """What a part holds."""

    ROWS = "rows"
    DOCUMENTS = "documents"
    CONVERSATIONS = "conversations"
    DROPS = "drops"
    PAYLOAD_INDEX = "payload_index"
    PAYLOAD_LOGPROBS = "payload_logprobs"
    PAYLOAD_TOPK = "payload_topk"
    PAYLOAD_HIDDEN = "payload_hidden"
    PAYLOAD_LOGITS = "payload_logits"
    MULTIMODAL_ROWS = "multimodal_rows"
    MULTIMODAL_REJECTS = "multimodal_rejects"
    FILE = "file"


class Split(StrEnum):
    """Which side of the train/validation split a part belongs to."""

    TRAIN = "train"
    VALIDATION = "validation"
    NONE = ""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Part(_Frozen):
    """One object that belongs to a version.

    Attributes:
        key: where it stands, relative to the store's uri; holds its digest.
        size: bytes.
        sha256: hex digest of its bytes.
        num_records: records in it, 0 for a plain file.
        kind: what it holds.
        split: side of the split.
        name: path of a plain file inside its folder, else "".
        counts: further counts, such as tokens.
    """

    key: str = Field(min_length=1)
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    num_records: int = Field(default=0, ge=0)
    kind: PartKind
    split: Split = Split.NONE
    name: str = ""
    counts: Mapping[str, int] = Field(default_factory=dict)


class Manifest(_Frozen):
    """One version.

    Attributes:
        manifest_format: of this class.
        schema_id: schema of its main parts; free text for plain files.
        kind: what the version is, such as `dataset` or `checkpoint`.
        address: digest of the inputs and settings it came from, "" when it has none.
        parts: in reading order.
        counts: totals, such as `num_rows`.
        drops: `DropLedger.as_json`.
        settings: the job's JSON.
        parents: content digests of what it was made from, by role or uri.
        recipe: settings that decide what its rows are, resolved, for packed datasets.
        files: digest of each source file's content by uri, for packed datasets.
        changes: what a refresh found and did, for datasets that one published.
        packed: what all rows share, for packed datasets.
        payload: what all payloads share, for teacher payloads.
        multimodal: what all rows share, for multimodal rows.
        digest: of the content.
        created_at: UTC, ISO 8601.
        package_version: of megapack.
        host: machine that committed it.
        commit_token: random; tells a writer whether the version that stands is its own.
    """

    manifest_format: Literal[1] = MANIFEST_FORMAT
    schema_id: str
    kind: str = Field(min_length=1)
    address: str = ""
    parts: tuple[Part, ...] = ()
    counts: Mapping[str, int] = Field(default_factory=dict)
    drops: Mapping[str, Mapping[str, int]] = Field(default_factory=dict)
    settings: Mapping[str, Any] = Field(default_factory=dict)
    parents: Mapping[str, str] = Field(default_factory=dict)
    recipe: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    files: Mapping[str, str] = Field(default_factory=dict)
    changes: Changes | None = None
    packed: PackedInfo | None = None
    payload: PayloadInfo | None = None
    multimodal: MultimodalInfo | None = None
    digest: str
    created_at: str
    package_version: str
    host: str
    commit_token: str = Field(min_length=1)

    def parts_of(self, kind: PartKind, split: Split | None = None) -> tuple[Part, ...]:
        """Parts of a kind, and of a split when one is named, in reading order."""
        return tuple(
            part
            for part in self.parts
            if part.kind is kind and (split is None or part.split is split)
        )

    def drop_ledger(self) -> DropLedger:
        """Counts of what was left out."""
        return DropLedger.from_json(self.drops) if self.drops else DropLedger()

    def packed_info(self) -> PackedInfo:
        """What all rows share.

        Raises:
            ConfigError: the version is no packed dataset.
        """
        if self.packed is None:
            rows = " (rows of text and images)" if self.multimodal is not None else ""
            raise ConfigError(
                f"expected a packed dataset, found a version of kind {self.kind!r}{rows}. Name the "
                "store of a packed dataset."
            )
        return self.packed

    def multimodal_info(self) -> MultimodalInfo:
        """What all multimodal rows share.

        Raises:
            ConfigError: the version holds none.
        """
        if self.multimodal is None:
            raise ConfigError(
                f"expected packed rows of text and images, found a version of kind {self.kind!r}. "
                "Name a dataset that pack-multimodal wrote."
            )
        return self.multimodal

    def check_reads(self, need: Granularity, *, advice: str) -> None:
        """Refuse a run whose multiples this dataset does not serve.

        Args:
            need: the multiples of the run.
            advice: how to pack rows that serve it, for the message.

        Raises:
            ConfigError: a slot or the row cannot be cut as the run needs it.
        """
        info = self.packed_info()
        stored = info.granularity
        if not stored.serves(need, row_length=info.row_length):
            because = "; ".join(need.reasons) or "no reason recorded"
            raise ConfigError(
                f"the run needs multiples of {need.segment} (segment) and {need.row} (row) "
                f"[{because}]; the dataset's slots are multiples of {stored.segment} and its rows "
                f"have {info.row_length} positions. Pack again with {advice}, or run with a layout "
                "whose multiples divide these."
            )

    def count(self, name: str) -> int:
        """One of the totals.

        Raises:
            ContractError: the manifest has no such count.
        """
        if name not in self.counts:
            raise ContractError(
                f"manifest of kind {self.kind!r}: expected a count {name!r}, found "
                f"{', '.join(sorted(self.counts)) or 'none'}."
            )
        return self.counts[name]

    def content_digest(self) -> str:
        """Digest of what the version holds, whenever and wherever it was made."""
        return _content_digest(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a writer says about a version before it is committed; fields as in `Manifest`."""

    schema_id: str
    kind: str
    parts: Sequence[Part]
    address: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    drops: DropLedger = field(default_factory=DropLedger)
    settings: Mapping[str, Any] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    changes: Changes | None = None
    packed: PackedInfo | None = None
    payload: PayloadInfo | None = None
    multimodal: MultimodalInfo | None = None

    @property
    def num_row_parts(self) -> int:
        """Parts that hold rows."""
        return sum(part.kind is PartKind.ROWS for part in self.parts)

    def manifest(self) -> Manifest:
        """The manifest to commit, with a token of its own."""
        draft = Manifest(
            schema_id=self.schema_id,
            kind=self.kind,
            address=self.address,
            parts=tuple(self.parts),
            counts=dict(self.counts),
            drops=self.drops.as_json(),
            settings=dict(self.settings),
            parents=dict(self.parents),
            recipe=dict(self.recipe),
            files=dict(self.files),
            changes=self.changes,
            packed=self.packed,
            payload=self.payload,
            multimodal=self.multimodal,
            digest="",
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            package_version=_package_version(),
            host=platform.node(),
            commit_token=secrets.token_hex(16),
        )
        return draft.model_copy(update={"digest": _content_digest(draft)})


def _content_digest(manifest: Manifest) -> str:
    content = {"schema_id", "kind", "parts", "counts", "drops", "packed", "payload"}
    if manifest.multimodal is not None:
        # Named only where it is: versions of other kinds keep the digests they have.
        content.add("multimodal")
    return digest_of(manifest.model_dump(mode="json", include=content))


def _package_version() -> str:
    try:
        return version("megapack")
    except PackageNotFoundError:
        return "not installed"
