"""Audit of packed data that other tools made. What a file is, is told by its columns.

Every row is read; nothing is held but one batch. Without a tokenizer a first pass over some rows
learns what answers of this data begin and end with.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from megapack.conversation.config import LossOn, PromptFormat
from megapack.conversation.encoder import Encoder
from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.errors import ConfigError, StoreError
from megapack.steps.foreign.bridge import COLUMNS as BRIDGE_COLUMNS
from megapack.steps.foreign.bridge import bridge_row
from megapack.steps.foreign.checks import RowChecks
from megapack.steps.foreign.faults import Fault, FaultLog
from megapack.steps.foreign.files import packed_files, records_of
from megapack.steps.foreign.markers import Markers, of_rows, of_tokenizer
from megapack.steps.foreign.packed_jsonl import LoaderSettings, PackedJsonlChecks
from megapack.steps.foreign.plain import plain_row_of
from megapack.steps.foreign.rows import ForeignRow
from megapack.store.location import open_location
from megapack.store.versions import latest_version

_NO_TOKENIZER = (
    "ids outside the vocabulary, and masks that come early or lack end tokens throughout: give "
    "--tokenizer (and --format)"
)
_NO_FORMAT = (
    "masks that come early or lack end tokens throughout: the tokenizer has no chat template, "
    "give --format"
)
_NO_MARKERS = "shifted masks and lost end tokens: no marker stands around most answers"


class PackedShape(StrEnum):
    """What a file of packed data is."""

    BRIDGE = "Megatron-Bridge packed rows"
    PLAIN = "Hugging Face packed rows"
    MESSAGES = ".jsonl.packed conversations"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignAudit:
    """What to audit and what is known about it.

    Attributes:
        uri: file, folder, glob or prefix.
        tokenizer: tokenizer folder, None when not at hand.
        format: prompt format; the tokenizer's own chat template when None.
        loss_on: what is meant to be supervised.
        row_length: positions that a loader gives a row of conversations.
    """

    uri: str
    tokenizer: str | None = None
    format: PromptFormat | None = None
    loss_on: LossOn = LossOn.ASSISTANT
    row_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignReport:
    """What an audit found.

    Attributes:
        shape: what the data is.
        num_rows: rows looked at.
        counts: faults by kind.
        violations: lines, the first ten of each kind.
        unchecked: what could not be checked, and what would let it be.
    """

    shape: PackedShape
    num_rows: int
    counts: Mapping[Fault, int]
    violations: tuple[str, ...]
    unchecked: tuple[str, ...]

    def lines(self) -> list[str]:
        """Violations, what was not checked, and one line of counts."""
        found = " ".join(f"{fault}={count}" for fault, count in self.counts.items())
        return [
            *self.violations,
            *(f"not checked: {what}" for what in self.unchecked),
            f"audit data={self.shape.value!r} rows={self.num_rows} "
            f"violations={sum(self.counts.values())}{' ' + found if found else ''}",
        ]


def is_dataset(uri: str) -> bool:
    """Whether versions of megapack stand at an address.

    Raises:
        StoreError: the store failed.
    """
    try:
        return latest_version(open_location(uri)) > 0
    except (ConfigError, StoreError) as error:
        if isinstance(error, StoreError) and "://" in uri:
            raise
        return False


def audit_foreign(job: ForeignAudit) -> ForeignReport:
    """Audit packed data of another tool.

    Raises:
        ConfigError: nothing that is packed data is there, or the tokenizer cannot be used.
        DataError: a file as a whole cannot be read.
        StoreError: the store failed.
    """
    files = packed_files(job.uri)
    shape = _shape_of(files, job.uri)
    log = FaultLog()
    encoder = None
    if job.tokenizer is not None:
        encoder = HuggingFaceEncoder(read_tokenizer_files(job.tokenizer))
    if shape is PackedShape.MESSAGES:
        num_rows = _audit_messages(files, job, encoder, log)
    else:
        num_rows = _audit_rows(files, shape, job, encoder=encoder, log=log)
    return ForeignReport(
        shape=shape,
        num_rows=num_rows,
        counts=log.counts,
        violations=tuple(log.lines()),
        unchecked=log.not_checked(),
    )


def _shape_of(files: tuple[str, ...], uri: str) -> PackedShape:
    """What the first record that can be read is."""
    for name in files:
        for _, record, _ in records_of(name):
            if record is None:
                continue
            if record.keys() >= BRIDGE_COLUMNS:
                return PackedShape.BRIDGE
            if "input_ids" in record:
                return PackedShape.PLAIN
            if "messages" in record:
                return PackedShape.MESSAGES
            raise ConfigError(
                f"{uri}: expected packed rows with input_ids (and labels, loss_mask or "
                f"seq_start_id) or records with messages, found {', '.join(record) or 'nothing'}."
            )
    raise ConfigError(f"{uri}: expected packed rows, found no record that can be read.")


def _records(
    files: tuple[str, ...], log: FaultLog
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    for name in files:
        for where, record, error in records_of(name):
            if record is None:
                log.add(Fault.UNREADABLE, where, expected="a record", found=error)
            yield where, record


def _rows(files: tuple[str, ...], shape: PackedShape, log: FaultLog) -> Iterator[ForeignRow | None]:
    read = bridge_row if shape is PackedShape.BRIDGE else plain_row_of
    for where, record in _records(files, log):
        yield None if record is None else read(record, where=where, log=log)


def _audit_rows(
    files: tuple[str, ...],
    shape: PackedShape,
    job: ForeignAudit,
    *,
    encoder: Encoder | None,
    log: FaultLog,
) -> int:
    if encoder is None:
        markers = of_rows(row for row in _rows(files, shape, FaultLog()) if row is not None)
        log.unchecked(_NO_TOKENIZER)
        if not (markers.opens or markers.ends) and job.loss_on is LossOn.ASSISTANT:
            log.unchecked(_NO_MARKERS)
    else:
        markers = _markers(encoder, job, log)
    checks = RowChecks(markers, loss_on=job.loss_on, log=log)
    num_rows = 0
    for row in _rows(files, shape, log):
        num_rows += 1
        if row is not None:
            checks.check(row)
    return num_rows


def _markers(encoder: Encoder, job: ForeignAudit, log: FaultLog) -> Markers:
    form = job.format
    if form is None and encoder.chat_templates:
        form = PromptFormat.CHAT_TEMPLATE
    if form is None:
        log.unchecked(_NO_FORMAT)
    markers = of_tokenizer(encoder, form)
    if form is not None and not markers.opens and job.loss_on is LossOn.ASSISTANT:
        log.unchecked(_NO_MARKERS)
    return markers


def _audit_messages(
    files: tuple[str, ...], job: ForeignAudit, encoder: Encoder | None, log: FaultLog
) -> int:
    settings = None
    if job.format is not None:
        settings = LoaderSettings(form=job.format, loss_on=job.loss_on, row_length=job.row_length)
    checks = PackedJsonlChecks(encoder, settings, log=log)
    num_rows = 0
    for where, record in _records(files, log):
        num_rows += 1
        if record is not None:
            checks.check(record, where=where)
    return num_rows
