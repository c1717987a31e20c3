"""Conversations -> documents: one call tokenizes one part of a split table.

A part is read, worked through in batches of bounded size, and written: the conversations of one
batch at a time are Python objects, and their documents become columns at once. Memory is about
three times the part's text, whatever the size of the table.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import polars as pl

from megapack.conversation.checked_encoder import CheckedEncoder
from megapack.conversation.config import Engine
from megapack.conversation.engines import Engines
from megapack.conversation.outcome import TokenizeCounts
from megapack.conversation.tokenize import ConversationTokenizer
from megapack.conversation.tokenizer_files import TokenizerFiles, read_tokenizer_files
from megapack.errors import ConfigError
from megapack.jobs.prepare import PrepareJob
from megapack.records.digest import step_address
from megapack.records.drops import Drop, DropLedger, check_conservation
from megapack.records.refs import TableRef
from megapack.records.stored_conversation import StoredConversation
from megapack.steps.drops_part import write_drops
from megapack.steps.tables import committed, usable_version
from megapack.store.committed import Committed
from megapack.store.conversation_table import frame_to_conversations
from megapack.store.document_frames import documents_to_frame
from megapack.store.location import Location, open_location
from megapack.store.manifest import Contents, Part, PartKind
from megapack.store.part_reader import PartReader, Verify
from megapack.store.schema import SchemaId, file_metadata
from megapack.store.versions import commit
from megapack.store.writer import PartForm, write_part

TOKENIZE_SEMANTICS = 4
_logger = logging.getLogger(__name__)
_BATCH = 256
_BATCH_BYTES = 4 << 20
_GROUP_RECORDS = 1000
_ENGINES_KEPT = 2
# The engine decides speed, the pad token and the format's name are no part of a document's tokens.
_NOT_IN_ADDRESS = {"format", "pad_token", "engine"}


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
        on_progress: told how many conversations are done, after each batch; from the start again
            when an engine turned out to be wrong late.

    Returns:
        The documents; `reused` when they stood there already.

    Raises:
        ConfigError: the tokenizer, template or engine cannot be used, or there is no such part.
        DataError: a document is too long and the job says `error`, or the part is damaged.
        StoreError: the store failed.
    """
    source = committed(conversations)
    part = _part(source.manifest.parts_of(PartKind.CONVERSATIONS), part_index, uri=source.uri)
    files = read_tokenizer_files(job.tokenizer)
    settings = job.tokenize.model_dump(mode="json", exclude=_NOT_IN_ADDRESS)
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
    work = _tokenized(
        job, source, part, engines=_engines(files, job.tokenize.engine), on_progress=on_progress
    )
    ledger = DropLedger.of(work.drops)
    check_conservation(
        documents_in=part.num_records + work.counts.dropped_pieces,
        placed=work.counts.kept,
        drops=ledger,
        where="tokenize",
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


def _tokenized(
    job: PrepareJob,
    source: Committed,
    part: Part,
    *,
    engines: Engines,
    on_progress: Callable[[int], None] | None,
) -> "_Work":
    """All documents of a part."""
    where = f"{source.uri}/{part.key}"
    frame = PartReader(open_location(source.uri), verify=Verify.DISCARD).read(part)
    encoder = engines.checked()
    while True:
        work = _Work(job, encoder)
        for batch in _batches(frame, where=where):
            work.add(batch)
            if on_progress is not None:
                on_progress(work.counts.conversations)
        if not encoder.in_doubt:
            break
        encoder.restart()
    _logger.info(
        "tokenize part=%s conversations=%d tokens=%d engine=%s%s",
        where,
        work.counts.conversations,
        work.counts.tokens,
        encoder.engine,
        f" ({engines.reasons})" if engines.unusable else "",
    )
    return work


def _batches(frame: pl.DataFrame, *, where: str) -> Iterator[list[StoredConversation]]:
    """Conversations, in batches of bounded number and size; a huge one is a batch of its own."""
    sizes = frame["conversation"].str.len_bytes().to_numpy()
    ends = np.cumsum(sizes, dtype=np.int64)
    start = 0
    while start < frame.height:
        before = int(ends[start] - sizes[start])
        fits = int(np.searchsorted(ends, before + _BATCH_BYTES, side="right"))
        end = min(max(fits, start + 1), start + _BATCH)
        yield frame_to_conversations(frame.slice(start, end - start), where=where)
        start = end


class _Work:
    """Documents, drops and counts of one part."""

    def __init__(self, job: PrepareJob, encoder: CheckedEncoder) -> None:
        self._tokenizer = ConversationTokenizer(
            encoder=encoder, config=job.tokenize, limit=job.max_document_tokens
        )
        self._frames: list[pl.DataFrame] = []
        self.drops: list[Drop] = []
        self.counts = TokenizeCounts()

    def add(self, batch: Sequence[StoredConversation]) -> None:
        """Tokenize a batch."""
        outcome = self._tokenizer.tokenize(batch)
        if outcome.documents:
            frame = documents_to_frame(outcome.documents, formats=outcome.formats)
            self._frames.append(frame)
        self.drops += outcome.drops
        self.counts = self.counts.plus(outcome.counts)

    def write_documents(self, location: Location) -> list[Part]:
        """Write the documents: one part, or none when there are none."""
        if not self._frames:
            return []
        frame = pl.concat(self._frames)
        self._frames.clear()
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


@lru_cache(maxsize=_ENGINES_KEPT)
def _engines(files: TokenizerFiles, choice: Engine) -> Engines:
    """The engines of a tokenizer, kept between parts: loading a large one takes seconds."""
    return Engines.load(files, choice=choice)
