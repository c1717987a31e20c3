"""What a dataset holds and what was left out, for the run's page, the terminal and the demo."""

from dataclasses import dataclass

from megapack.records.changes import Changes
from megapack.records.drops import DropLedger
from megapack.records.refs import DatasetRef
from megapack.steps.tables import committed
from megapack.steps.wording import counted
from megapack.store.manifest import PartKind, Split


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
        documents_placed: documents in rows.
        drops: what was left out.
        splits: train, then validation.
        changes: what a refresh did; None when the version was prepared as a whole.
    """

    ref: DatasetRef
    row_length: int
    documents_in: int
    documents_placed: int
    drops: DropLedger
    splits: tuple[SplitReport, ...]
    changes: Changes | None = None

    def lines(self) -> list[str]:
        """One line an event, `key=value`."""
        found = [
            f"dataset uri={self.ref.uri} version={self.ref.version} row_length={self.row_length}",
            f"documents in={self.documents_in} placed={self.documents_placed} "
            f"dropped={self.drops.total}",
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
        """Two lines for a person: which version, and how much is in it."""
        rows = sum(one.rows for one in self.splits)
        real = sum(one.real_tokens for one in self.splits)
        targets = sum(one.target_tokens for one in self.splits)
        return [
            f"dataset {self.ref.uri} version {self.ref.version}",
            f"{counted(self.documents_placed, 'document')} of {real:,} tokens, {targets:,} of them "
            f"trained ({targets / max(1, real):.1%}), in {counted(rows, 'row')} of "
            f"{self.row_length:,} ({real / max(1, rows * self.row_length):.1%} full); "
            f"{counted(self.drops.total, 'document')} dropped",
        ]

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
    return PackingReport(
        ref=ref,
        row_length=info.row_length,
        documents_in=manifest.counts.get("documents_in", placed + drops.total),
        documents_placed=placed,
        drops=drops,
        splits=tuple(splits),
        changes=manifest.changes,
    )
