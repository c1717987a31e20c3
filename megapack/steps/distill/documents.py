"""Whether every document that a run reads is in exactly one payload, with equal positions.

Reads the rows once, part by part, and of the payloads four narrow columns. About 30 s a billion
tokens on one core.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl

from megapack.errors import ConfigError
from megapack.jobs.train import TrainSettings
from megapack.layout.token_fields import unplace
from megapack.records.document import labels_digest
from megapack.records.packed_row import PackedRow
from megapack.steps.distill.teachers import OpenTeacher
from megapack.steps.distill.vocabulary import NO_TOKEN
from megapack.store.committed import Committed
from megapack.store.location import open_location
from megapack.store.manifest import Split
from megapack.store.reader import PackedDataset

_ROWS_AT_ONCE = 1024
_SHOWN = 3
_ADVICE = {
    "no payload": "Extract payloads from this dataset version, with all of its rows and sources.",
    "payloads of several teachers": "Say whose they are with Teacher.sources.",
    "other positions or labels than their payload": (
        "They were cut, tokenized or supervised otherwise when the teacher read them: extract "
        "payloads from this dataset version."
    ),
    "tokens that the vocabulary map leaves out": "Add pairs for them to the file.",
}


@dataclass(slots=True, kw_only=True)
class Findings:
    """What is wrong with how many documents.

    Attributes:
        num_documents: looked at.
        sources: of them; without documents of no named source.
        taught: numbers of the teachers that have one of them.
        faulty: count, and the first ids, by what is wrong.
    """

    num_documents: int = 0
    sources: set[str] = field(default_factory=set)
    taught: set[int] = field(default_factory=set)
    faulty: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def add(self, what: str, document_id: str, detail: str = "") -> None:
        """One document with a fault."""
        count, first = self.faulty.get(what, (0, []))
        shown = [*first, document_id + detail] if len(first) < _SHOWN else first
        self.faulty[what] = (count + 1, shown)

    def raise_any(self, where: str) -> None:
        """Refuse the run when anything is wrong.

        Raises:
            ConfigError: says what, with numbers and first ids.
        """
        if not self.faulty:
            return
        lines = [
            f"{count} of {self.num_documents} documents have {what}, the first "
            f"{', '.join(first)}. {_ADVICE[what]}"
            for what, (count, first) in self.faulty.items()
        ]
        raise ConfigError(f"{where}: expected one payload for each document: " + " ".join(lines))


def check_documents(
    source: Committed,
    settings: TrainSettings,
    teachers: Sequence[OpenTeacher],
) -> int:
    """Refuse documents without, with several, or with another payload.

    Args:
        source: the student's dataset.
        settings: says how many validation rows are read.
        teachers: all.

    Returns:
        Documents looked at; one that stands in several rows counts once for each.

    Raises:
        ConfigError: says what is wrong with how many; or a teacher has none of them, or is of a
            source that none of them has.
        StoreError: the store failed.
        DataError: a part is damaged.
    """
    held = pl.concat(
        teacher.payloads.index()
        .select("document_id", "num_tokens", "labels_digest")
        .with_columns(number=pl.lit(teacher.number, pl.Int16))
        for teacher in teachers
    )
    findings = Findings()
    for rows in _rows(source, settings):
        _check_rows(rows, held, teachers, findings)
    where = f"{source.uri} version {source.version}"
    _check_sources(teachers, findings, where)
    findings.raise_any(where)
    _check_all_teach(teachers, findings, where)
    return findings.num_documents


def _check_sources(teachers: Sequence[OpenTeacher], findings: Findings, where: str) -> None:
    """Refuse a name that no document has: its teacher would teach less than was asked for."""
    for teacher in teachers:
        unknown = sorted(set(teacher.job.sources or ()) - findings.sources)
        if unknown:
            raise ConfigError(
                f"Teacher.sources of {teacher.where}: expected sources of the "
                f"{findings.num_documents} documents that the run reads from {where} "
                f"({', '.join(sorted(findings.sources)) or 'none has a name'}), found "
                f"{', '.join(unknown)}. Mend or remove the name."
            )


def _check_all_teach(teachers: Sequence[OpenTeacher], findings: Findings, where: str) -> None:
    """Refuse a teacher that nothing would be learned from."""
    for teacher in teachers:
        if teacher.number not in findings.taught:
            raise ConfigError(
                f"{teacher.where}: expected payloads of documents that the run reads from {where}, "
                f"found none of its {findings.num_documents}. Leave the teacher out, or name the "
                "payload that was extracted from this dataset."
            )


def _rows(source: Committed, settings: TrainSettings) -> Iterator[list[PackedRow]]:
    """All training rows, and the validation rows that an evaluation reads."""
    with PackedDataset(open_location(source.uri), source) as dataset:
        for split in (Split.TRAIN, Split.VALIDATION):
            total = dataset.num_rows(split)
            if split is Split.VALIDATION:
                total = min(total, settings.evaluation_rows)
            for begin in range(0, total, _ROWS_AT_ONCE):
                numbers = range(begin, min(begin + _ROWS_AT_ONCE, total))
                yield list(dataset.rows(split, numbers))


def _check_rows(
    rows: Sequence[PackedRow],
    held: pl.DataFrame,
    teachers: Sequence[OpenTeacher],
    findings: Findings,
) -> None:
    ids = [one for row in rows for one in row.document_ids]
    near = held.filter(pl.col("document_id").is_in(pl.Series(ids).implode()))
    known: dict[str, list[tuple[int, int, int]]] = {}
    for document_id, num_tokens, digest, number in near.iter_rows():
        known.setdefault(document_id, []).append((number, num_tokens, digest))
    for row in rows:
        labels = row.labels()
        sources = row.sources or ("",) * len(row.document_ids)
        findings.num_documents += len(row.document_ids)
        findings.sources.update(filter(None, sources))
        for document_id, of, tokens, counted in zip(
            row.document_ids,
            sources,
            unplace(row.tokens, row.layout),
            unplace(labels, row.layout),
            strict=True,
        ):
            found = [one for one in known.get(document_id, ()) if teachers[one[0]].takes(of)]
            if len(found) != 1:
                what = "payloads of several teachers" if found else "no payload"
                findings.add(what, document_id)
                continue
            number, num_tokens, digest = found[0]
            findings.taught.add(number)
            vocabulary = teachers[number].vocabulary
            own, targets = vocabulary.to_teacher(tokens), vocabulary.to_teacher(counted)
            if (own == NO_TOKEN).any() or (targets == NO_TOKEN).any():
                findings.add("tokens that the vocabulary map leaves out", document_id)
            elif tokens.size != num_tokens or labels_digest(own, targets) != digest:
                detail = f" ({tokens.size} positions here, {num_tokens} in the payload)"
                what = "other positions or labels than their payload"
                findings.add(what, document_id, detail)
