"""What a dataset holds and what was left out, for the run's page, the terminal and the demo."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from megapack.packing.config import BlendUnit
from megapack.records.changes import Changes
from megapack.records.drops import DropLedger, DropReason
from megapack.records.refs import DatasetRef
from megapack.steps.report_settings import asked_shares, settings_line
from megapack.steps.tables import committed
from megapack.steps.wording import counted
from megapack.store.manifest import PartKind, Split

WANTED = (DropReason.DUPLICATE, DropReason.LEFT_OUT_BY_BLEND)
"""Reasons that are no loss: the job asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """One side of the train/validation split.

    Attributes:
        name: `train` or `validation`.
        documents: documents placed.
        rows: rows.
        real_tokens: real positions.
        target_tokens: positions whose label counts.
        fill: real positions over all positions.
    """

    name: str
    documents: int
    rows: int
    real_tokens: int
    target_tokens: int
    fill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingReport:
    """What a dataset version holds.

    Attributes:
        ref: the version.
        row_length: positions in a row.
        documents_in: documents that came in, pieces of split conversations included.
        documents_placed: documents in rows, each as often as it stands there.
        documents_copied: places among those beyond the first of a document, by a blend.
        drops: what was left out.
        splits: train, then validation.
        changes: what a refresh did; None when the version was prepared as a whole.
        settings: one line on what is trained and how it was packed, "" when not recorded.
        blend_unit: what the weights of a blend mean, None without one.
        asked: by source what the blend asked for, in that unit.
    """

    ref: DatasetRef
    row_length: int
    documents_in: int
    documents_placed: int
    drops: DropLedger
    splits: tuple[SplitReport, ...]
    changes: Changes | None = None
    documents_copied: int = 0
    settings: str = ""
    blend_unit: BlendUnit | None = None
    asked: Mapping[str, float] = field(default_factory=dict)

    @property
    def left_out(self) -> int:
        """Documents that the job itself asks to leave out."""
        return sum(self.drops.documents.get(reason, 0) for reason in WANTED)

    @property
    def lost(self) -> int:
        """Documents that were dropped for any other reason."""
        return self.drops.total - self.left_out

    def lines(self) -> list[str]:
        """One line an event, `key=value`."""
        found = [
            f"dataset uri={self.ref.uri} version={self.ref.version} row_length={self.row_length}",
            f"documents in={self.documents_in} placed={self.documents_placed} "
            f"dropped={self.drops.total}"
            + (f" copied={self.documents_copied}" if self.documents_copied else ""),
        ]
        found += [
            f"dropped reason={reason.value} documents={count}"
            + (f" tokens={self.drops.tokens[reason]}" if reason in self.drops.tokens else "")
            for reason, count in self.drops.documents.items()
        ]
        found += [
            f"{one.name} documents={one.documents} rows={one.rows} fill={one.fill:.4f} "
            f"real_tokens={one.real_tokens} target_tokens={one.target_tokens}"
            for one in self.splits
        ]
        return found

    def headline(self) -> list[str]:
        """For a person: which version, how much is in it, and what is trained."""
        rows = sum(one.rows for one in self.splits)
        real = sum(one.real_tokens for one in self.splits)
        targets = sum(one.target_tokens for one in self.splits)
        wanted = f"{counted(self.left_out, 'document')} left out as the job asks, "
        found = [
            f"dataset {self.ref.uri} version {self.ref.version}",
            f"{counted(self.documents_placed, 'document')} of {real:,} tokens, {targets:,} of them "
            f"trained ({targets / max(1, real):.1%}), in {counted(rows, 'row')} of "
            f"{self.row_length:,} ({real / max(1, rows * self.row_length):.1%} full); "
            f"{wanted if self.left_out else ''}{counted(self.lost, 'document')} dropped",
        ]
        return [*found, self.settings] if self.settings else found

    def table(self) -> list[dict[str, str | int]]:
        """The same as rows of a table: what, how many documents, tokens."""
        table: list[dict[str, str | int]] = [
            {"what": "documents in", "documents": self.documents_in, "tokens": "", "rows": ""}
        ]
        table += [
            {
                "what": f"placed in {one.name} (fill {one.fill:.2%}, {one.target_tokens} targets)",
                "documents": one.documents,
                "tokens": one.real_tokens,
                "rows": one.rows,
            }
            for one in self.splits
        ]
        if self.documents_copied:
            what, copied = "of these, placed again by the blend", self.documents_copied
            table.append({"what": what, "documents": copied, "tokens": "", "rows": ""})
        table += [
            {
                "what": f"dropped: {reason.value}",
                "documents": count,
                "tokens": self.drops.tokens.get(reason, ""),
                "rows": "",
            }
            for reason, count in self.drops.documents.items()
        ]
        return table


def packing_report(ref: DatasetRef) -> PackingReport:
    """Report on a dataset version, from its manifest alone.

    Raises:
        ConfigError: the version is no packed dataset.
        StoreError: the store failed.
    """
    manifest = committed(ref).manifest
    info = manifest.packed_info()
    splits = []
    for split in (Split.TRAIN, Split.VALIDATION):
        parts = manifest.parts_of(PartKind.ROWS, split)
        rows = sum(part.num_records for part in parts)
        real = sum(part.counts["num_real_tokens"] for part in parts)
        splits.append(
            SplitReport(
                name=split.value,
                documents=sum(part.counts["num_documents"] for part in parts),
                rows=rows,
                real_tokens=real,
                target_tokens=sum(part.counts["num_target_tokens"] for part in parts),
                fill=real / (rows * info.row_length) if rows else 0.0,
            )
        )
    placed, drops = sum(one.documents for one in splits), manifest.drop_ledger()
    copied = manifest.counts.get("documents_copied", 0)
    unit, asked = asked_shares(manifest.settings)
    return PackingReport(
        ref=ref,
        row_length=info.row_length,
        documents_in=manifest.counts.get("documents_in", placed - copied + drops.total),
        documents_placed=placed,
        drops=drops,
        splits=tuple(splits),
        changes=manifest.changes,
        documents_copied=copied,
        settings=settings_line(manifest.settings),
        blend_unit=unit,
        asked=asked,
    )
