"""Check a committed dataset against what its manifest promises, before a GPU is spent on it.

Columns that need no tokens are checked for every row. Tokens, masks and boundaries are checked row
by row for at most `MOST_ROWS` rows of each part, spread evenly; a dataset below that is checked
whole.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from megapack.errors import DataError, MegapackError
from megapack.records.packed_row import PackedRow
from megapack.records.refs import DatasetRef
from megapack.steps.tables import committed, parts
from megapack.store.manifest import Manifest, Part, PartKind, Split
from megapack.store.row_frames import frame_to_rows
from megapack.store.schema import PackedInfo

MOST_ROWS = 4096
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


class _Findings:
    """Checks made and violations met."""

    def __init__(self) -> None:
        self.rows = 0
        self.checks = 0
        self.violations: list[str] = []

    def equal(self, what: str, *, expected: object, found: object) -> None:
        """One check: two numbers that must be the same."""
        self.checks += 1
        if expected != found:
            self.violations.append(f"{what}: expected {expected}, found {found}")


def audit(ref: DatasetRef) -> AuditReport:
    """Check one dataset version.

    Args:
        ref: the version.

    Returns:
        The report; nothing is raised for a violation.

    Raises:
        StoreError: the version or one of its parts cannot be read.
        DataError: a part's bytes are not those of the manifest.
    """
    version = committed(ref)
    info = version.manifest.packed_info()
    findings = _Findings()
    totals: Counter[str] = Counter()
    sides: dict[Split, set[str]] = {Split.TRAIN: set(), Split.VALIDATION: set()}
    placed = 0
    for part, frame in parts(version, PartKind.ROWS):
        totals.update(_check_columns(frame, part, info, findings))
        for row in _rows(frame, part, info, findings):
            _check_row(row, info, findings, where=part.key)
        ids = frame["document_ids"].explode(empty_as_null=False).to_list()
        placed += len(ids)
        sides[part.split].update(ids)
    _check_manifest(version.manifest, totals, placed, findings)
    shared = sides[Split.TRAIN] & sides[Split.VALIDATION]
    findings.equal("documents on both sides of the split", expected=0, found=len(shared))
    return AuditReport(
        num_rows=findings.rows,
        num_checks=findings.checks,
        violations=tuple(findings.violations),
    )


def _check_manifest(
    manifest: Manifest, totals: Counter[str], placed: int, findings: _Findings
) -> None:
    for name in ("num_rows", "num_real_tokens", "num_target_tokens"):
        findings.equal(f"manifest {name}", expected=totals[name], found=manifest.count(name))
    findings.equal(
        "manifest documents_placed", expected=placed, found=manifest.count("documents_placed")
    )
    findings.equal(
        "documents in = placed + dropped",
        expected=manifest.count("documents_in"),
        found=placed + manifest.drop_ledger().total,
    )


def _check_columns(
    frame: pl.DataFrame, part: Part, info: PackedInfo, findings: _Findings
) -> dict[str, int]:
    """What can be told without tokens; returns the part's totals."""
    findings.equal(f"{part.key} records", expected=part.num_records, found=frame.height)
    slots = frame.select(
        (
            pl.col("lengths").list.eval(
                (pl.element() + info.segment_granularity - 1)
                // info.segment_granularity
                * info.segment_granularity
            )
        )
        .list.sum()
        .alias("slots"),
        pl.col("lengths").list.sum().cast(pl.Int64).alias("real"),
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
    return {
        "num_rows": frame.height,
        "num_real_tokens": int(frame["num_real_tokens"].cast(pl.Int64).sum()),
        "num_target_tokens": int(frame["num_target_tokens"].cast(pl.Int64).sum()),
    }


def _rows(
    frame: pl.DataFrame, part: Part, info: PackedInfo, findings: _Findings
) -> Iterator[PackedRow]:
    """Rows to look at; one that cannot be built is a violation."""
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
        yield row


def _check_row(row: PackedRow, info: PackedInfo, findings: _Findings, *, where: str) -> None:
    """Ids inside the vocabulary; padding holds the pad id, so that it cannot pass for content."""
    outside = int(((row.tokens < 0) | (row.tokens >= info.vocab_size)).sum())
    findings.equal(f"{where} token ids outside [0, {info.vocab_size})", expected=0, found=outside)
    padding = row.tokens[row.layout.padding_mask()]
    findings.equal(
        f"{where} padding positions that do not hold pad id {info.pad_id}",
        expected=0,
        found=int(np.count_nonzero(padding != info.pad_id)),
    )
