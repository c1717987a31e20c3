"""Documents tables in a local store, as the tokenize step leaves them, and jobs that read them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models

from megapack.jobs.prepare import PrepareJob
from megapack.layout.runs import runs_of_mask
from megapack.records.document import Document
from megapack.records.drops import Drop, DropLedger
from megapack.records.refs import TableRef
from megapack.store.document_frames import documents_to_frame, drops_to_frame
from megapack.store.location import open_location
from megapack.store.manifest import Contents, PartKind
from megapack.store.schema import SchemaId
from megapack.store.versions import commit
from megapack.store.writer import PartForm, write_part

VOCAB = 100


def write_tokenizer(folder: Path) -> str:
    """A word-level tokenizer folder with VOCAB ids; <pad> is 0."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {"<pad>": 0, "<unk>": 1} | {f"w{i}": i for i in range(2, VOCAB)}
    Tokenizer(models.WordLevel(words, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    config = {"pad_token": "<pad>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def make_document(number: int, length: int) -> Document:
    """A document of random tokens; about half of them supervised, never the first."""
    draw = np.random.default_rng(number)
    mask = draw.random(length) < 0.5
    mask[0] = False
    prefix = np.random.default_rng(number + 10**6).bytes(16).hex()
    return Document(
        document_id=prefix,
        tokens=draw.integers(2, VOCAB, length).astype(np.int32),
        target_runs=runs_of_mask(mask),
        source="s",
        uri="f.jsonl",
        line=number,
    )


def documents_table(
    uri: str, documents: Sequence[Document], *, kept: int, drops: Sequence[Drop] = ()
) -> TableRef:
    """Commit a documents table."""
    location = open_location(uri)
    form = PartForm(schema=SchemaId.DOCUMENTS, kind=PartKind.DOCUMENTS, group_records=1000)
    frame = documents_to_frame(documents, formats=["identity"] * len(documents))
    parts = [write_part(location, frame, form=form)]
    if drops:
        form = PartForm(schema=SchemaId.DROPS, kind=PartKind.DROPS, group_records=1000)
        parts.append(write_part(location, drops_to_frame(drops), form=form))
    contents = Contents(
        schema_id=SchemaId.DOCUMENTS,
        kind="documents",
        parts=parts,
        counts={"documents": len(documents), "kept": kept, "dropped_pieces": 0},
        drops=DropLedger.of(drops),
    )
    return commit(location, contents.manifest()).table_ref()


def conversations_ref(uri: str, number: int) -> TableRef:
    """A split table that kept `number` conversations and dropped none."""
    contents = Contents(schema_id="conversations", kind="conversations", parts=[])
    ref = commit(open_location(uri), contents.manifest()).table_ref()
    return ref.model_copy(update={"num_records": number})


def pack_job(folder: Path, **changes: object) -> PrepareJob:
    """A preparation job over a local store."""
    settings = {
        "sources": [{"uri": "f.jsonl"}],
        "tokenizer": write_tokenizer(folder / "tok"),
        "tokenize": {"format": "identity", "long_documents": "drop"},
        "pack": {"row_length": 32},
        "pack_for": {"context_parallel_size": 2},
        "validation_fraction": 0.25,
        "store": str(folder / "store"),
    }
    return PrepareJob.model_validate(settings | changes)
