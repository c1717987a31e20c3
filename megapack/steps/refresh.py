"""Bring a dataset up to date: a new version that shares what did not change with the one before.

Documents are compared by content. Parts of rows of which every document is still there are kept
untouched; the documents of the others are packed among themselves with the new ones. Where the
recipe changed nothing can be kept, and the version says which setting it was. The result depends
on the version before as well as on the documents: `compact` gives the rows of a full preparation.
"""

from collections.abc import Sequence
from dataclasses import replace

from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.errors import StoreError
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.refresh import RefreshMode
from megapack.packing.config import PackAlgorithm
from megapack.records.changes import Changes, FileChanges
from megapack.records.digest import step_address
from megapack.records.refs import DatasetRef, TableRef
from megapack.steps.admission import Admission, admit
from megapack.steps.dataset_version import Writing, write_version
from megapack.steps.gather import Gathered, gather
from megapack.steps.lay_rows import PACK_MEMORY_BYTES, OnRows
from megapack.steps.pack import pack_anew, writing_of
from megapack.steps.recipe import differences, pack_address, recipe_of
from megapack.steps.standing_rows import Standing, standing_rows
from megapack.steps.tables import is_whole
from megapack.store.committed import Committed
from megapack.store.manifest import Manifest
from megapack.store.versions import commit, latest_version, read_version

REFRESH_SEMANTICS = 1
_ATTEMPTS = 5


class _OvertakenError(Exception):
    """Another writer committed first: what was planned does not stand on the newest version."""


def refresh(
    job: PrepareJob,
    *,
    conversations: Sequence[TableRef],
    documents: Sequence[TableRef],
    mode: RefreshMode = RefreshMode.ADD,
    memory_bytes: int = PACK_MEMORY_BYTES,
    on_rows: OnRows | None = None,
) -> DatasetRef:
    """Publish a version for the documents that there are now, if it differs from the newest one.

    Args:
        job: the preparation job.
        conversations: tables of the split step.
        documents: tables of the tokenize step, in reading order.
        mode: what happens to the rows that are there.
        memory_bytes: bytes of tokens to hold at once.
        on_rows: told how many new rows are done, and how many there will be.

    Returns:
        The new version, whose manifest has the `changes`; or the newest one, as reused.

    Raises:
        DataError: no document can be placed on the training side, or a table is damaged.
        StoreError: the store failed, or other writers kept committing in between.
        ContractError: documents got lost on the way.
    """
    files = read_tokenizer_files(job.tokenizer)
    writing = writing_of(job, files, memory_bytes=memory_bytes, on_rows=on_rows)
    gathered = gather(conversations, documents)
    for _ in range(_ATTEMPTS):
        try:
            return _refresh_once(writing, gathered, mode)
        except _OvertakenError:
            continue
    raise StoreError(
        f"{writing.location.uri}: other writers committed a version during each of {_ATTEMPTS} "
        "attempts to refresh. Let one writer at a time publish to a dataset."
    )


def _refresh_once(writing: Writing, gathered: Gathered, mode: RefreshMode) -> DatasetRef:
    """One attempt, on top of the newest version."""
    newest = latest_version(writing.location)
    before = read_version(writing.location, newest) if newest else None
    address = pack_address(writing.job, writing.info.tokenizer_digest, gathered.tables)
    whole = before is not None and is_whole(writing.location, before)
    if before is not None and whole and before.manifest.address == address:
        return before.dataset_ref(reused=True)
    because = _reasons(before, writing, mode, whole=whole)
    if before is None or because:
        comparable = before if whole else None
        changes = _changes_anew(comparable, gathered, writing, because)
        return pack_anew(writing, gathered, address=address, before=newest, changes=changes)
    return _add(before, writing, gathered, address)


def _add(before: Committed, writing: Writing, gathered: Gathered, address: str) -> DatasetRef:
    """Keep what stands, pack what is left, and commit when anything differs."""
    admission = admit(gathered.index, writing.job)
    standing = standing_rows(before, writing.location, gathered.index, admission.placed)
    if (
        not standing.new.size
        and not standing.dissolved
        and _same_drops(before, gathered, admission)
    ):
        return before.dataset_ref(reused=True)
    contents = write_version(writing, gathered, admission, new=standing.new, kept=standing.kept)
    inputs = {"base": before.manifest.digest, "documents": address}
    manifest = replace(
        contents,
        address=step_address("refresh", REFRESH_SEMANTICS, inputs),
        changes=_changes(before, gathered, standing).with_parts(contents.num_row_parts),
    ).manifest()
    if latest_version(writing.location) > before.version:
        raise _OvertakenError

    def replan(winner: Committed) -> Manifest | None:
        if winner.manifest.address == manifest.address:
            return None
        raise _OvertakenError

    stands = commit(writing.location, manifest, replan=replan)
    return stands.dataset_ref(reused=stands.manifest.commit_token != manifest.commit_token)


def _reasons(
    before: Committed | None, writing: Writing, mode: RefreshMode, *, whole: bool
) -> tuple[str, ...]:
    """Why everything has to be packed anew, one line each; none when rows may stay."""
    if before is None:
        return ("there is no version yet",)
    if mode is RefreshMode.COMPACT:
        return ("compact was asked for",)
    if not whole:
        return (f"objects of version {before.version} are gone",)
    recipe = recipe_of(writing.job, writing.info)
    reasons = differences(before.manifest.recipe, recipe)
    # Rows do not say by which format a document was made, and one id stands for both then.
    reasons += [
        f"source {name} is read under several formats ({formats})"
        for name, formats in recipe["formats"].items()
        if "," in formats
    ]
    if writing.job.pack.algorithm is PackAlgorithm.AS_GIVEN:
        reasons.append("rows as given are laid out anew")
    return tuple(reasons)


def _same_drops(before: Committed, gathered: Gathered, admission: Admission) -> bool:
    """Whether as many records came in and were dropped, for the same reasons, as before."""
    counts = gathered.dropped.plus(admission.counts)
    manifest = before.manifest
    return (
        manifest.counts.get("documents_in") == gathered.documents_in
        and manifest.drop_ledger().documents == counts.documents
    )


def _changes(before: Committed, gathered: Gathered, standing: Standing) -> Changes:
    return Changes(
        base=before.version,
        files=FileChanges.between(before.manifest.files, gathered.files),
        documents_added=standing.added,
        documents_removed=standing.removed,
        documents_kept=standing.kept_places,
        documents_repacked=int(standing.new.size) - standing.added,
        parts_kept=len(standing.kept),
        parts_dissolved=len(standing.dissolved),
    )


def _changes_anew(
    before: Committed | None, gathered: Gathered, writing: Writing, because: tuple[str, ...]
) -> Changes:
    """What changes when nothing is kept; documents are compared where the version before says."""
    admission = admit(gathered.index, writing.job)
    if before is None:
        files = FileChanges.between({}, gathered.files)
        added = int(admission.placed.size)
        return Changes(base=0, because=because, files=files, documents_added=added)
    standing = standing_rows(before, writing.location, gathered.index, admission.placed)
    changes = _changes(before, gathered, standing)
    parts = len(standing.kept) + len(standing.dissolved)
    return changes.model_copy(
        update={
            "because": because,
            "documents_kept": 0,
            "documents_repacked": int(admission.placed.size) - standing.added,
            "parts_kept": 0,
            "parts_dissolved": parts,
        }
    )
