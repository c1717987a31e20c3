"""Write a packed dataset out for another trainer: all rows of both splits, in stored order.

One file is built in memory at a time, about `FILE_TOKENS` tokens of it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import batched

from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.errors import MegapackError
from megapack.records.refs import DatasetRef
from megapack.steps.exports.bridge import BridgeExporter
from megapack.steps.exports.files import ExportTarget, open_target
from megapack.steps.exports.formats import Exporter, ExportFormat
from megapack.steps.exports.packed_jsonl import PackedJsonlExporter
from megapack.steps.exports.plain import PlainExporter
from megapack.steps.tables import committed
from megapack.store.committed import Committed
from megapack.store.manifest import Split
from megapack.store.reader import PackedDataset, open_dataset

FILE_TOKENS = 8 << 20

OnRows = Callable[[int], None]
"""Told how many rows have been written so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export holds.

    Attributes:
        uri: where it stands.
        format: who is to read it.
        dataset: the dataset's uri.
        version: its version.
        digest: its content digest.
        tokenizer_digest: digest of the tokenizer's files.
        row_length: positions in a row.
        files: file names, in order.
        num_rows: rows over all files.
        num_documents: documents.
        num_target_tokens: positions whose label counts.
        notes: what its reader will do otherwise than megapack, with counts.
    """

    uri: str
    format: ExportFormat
    dataset: str
    version: int
    digest: str
    tokenizer_digest: str
    row_length: int
    files: tuple[str, ...]
    num_rows: int
    num_documents: int
    num_target_tokens: int
    notes: dict[str, int]

    def lines(self) -> list[str]:
        """One line an event, `key=value`."""
        return [
            f"export to={self.format.value} uri={self.uri} files={len(self.files)} "
            f"rows={self.num_rows} documents={self.num_documents} "
            f"target_tokens={self.num_target_tokens}",
            *(f"note {count} {text}" for text, count in self.notes.items()),
        ]


def export(
    ref: DatasetRef, out: str, form: ExportFormat, *, on_rows: OnRows | None = None
) -> ExportReport:
    """Export one version.

    Args:
        ref: the version.
        out: folder or `s3://` prefix; nothing may stand there.
        form: who is to read it.
        on_rows: told how many rows are written, after each file.

    Raises:
        ConfigError: the place is taken, or the format cannot express the dataset.
        DataError: a row is damaged, or the format cannot hold it; nothing is left at a local
            place, and no `export.json` at another.
        StoreError: a store failed.
    """
    version = committed(ref)
    exporter = _exporter(form, version)
    target = open_target(out)
    try:
        report = _write(version, exporter, target, out=out, form=form, on_rows=on_rows)
        target.finish(asdict(report))
    except BaseException:
        target.abandon()
        raise
    return report


def _exporter(form: ExportFormat, version: Committed) -> Exporter:
    if form is ExportFormat.PACKED_JSONL:
        return PackedJsonlExporter(version)
    if form is ExportFormat.HF:
        return PlainExporter()
    info = version.manifest.packed_info()
    end_id = _end_id(version)
    return BridgeExporter(
        multiple=info.segment_granularity,
        pad_id=info.pad_id if end_id is None else end_id,
        end_id=end_id,
    )


def _end_id(version: Committed) -> int | None:
    """Id of the tokenizer's end token; None when the tokenizer is not there any more."""
    folder = version.manifest.settings.get("tokenizer")
    if not isinstance(folder, str):
        return None
    try:
        files = read_tokenizer_files(folder)
    except MegapackError:
        return None
    name = files.special_tokens.get("eos_token")
    if name is None or files.digest != version.manifest.packed_info().tokenizer_digest:
        return None
    return HuggingFaceEncoder(files).token_id(name)


def _write(
    version: Committed,
    exporter: Exporter,
    target: ExportTarget,
    *,
    out: str,
    form: ExportFormat,
    on_rows: OnRows | None,
) -> ExportReport:
    info = version.manifest.packed_info()
    names: list[str] = []
    totals: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    with open_dataset(version.uri, version.version) as dataset:
        for split, number, wanted in _files(dataset):
            rows = list(dataset.rows(split, wanted))
            file = exporter.file(rows)
            names.append(f"{split.value}-{number:05d}{exporter.suffix}")
            target.write(names[-1], file.data)
            notes += file.notes
            totals["rows"] += len(rows)
            totals["documents"] += sum(row.layout.num_segments for row in rows)
            totals["targets"] += sum(row.num_target_tokens for row in rows)
            if on_rows is not None:
                on_rows(totals["rows"])
    return ExportReport(
        uri=out,
        format=form,
        dataset=version.uri,
        version=version.version,
        digest=version.manifest.digest,
        tokenizer_digest=info.tokenizer_digest,
        row_length=info.row_length,
        files=tuple(names),
        num_rows=totals["rows"],
        num_documents=totals["documents"],
        num_target_tokens=totals["targets"],
        notes=dict(notes),
    )


def _files(dataset: PackedDataset) -> Iterator[tuple[Split, int, tuple[int, ...]]]:
    """Split, number and row numbers of each file."""
    count = max(1, FILE_TOKENS // dataset.info.row_length)
    for split in (Split.TRAIN, Split.VALIDATION):
        for number, rows in enumerate(batched(range(dataset.num_rows(split)), count)):
            yield split, number, rows
