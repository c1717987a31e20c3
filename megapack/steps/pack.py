"""Documents to packed rows, committed as one version of the dataset.

Rows are planned over lengths alone, and tokens are laid last: 36 bytes a document and at most
`memory_bytes` of tokens are in memory, whatever the size of the dataset. The result is a function
of the seed and the documents; it does not depend on the memory allowed.
"""

from collections.abc import Sequence
from dataclasses import replace

from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.tokenizer_files import TokenizerFiles, read_tokenizer_files
from megapack.jobs.pipeline import dataset_uri
from megapack.jobs.prepare import PrepareJob
from megapack.records.changes import Changes
from megapack.records.refs import DatasetRef, TableRef
from megapack.steps.admission import admit
from megapack.steps.dataset_version import Writing, write_version
from megapack.steps.gather import Gathered, gather
from megapack.steps.lay_rows import PACK_MEMORY_BYTES, OnRows
from megapack.steps.recipe import pack_address, packed_info
from megapack.steps.tables import is_whole
from megapack.store.committed import Committed
from megapack.store.location import Location, open_location
from megapack.store.manifest import Manifest
from megapack.store.versions import commit, latest_version, read_version


def pack(
    job: PrepareJob,
    *,
    conversations: Sequence[TableRef],
    documents: Sequence[TableRef],
    memory_bytes: int = PACK_MEMORY_BYTES,
    on_rows: OnRows | None = None,
) -> DatasetRef:
    """Pack all documents of a job and commit a dataset version.

    Args:
        job: the preparation job.
        conversations: tables of the split step, for what was dropped there.
        documents: tables of the tokenize step, in reading order.
        memory_bytes: bytes of tokens to hold at once; the rest waits in the temporary folder.
        on_rows: told how many rows are done, and how many there will be.

    Returns:
        The new version; or the newest one, as reused, when it was made from the same documents
        with the same settings.

    Raises:
        DataError: no document can be placed on the training side, or a table is damaged; nothing
            is committed.
        StoreError: the store failed, or the temporary folder is full.
        ContractError: documents got lost on the way.
    """
    files = read_tokenizer_files(job.tokenizer)
    location = open_location(dataset_uri(job))
    before = latest_version(location)
    address = pack_address(job, files.digest, [*conversations, *documents])
    standing = _standing(location, address) if before else None
    if standing is not None:
        return standing.dataset_ref(reused=True)
    writing = writing_of(job, files, memory_bytes=memory_bytes, on_rows=on_rows)
    return pack_anew(writing, gather(conversations, documents), address=address, before=before)


def pack_anew(
    writing: Writing,
    gathered: Gathered,
    *,
    address: str,
    before: int,
    changes: Changes | None = None,
) -> DatasetRef:
    """Pack all documents and commit.

    Args:
        writing: where and how.
        gathered: all documents.
        address: of the version to be.
        before: newest version when the work began; a later one from the same inputs serves too.
        changes: what a refresh found; it publishes nothing that equals the newest version.

    Raises:
        DataError: as `pack`.
        StoreError: as `pack`.
        ContractError: as `pack`.
    """
    admission = admit(gathered.index, writing.job)
    contents = write_version(writing, gathered, admission, new=admission.placed)
    if changes is not None:
        changes = changes.with_parts(contents.num_row_parts)
    manifest = replace(contents, address=address, changes=changes).manifest()
    if changes is not None and before:
        newest = read_version(writing.location)
        if newest.manifest.digest == manifest.digest and is_whole(writing.location, newest):
            return newest.dataset_ref(reused=True)
    return _commit(writing.location, manifest, before=before)


def writing_of(
    job: PrepareJob,
    files: TokenizerFiles,
    *,
    memory_bytes: int = PACK_MEMORY_BYTES,
    on_rows: OnRows | None = None,
) -> Writing:
    """Where and how the versions of a job's dataset are written.

    Raises:
        ConfigError: the tokenizer cannot be used.
        StoreError: the store failed.
    """
    encoder = HuggingFaceEncoder(files)
    return Writing(
        location=open_location(dataset_uri(job)),
        job=job,
        info=packed_info(job, encoder),
        memory_bytes=memory_bytes,
        on_rows=on_rows,
    )


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
