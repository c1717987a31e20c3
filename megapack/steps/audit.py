"""Check a committed dataset against what its manifest promises, before a GPU is spent on it.

Columns that need no tokens are checked for every row. Tokens, masks and boundaries are checked row
by row for at most `MOST_ROWS` rows of each part, spread evenly; a dataset below that is checked
whole. A part that is missing, damaged or of another form is a violation, and the other parts are
still checked.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from megapack.errors import DataError, MegapackError
from megapack.records.packed_row import PackedRow
from megapack.records.refs import DatasetRef
from megapack.steps.audit_parts import Findings, check_drops, sound_parts
from megapack.steps.tables import committed
from megapack.store.manifest import Manifest, Part, PartKind, Split
from megapack.store.row_frames import frame_to_rows
from megapack.store.schema import PackedInfo

MOST_ROWS = 4096
OnRows = Callable[[int, int], None]
"""Told how many rows are done, and how many there are."""
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What an audit found.

    Attributes:
        num_rows: rows whose tokens were looked at.
        num_checks: single checks made.
        violations: one line each; none when the dataset is sound.
    """

    num_rows: int
    num_checks: int
    violations: tuple[str, ...]

    def check(self) -> None:
        """Refuse an unsound dataset.

        Raises:
            DataError: there are violations; the message lists the first of them.
        """
        if self.violations:
            listed = "\n  ".join(self.violations[:_SHOWN])
            raise DataError(f"audit: {len(self.violations)} violations:\n  {listed}")


def audit(ref: DatasetRef, *, on_rows: OnRows | None = None) -> AuditReport:
    """Check one dataset version.

    Args:
        ref: the version.
        on_rows: told how many rows are done, those between the samples too, and how many there are.

    Returns:
        The report; nothing is raised for a violation.

    Raises:
        ConfigError: there is no such version, or it is no packed dataset.
        StoreError: the store failed, or the manifest is not the one of the reference.
    """
    version = committed(ref)
    info = version.manifest.packed_info()
    findings = Findings()
    totals: Counter[str] = Counter()
    sides: dict[Split, set[str]] = {Split.TRAIN: set(), Split.VALIDATION: set()}
    placed = 0
    all_rows = sum(part.num_records for part in version.manifest.parts_of(PartKind.ROWS))
    for part, frame in sound_parts(version, PartKind.ROWS, findings):
        before = totals["num_rows"]
        totals.update(_check_columns(frame, part, info, findings))
        for at, row in _rows(frame, part, info, findings):
            _check_row(row, info, findings, where=part.key)
            if on_rows is not None:
                on_rows(before + at + 1, all_rows)
        ids = frame["document_ids"].explode(empty_as_null=False).to_list()
        placed += len(ids)
        sides[part.split].update(ids)
    if not findings.unread:
        _check_manifest(version.manifest, totals, placed, findings)
    check_drops(version, findings)
    shared = sides[Split.TRAIN] & sides[Split.VALIDATION]
    findings.equal("documents on both sides of the split", expected=0, found=len(shared))
    return AuditReport(
        num_rows=findings.rows,
        num_checks=findings.checks,
        violations=tuple(findings.violations),
    )


def _check_manifest(
    manifest: Manifest, totals: Counter[str], placed: int, findings: Findings
) -> None:
    for name in ("num_rows", "num_real_tokens", "num_target_tokens"):
        findings.equal(f"manifest {name}", expected=totals[name], found=manifest.counts.get(name))
    findings.equal(
        "manifest documents_placed", expected=placed, found=manifest.counts.get("documents_placed")
    )
    findings.equal(
        "documents in = placed + dropped",
        expected=manifest.counts.get("documents_in"),
        found=placed - manifest.counts.get("documents_copied", 0) + manifest.drop_ledger().total,
    )


