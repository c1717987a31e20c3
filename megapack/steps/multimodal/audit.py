"""Check a stored multimodal dataset against what its manifest and its own rules promise.

Sizes, places, ids, noise levels and provenance are checked for every row, without pixels. At most
`MOST_ROWS` rows, spread evenly, are assembled as well: their images decode, their indexes lie where
they belong, and both forms of their masks agree. A part that is missing or damaged is a violation,
and the others are still checked.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from megapack.errors import MegapackError, StoreError
from megapack.packing.row_limits import RowLimits
from megapack.records.refs import MultimodalRef
from megapack.steps.audit import AuditReport
from megapack.steps.audit_parts import Findings
from megapack.steps.multimodal.audit_rows import check_assembled, check_samples
from megapack.steps.multimodal.stored import StoredRows
from megapack.steps.tables import committed
from megapack.store.manifest import Part
from megapack.store.multimodal_parts import TOTALS, row_totals
from megapack.store.multimodal_table import SIZES, StoredRow
from megapack.store.part_reader import IncompletePartError, Verify

MOST_ROWS = 32
OnRows = Callable[[int, int], None]
"""Told how many rows are done, and how many there are."""
_Key = tuple[int, str, str, str, int, int]


def audit_multimodal(ref: MultimodalRef, *, on_rows: OnRows | None = None) -> AuditReport:
    """Check one version.

    Args:
        ref: the version.
        on_rows: told how it goes on.

    Returns:
        The report; nothing is raised for a violation.

    Raises:
        ConfigError: there is no such version, or it holds other rows.
        StoreError: the store failed, or the manifest is not the one of the reference.
    """
    stored = StoredRows(committed(ref), verify=Verify.SHA256)
    audit = _Audit(stored, on_rows)
    for number in range(len(stored.reader.parts)):
        audit.part(number)
    audit.totals()
    stored.close()
    return AuditReport(
        num_rows=audit.findings.rows,
        num_checks=audit.findings.checks,
        violations=tuple(audit.findings.violations),
    )


@dataclass(slots=True)
class _Seen:
    """Samples met, by where they come from, and how many of each group."""

    keys: set[int]
    placed: Counter[str]

    def twice(self, key: _Key) -> bool:
        """Whether a sample was met before in the same epoch and reading."""
        digest = hash(key)
        if digest in self.keys:
            return True
        self.keys.add(digest)
        return False


class _Audit:
    def __init__(self, stored: StoredRows, on_rows: OnRows | None) -> None:
        self.findings = Findings()
        self._stored = stored
        self._on_rows = on_rows
        self._step = max(1, -(-stored.num_rows // MOST_ROWS))
        self._seen = _Seen(keys=set(), placed=Counter())
        self._done = 0
        self._epoch = 0

    def part(self, number: int) -> None:
        """Check a part: its counts, and each of its rows."""
        part = self._stored.reader.parts[number]
        try:
            planned = self._stored.reader.planning(number).to_pylist()
        except IncompletePartError as error:
            self.findings.part_unread(str(error))
            return
        except MegapackError as error:
            if isinstance(error, StoreError):
                raise
            self.findings.part_unread(str(error))
            return
        for name in TOTALS:
            self.findings.equal(
                f"{part.key} {name}",
                expected=part.counts.get(name),
                found=sum(record[name] for record in planned),
            )
        for at, record in enumerate(planned):
            self._row(part, number, at, record)
            self._done += 1
            if self._on_rows is not None:
                self._on_rows(self._done, self._stored.num_rows)

    def totals(self) -> None:
        """The manifest counts what its parts hold, and the law of the ledger."""
        manifest = self._stored.reader.version.manifest
        for name, total in row_totals(manifest.parts).items():
            self.findings.equal(f"manifest {name}", expected=total, found=manifest.counts.get(name))
        ledger = self._stored.reader.info.ledger
        held = {group: count for group in ledger.drawn if (count := ledger.held(group))}
        self.findings.equal("samples neither placed nor rejected", expected={}, found=held)
        if self.findings.unread:
            return
        self.findings.equal(
            "samples placed, by group",
            expected=dict(sorted(ledger.placed.items())),
            found=dict(sorted(self._seen.placed.items())),
        )
        self._rejects()

    def _rejects(self) -> None:
        ledger = self._stored.reader.info.ledger
        listed: dict[str, Counter[str]] = {}
        twice = 0
        try:
            records = self._stored.reader.rejects().to_pylist()
        except (IncompletePartError, MegapackError) as error:
            self.findings.part_unread(str(error))
            return
        for one in records:
            listed.setdefault(one["group"], Counter())[one["reason"]] += 1
            names = ("epoch", "group", "source", "file", "row", "reading")
            key: _Key = tuple(one[name] for name in names)
            twice += self._seen.twice(key)
        self.findings.equal("rejected samples met before", expected=0, found=twice)
        self.findings.equal(
            "rejects listed",
            expected={
                group: {reason.value: count for reason, count in sorted(reasons.items())}
                for group, reasons in sorted(ledger.rejected.items())
                if reasons
            },
            found={group: dict(sorted(found.items())) for group, found in sorted(listed.items())},
        )

    def _row(self, part: Part, number: int, at: int, planned: dict[str, int]) -> None:
        where = f"{part.key} row {at}"
        try:
            row = self._stored.reader.row_of(number, at)
        except MegapackError as error:
            if isinstance(error, StoreError) and not isinstance(error, IncompletePartError):
                raise
            self.findings.part_unread(str(error))
            return
        self.findings.rows += 1
        self._planning(row, planned, where=where)
        self._provenance(row, where=where)
        stored = self._stored
        faults = list(check_samples(row, stored.rules, stored.limits, stored.vocab_size))
        self.findings.checks += len(row.laid)
        if not faults and self._done % self._step == 0:
            self.findings.checks += 1
            faults = list(check_assembled(row, stored.rules))
        self.findings.violations += [f"{where}: {fault}" for fault in faults]

    def _planning(self, row: StoredRow, planned: dict[str, int], *, where: str) -> None:
        size = row.size
        expected = {name: getattr(size, name) for name in SIZES} | {"num_samples": len(row.laid)}
        found = {name: planned[name] for name in expected}
        self.findings.equal(f"{where} planning columns", expected=expected, found=found)
        limits: RowLimits = self._stored.limits
        self.findings.equal(f"{where} budget exceeded", expected=None, found=limits.exceeded(size))

    def _provenance(self, row: StoredRow, *, where: str) -> None:
        follows = row.epoch in (self._epoch, self._epoch + 1) if self._done else row.epoch == 0
        if not follows:
            self.findings.violations.append(
                f"{where}: expected epochs from 0 on, one after the other, found {row.epoch} after "
                f"{self._epoch}"
            )
        self._epoch = row.epoch
        twice, nowhere = [], []
        for one in row.laid:
            ref = one.sample.ref
            if min(ref.row, ref.reading) < 0:
                nowhere.append(ref)
            self._seen.placed[ref.group] += 1
            key = (row.epoch, ref.group, ref.source, ref.file, ref.row, ref.reading)
            if self._seen.twice(key):
                twice.append(ref)
        self.findings.equal(f"{where} samples placed before", expected=[], found=twice)
        self.findings.equal(f"{where} samples from nowhere", expected=[], found=nowhere)
