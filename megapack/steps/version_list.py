"""The newest versions of a dataset: when each was made, what it holds, what it changed.

Costs the manifests of at most 30 versions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from megapack.records.refs import Ref
from megapack.store.versions import RetiredVersionError, read_version

_MOST = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLine:
    """One version.

    Attributes:
        number: its number.
        made: when (UTC), and by which megapack; "" when it was retired.
        documents: documents placed, or samples.
        rows: rows.
        dropped: documents that were not placed.
        changed: what a refresh changed; how else it came to be.
    """

    number: int
    made: str = ""
    documents: int = 0
    rows: int = 0
    dropped: int = 0
    changed: str = "retired"

    @property
    def cells(self) -> tuple[str | int, ...]:
        """Fields in the order of `HEAD`."""
        if not self.made:
            return (self.number, "", "", "", "", self.changed)
        return (self.number, self.made, self.documents, self.rows, self.dropped, self.changed)


HEAD = ("version", "made", "documents", "rows", "not placed", "what changed")


def version_lines(ref: Ref) -> Iterator[VersionLine]:
    """The versions up to this one, newest first.

    Raises:
        StoreError: the store failed.
    """
    for number in range(ref.version, max(0, ref.version - _MOST), -1):
        try:
            manifest = read_version(ref.uri, number).manifest
        except RetiredVersionError:
            yield VersionLine(number=number)
            continue
        yield VersionLine(
            number=number,
            made=f"{manifest.created_at}, megapack {manifest.package_version}",
            documents=manifest.counts.get(
                "documents_placed", manifest.counts.get("num_samples", 0)
            ),
            rows=manifest.counts.get("num_rows", 0),
            dropped=manifest.drop_ledger().total + manifest.counts.get("samples_rejected", 0),
            changed="prepared whole" if manifest.changes is None else manifest.changes.short(),
        )


def version_text(ref: Ref) -> Iterator[str]:
    """The same as aligned lines.

    Raises:
        StoreError: the store failed.
    """
    yield f"dataset {ref.uri}"
    cells = [one.cells for one in version_lines(ref)]
    shown = [HEAD, *([f"{one:,}" if isinstance(one, int) else one for one in row] for row in cells)]
    widths = [max(len(row[at]) for row in shown) for at in range(len(HEAD))]
    for number, made, *counts, changed in shown:
        told = [number.rjust(widths[0]), made.ljust(widths[1])]
        told += [one.rjust(width) for one, width in zip(counts, widths[2:-1], strict=True)]
        yield "  ".join([*told, changed])