def _check_columns(
    frame: pl.DataFrame, part: Part, info: PackedInfo, findings: Findings
) -> dict[str, int]:
    """What can be told without tokens; returns the part's totals."""
    findings.equal(f"{part.key} records", expected=part.num_records, found=frame.height)
    slots = frame.select(
        (
            pl.col("lengths").list.eval(
                (pl.element().cast(pl.Int64) + info.segment_granularity - 1)
                // info.segment_granularity
                * info.segment_granularity
            )
        )
        .list.sum()
        .alias("slots"),
        pl.col("lengths").list.eval(pl.element().cast(pl.Int64)).list.sum().alias("real"),
        pl.col("lengths")
        .list.eval(pl.element().cast(pl.Int64) * (pl.element().cast(pl.Int64) + 1) // 2)
        .list.sum()
        .alias("cost"),
        pl.col("lengths").list.len().alias("segments"),
        pl.col("document_ids").list.len().alias("ids"),
    )
    findings.equal(
        f"{part.key} rows longer than {info.row_length}",
        expected=0,
        found=int((slots["slots"] > info.row_length).sum()),
    )
    findings.equal(
        f"{part.key} rows whose segments and document ids differ in number",
        expected=0,
        found=int((slots["segments"] != slots["ids"]).sum()),
    )
    findings.equal(
        f"{part.key} rows whose num_real_tokens is not the sum of their lengths",
        expected=0,
        found=int((slots["real"] != frame["num_real_tokens"]).sum()),
    )
    findings.equal(
        f"{part.key} rows whose cost is not that of their lengths",
        expected=0,
        found=int((slots["cost"] != frame["cost"]).sum()),
    )
    totals = {
        "num_real_tokens": int(slots["real"].sum()),
        "num_target_tokens": int(frame["num_target_tokens"].cast(pl.Int64).sum()),
        "num_documents": int(slots["ids"].sum()),
    }
    for name, total in totals.items():
        if name in part.counts:
            findings.equal(f"{part.key} {name}", expected=total, found=part.counts[name])
    return {"num_rows": frame.height, **totals}


def _rows(
    frame: pl.DataFrame, part: Part, info: PackedInfo, findings: Findings
) -> Iterator[tuple[int, PackedRow]]:
    """Rows to look at, with their places; one that cannot be built is a violation."""
    step = max(1, -(-frame.height // MOST_ROWS))
    sampled = frame.gather_every(step)
    expected = sampled["num_target_tokens"].to_list()
    for at in range(sampled.height):
        try:
            row = next(frame_to_rows(sampled.slice(at, 1), info=info, where=part.key))
        except MegapackError as error:
            findings.checks += 1
            findings.violations.append(str(error))
            continue
        findings.rows += 1
        findings.equal(
            f"{part.key} row {at * step} num_target_tokens",
            expected=expected[at],
            found=row.num_target_tokens,
        )
        yield at * step, row


def _check_row(row: PackedRow, info: PackedInfo, findings: Findings, *, where: str) -> None:
    """Ids inside the vocabulary; padding holds the pad id, so that it cannot pass for content."""
    outside = int(((row.tokens < 0) | (row.tokens >= info.vocab_size)).sum())
    findings.equal(f"{where} token ids outside [0, {info.vocab_size})", expected=0, found=outside)
    padding = row.tokens[row.layout.padding_mask()]
    findings.equal(
        f"{where} padding positions that do not hold pad id {info.pad_id}",
        expected=0,
        found=int(np.count_nonzero(padding != info.pad_id)),
    )
    if row.final_label is not None:
        inside = 0 <= row.final_label < info.vocab_size
        findings.equal(
            f"{where} final_label {row.final_label} in [0, {info.vocab_size})",
            expected=True,
            found=inside,
        )
        findings.equal(
            f"{where} final_label reached by a target run of the row's only document",
            expected=True,
            found=_reaches_end(row),
        )


def _reaches_end(row: PackedRow) -> bool:
    runs = row.target_runs
    full = row.layout.num_segments == 1 and row.num_real_tokens == row.layout.row_length
    return full and bool(runs.size) and int(runs[-1]) == row.layout.row_length
