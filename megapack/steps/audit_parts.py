"""The parts of a dataset under audit: those to look into, and what is wrong with the others."""

from collections import Counter
from collections.abc import Iterator

import polars as pl

from megapack.errors import ContractError, DataError
from megapack.store.committed import Committed
from megapack.store.location import open_location
from megapack.store.manifest import Part, PartKind
from megapack.store.part_reader import IncompletePartError, PartReader, Verify
from megapack.store.schema import SchemaId, check_frame


class Findings:
    """Checks made and violations met."""

    def __init__(self) -> None:
        self.rows = 0
        self.checks = 0
        self.unread = 0
        self.violations: list[str] = []

    def part_unread(self, message: str) -> None:
        """One check: a part that cannot be looked into."""
        self.checks += 1
        self.unread += 1
        self.violations.append(message)

    def equal(self, what: str, *, expected: object, found: object) -> None:
        """One check: two numbers that must be the same."""
        self.checks += 1
        if expected != found:
            self.violations.append(f"{what}: expected {expected}, found {found}")


def sound_parts(
    version: Committed, kind: PartKind, findings: Findings
) -> Iterator[tuple[Part, pl.DataFrame]]:
    """Parts that can be looked into; each of the others is a violation."""
    reader = PartReader(open_location(version.uri), verify=Verify.SHA256)
    schema = SchemaId.PACKED_ROWS if kind is PartKind.ROWS else SchemaId.DROPS
    for part in version.manifest.parts_of(kind):
        try:
            frame = reader.read(part)
            check_frame(frame, schema)
        except (IncompletePartError, DataError) as error:
            findings.part_unread(str(error))
            continue
        except ContractError as error:
            findings.part_unread(f"{part.key}: {error}")
            continue
        nulls = _columns_with_nulls(frame)
        if nulls:
            findings.part_unread(f"{part.key}: expected no null in {', '.join(nulls)}, found some")
            continue
        yield part, frame


def _columns_with_nulls(frame: pl.DataFrame) -> list[str]:
    """Columns with a null, or with one inside a list; `final_label` may have them."""
    found = []
    for column in frame.drop("final_label", strict=False).iter_columns():
        inside = (
            isinstance(column.dtype, pl.List)
            and column.list.eval(pl.element().is_null()).list.any().any()
        )
        if column.null_count() or inside:
            found.append(column.name)
    return found


def check_drops(version: Committed, findings: Findings) -> None:
    """The drops that are listed are those that are counted."""
    before = findings.unread
    listed: Counter[str] = Counter()
    for _, frame in sound_parts(version, PartKind.DROPS, findings):
        listed.update(frame["reason"].to_list())
    if findings.unread == before:
        counted = version.manifest.drop_ledger().documents
        expected = {reason.value: count for reason, count in sorted(counted.items())}
        findings.equal("drops listed", expected=expected, found=dict(sorted(listed.items())))
