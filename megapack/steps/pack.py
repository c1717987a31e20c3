"""Documents to packed rows, committed as one version of the dataset.

Lengths are planned first and tokens touched last. The tokens of all documents are held in memory
at once, 4 bytes a token.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from megapack.conversation.encoder import Encoder
from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.prompt import resolve_pad_id
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.errors import DataError
from megapack.jobs.pipeline import dataset_uri
from megapack.jobs.prepare import PrepareJob
from megapack.layout.pack_layout import padded_lengths
from megapack.packing.config import Duplicates
from megapack.packing.planner import plan_rows, shuffled
from megapack.packing.rows import RowShape, build_rows, positions_of
from megapack.packing.sides import is_held_out
from megapack.records.digest import step_address
from megapack.records.document import Document
from megapack.records.drops import Drop, DropLedger, DropReason, check_conservation
from megapack.records.refs import DatasetRef, TableRef
from megapack.steps.drops_part import write_drops
from megapack.steps.gather import Gathered, gather
from megapack.steps.tables import is_whole
from megapack.store.committed import Committed
from megapack.store.location import Location, open_location
from megapack.store.manifest import Contents, Manifest, Part, Split
from megapack.store.schema import PackedInfo, SchemaId
from megapack.store.sinks import RowSink, row_counts
from megapack.store.versions import commit, latest_version, read_version

PACK_SEMANTICS = 2


def pack(
    job: PrepareJob, *, conversations: Sequence[TableRef], documents: Sequence[TableRef]
) -> DatasetRef:
    """Pack all documents of a job and commit a dataset version.

    Args:
        job: the preparation job.
        conversations: tables of the split step, for what was dropped there.
        documents: tables of the tokenize step, in reading order.

    Returns:
        The new version; or the newest one, as reused, when it was made from the same documents
        with the same settings.

    Raises:
        DataError: no document can be placed on the training side, or a table is damaged; nothing
            is committed.
        StoreError: the store failed.
        ContractError: documents got lost on the way.
    """
    encoder = HuggingFaceEncoder(read_tokenizer_files(job.tokenizer))
    address = _address(job, encoder, [*conversations, *documents])
    location = open_location(dataset_uri(job))
    before = latest_version(location)
    standing = _standing(location, address) if before else None
    if standing is not None:
        return standing.dataset_ref(reused=True)
    gathered = gather(conversations, documents)
    kept, dropped = admit(gathered.documents, job)
    drops = [*gathered.drops, *dropped]
    ledger = DropLedger.of(drops)
    check_conservation(
        documents_in=gathered.documents_in, placed=len(kept), drops=ledger, where="pack"
    )
    sides = _sides(kept, job)
    _check_not_empty(sides, drops, job=job)
    info = _info(job, encoder)
    parts = list(_write_rows(location, sides, seed=job.pack.seed, info=info))
    contents = Contents(
        schema_id=SchemaId.PACKED_ROWS,
        kind="dataset",
        parts=[*parts, *write_drops(location, drops)],
        address=address,
        counts=_counts(gathered, kept, parts),
        drops=ledger,
        settings=job.model_dump(mode="json"),
        parents={ref.uri: ref.digest for ref in documents},
        packed=info,
    )
    return _commit(location, contents.manifest(), before=before)


def _standing(location: Location, address: str) -> Committed | None:
    """The newest version, when it was made from the same inputs and is whole."""
    newest = read_version(location)
    same = newest.manifest.address == address
    return newest if same and is_whole(location, newest) else None


def _commit(location: Location, manifest: Manifest, *, before: int) -> DatasetRef:
    """Commit, unless another run committed the same since version `before` was the newest."""

    def replan(winner: Committed) -> Manifest | None:
        return None if winner.manifest.address == manifest.address else manifest

    if latest_version(location) > before:
        standing = _standing(location, manifest.address)
        if standing is not None:
            return standing.dataset_ref(reused=True)
    stands = commit(location, manifest, replan=replan)
    return stands.dataset_ref(reused=stands.manifest.commit_token != manifest.commit_token)


def admit(documents: Sequence[Document], job: PrepareJob) -> tuple[list[Document], list[Drop]]:
    """Decide on entry which documents can be placed.

    Returns:
        Documents to place, in order, and a drop for each of the others: longer than a row, or a
        repetition when the job drops those.
    """
    longest = job.pack.row_length + 1
    kept: list[Document] = []
    drops: list[Drop] = []
    seen: set[str] = set()
    for document in documents:
        if document.num_tokens > longest:
            detail = (
                f"expected at most row_length + 1 = {longest} tokens, found "
                f"{document.num_tokens}. Raise pack.row_length, or let tokenize.long_documents "
                "split it."
            )
            drops.append(_drop(document, DropReason.LONGER_THAN_ROW, detail))
        elif job.pack.duplicates is Duplicates.DROP and document.document_id in seen:
            detail = "the same conversation was placed before. Set pack.duplicates = keep to keep."
            drops.append(_drop(document, DropReason.DUPLICATE, detail))
        else:
            seen.add(document.document_id)
            kept.append(document)
    return kept, drops


def _drop(document: Document, reason: DropReason, detail: str) -> Drop:
    return Drop(
        reason=reason,
        detail=detail,
        uri=document.uri,
        line=document.line,
        document_id=document.document_id,
        tokens=document.num_tokens,
    )


def _address(job: PrepareJob, encoder: Encoder, tables: Sequence[TableRef]) -> str:
    granularity = job.granularity()
    inputs = {
        "tables": [ref.digest for ref in tables],
        "pack": job.pack.model_dump(mode="json"),
        "segment": granularity.segment,
        "row": granularity.row,
        "validation_fraction": job.validation_fraction,
        "pad_id": _pad_id(job, encoder),
        "tokenizer": encoder.digest,
    }
    return step_address("pack", PACK_SEMANTICS, inputs)


def _info(job: PrepareJob, encoder: Encoder) -> PackedInfo:
    granularity = job.granularity()
    formats = sorted({(source.format or job.tokenize.format).value for source in job.sources})
    return PackedInfo(
        row_length=job.pack.row_length,
        segment_granularity=granularity.segment,
        row_granularity=granularity.row,
        pad_id=_pad_id(job, encoder),
        vocab_size=encoder.vocabulary_size,
        tokenizer_digest=encoder.digest,
        format=",".join(formats),
    )


def _pad_id(job: PrepareJob, encoder: Encoder) -> int:
    return resolve_pad_id(job.tokenize.format, encoder=encoder, config=job.tokenize)


def _sides(documents: Sequence[Document], job: PrepareJob) -> dict[Split, list[Document]]:
    """Documents of the training side, then of the validation side."""
    sides: dict[Split, list[Document]] = {Split.TRAIN: [], Split.VALIDATION: []}
    for document in documents:
        out = is_held_out(document.document_id, job.validation_fraction)
        sides[Split.VALIDATION if out else Split.TRAIN].append(document)
    return sides


def _check_not_empty(
    sides: Mapping[Split, Sequence[Document]], drops: Sequence[Drop], *, job: PrepareJob
) -> None:
    """Refuse a dataset that nothing can be trained on.

    Raises:
        DataError: the training side has no documents.
    """
    if sides[Split.TRAIN]:
        return
    held_out = len(sides[Split.VALIDATION])
    if held_out:
        found = (
            f"all that are placed ({held_out}) on the validation side (validation_fraction = "
            f"{job.validation_fraction})"
        )
        advice = "Lower validation_fraction, or add documents."
    elif drops:
        found, advice = "none placed", "Change what the first drops below name, or the sources."
    else:
        found, advice = "no document at all", "Check that the sources hold conversations."
    counts = DropLedger.of(drops).documents
    dropped = ", ".join(f"{reason.value} {count}" for reason, count in counts.items())
    first = {drop.reason: drop for drop in reversed(drops)}
    examples = "".join(
        f"\n  first {reason.value}: {first[reason].uri} line {first[reason].line}: "
        f"{first[reason].detail}"
        for reason in counts
    )
    raise DataError(
        f"pack: expected documents on the training side, found {found}; dropped: "
        f"{dropped or 'none'}. No version was committed. {advice}{examples}"
    )


def _write_rows(
    location: Location, sides: Mapping[Split, Sequence[Document]], *, seed: int, info: PackedInfo
) -> Iterator[Part]:
    """Plan, build and write the rows of both splits."""
    shape = RowShape(row_length=info.row_length, granularity=info.granularity, pad_id=info.pad_id)
    for split, own in sides.items():
        positions = positions_of(np.array([d.num_tokens for d in own], np.int64), info.row_length)
        plan = plan_rows(padded_lengths(positions, info.segment_granularity), info.row_length)
        sink = RowSink(location, info=info, split=split)
        for row in build_rows(shuffled(plan, seed), own, shape):
            sink.add(row)
        yield from sink.close()


def _counts(gathered: Gathered, kept: Sequence[Document], parts: Sequence[Part]) -> dict[str, int]:
    unique = len({document.document_id for document in kept})
    return {
        "documents_in": gathered.documents_in,
        "documents_placed": len(kept),
        "documents_repeated": len(kept) - unique,
        **row_counts(parts),
    }
