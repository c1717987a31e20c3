"""Conversations -> documents: one call tokenizes one part of a split table."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import batched

from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.outcome import TokenizeCounts
from megapack.conversation.tokenize import ConversationTokenizer
from megapack.conversation.tokenizer_files import TokenizerFiles, read_tokenizer_files
from megapack.errors import ConfigError
from megapack.jobs.prepare import PrepareJob
from megapack.records.digest import step_address
from megapack.records.document import Document
from megapack.records.drops import Drop, DropLedger, check_conservation
from megapack.records.refs import TableRef
from megapack.records.stored_conversation import StoredConversation
from megapack.steps.drops_part import write_drops
from megapack.steps.tables import committed, usable_version
from megapack.store.conversation_table import frame_to_conversations
from megapack.store.document_frames import documents_to_frame
from megapack.store.location import Location, open_location
from megapack.store.manifest import Contents, Part, PartKind
from megapack.store.part_reader import PartReader, Verify
from megapack.store.schema import SchemaId, file_metadata
from megapack.store.versions import commit
from megapack.store.writer import PartForm, write_part

TOKENIZE_SEMANTICS = 3
_BATCH = 256
_GROUP_RECORDS = 1000
_ENCODERS_KEPT = 2


def tokenize_part(
    job: PrepareJob,
    conversations: TableRef,
    part_index: int,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> TableRef:
    """Tokenize one part of conversations.

    Args:
        job: the preparation job.
        conversations: a table of the split step.
        part_index: which of its parts, 0 <= part_index < conversations.num_parts.
        on_progress: told how many conversations are done, after each batch.

    Returns:
        The documents; `reused` when they stood there already.

    Raises:
        ConfigError: the tokenizer or template cannot be used, or there is no such part.
        DataError: a document is too long and the job says `error`, or the part is damaged.
        StoreError: the store failed.
    """
    source = committed(conversations)
    part = _part(source.manifest.parts_of(PartKind.CONVERSATIONS), part_index, uri=source.uri)
    files = read_tokenizer_files(job.tokenizer)
    settings = job.tokenize.model_dump(mode="json", exclude={"format", "pad_token"})
    inputs = {
        "part": part.sha256,
        "tokenizer": files.digest,
        "tokenize": settings,
        "limit": job.max_document_tokens,
    }
    address = step_address("tokenize", TOKENIZE_SEMANTICS, inputs)
    location = open_location(f"{job.store.rstrip('/')}/steps/tokenize/{address}")
    found = usable_version(location, address)
    if found is not None:
        return found.table_ref(reused=True)
    frame = PartReader(open_location(source.uri), verify=Verify.DISCARD).read(part)
    stored = frame_to_conversations(frame, where=f"{source.uri}/{part.key}")
    work = _Work(
        tokenizer=ConversationTokenizer(
            encoder=_encoder(files), config=job.tokenize, limit=job.max_document_tokens
        )
    )
    for batch in batched(stored, _BATCH):
        work.add(batch)
        if on_progress is not None:
            on_progress(work.counts.conversations)
    ledger = DropLedger.of(work.drops)
    check_conservation(
        documents_in=len(stored), placed=work.counts.kept, drops=ledger, where="tokenize"
    )
    contents = Contents(
        schema_id=SchemaId.DOCUMENTS,
        kind="documents",
        parts=[*work.write_documents(location), *write_drops(location, work.drops)],
        address=address,
        counts=work.counts.as_json(),
        drops=ledger,
        settings=inputs,
        parents={"conversations": source.manifest.digest, "tokenizer": files.digest},
    )
    return commit(location, contents.manifest()).table_ref()


class _Work:
    """Documents, drops and counts of one part."""

    def __init__(self, *, tokenizer: ConversationTokenizer) -> None:
        self._tokenizer = tokenizer
        self._documents: list[Document] = []
        self._formats: list[str] = []
        self.drops: list[Drop] = []
        self.counts = TokenizeCounts()

    def add(self, batch: Sequence[StoredConversation]) -> None:
        """Tokenize a batch."""
        outcome = self._tokenizer.tokenize(batch)
        self._documents += outcome.documents
        self._formats += outcome.formats
        self.drops += outcome.drops
        self.counts = self.counts.plus(outcome.counts)

    def write_documents(self, location: Location) -> list[Part]:
        """Write the documents: one part, or none when there are none."""
        if not self._documents:
            return []
        frame = documents_to_frame(self._documents, formats=self._formats)
        form = PartForm(
            schema=SchemaId.DOCUMENTS,
            kind=PartKind.DOCUMENTS,
            metadata=file_metadata(SchemaId.DOCUMENTS),
            group_records=_GROUP_RECORDS,
        )
        counts = {
            "num_tokens": self.counts.tokens,
            "num_target_tokens": self.counts.target_tokens,
        }
        return [write_part(location, frame, form=form, counts=counts)]


def _part(parts: tuple[Part, ...], index: int, *, uri: str) -> Part:
    if not 0 <= index < len(parts):
        raise ConfigError(
            f"{uri}: expected a part index below {len(parts)}, found {index}. Run the split step "
            "again."
        )
    return parts[index]


@lru_cache(maxsize=_ENCODERS_KEPT)
def _encoder(files: TokenizerFiles) -> HuggingFaceEncoder:
    """The engine of a tokenizer, kept between parts: loading a large one takes seconds."""
    return HuggingFaceEncoder(files)
