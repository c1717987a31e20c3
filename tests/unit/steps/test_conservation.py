"""Conservation over a whole preparation: nasty chats in every kind of file, to rows and back.

What the rows must hold is counted without the data steps: each conversation alone through the
tokenizer, once at the job's limit and once without any.
"""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import chain
from random import Random

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.tokenize import ConversationTokenizer
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.jobs.prepare import PrepareJob
from megapack.layout.runs import mask_of_runs
from megapack.steps.audit import audit
from megapack.steps.pack import pack
from megapack.steps.tables import committed, parts
from megapack.store.conversation_table import frame_to_conversations
from megapack.store.document_frames import frame_to_drops
from megapack.store.manifest import PartKind, Split
from megapack.store.reader import open_dataset
from tests.support.byte_tokenizers import trained_tokenizer
from tests.support.chain import tables
from tests.support.nasty_chats import (
    Traits,
    nasty_messages,
    nasty_openai,
    nasty_record,
    nasty_text,
)
from tests.support.templating import CHATML
from tests.support.toy_tokenizers import save_tokenizer

PLAIN = Traits(tools=False, reasoning=False, systems=False)
# A column has one type, and switches come as booleans, integers and fractions.
UNSWITCHED = replace(PLAIN, loss=False)
UNLIMITED = 10**9
ROW = 96


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tokenizer(
        trained_tokenizer(),
        tmp_path_factory.mktemp("tokenizer"),
        template=CHATML,
        pad_token="<unk>",
        eos_token="<|im_end|>",
    )


def write_sources(folder, draw):
    """Files of all kinds; returns how many conversations they hold."""
    lines = [nasty_record(draw) for _ in range(24)]
    lines += [nasty_openai(draw, PLAIN) for _ in range(8)]
    lines += lines[-3:]
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    array = [nasty_record(draw) for _ in range(8)]
    (folder / "b.json").write_text(json.dumps(array))
    columns = [nasty_messages(draw, UNSWITCHED) for _ in range(8)]
    pl.DataFrame({"messages": columns}).write_parquet(folder / "c.parquet")
    merged = [
        [
            [{"role": "system", "content": nasty_text(draw)}, *nasty_messages(draw, PLAIN)]
            for _ in range(draw.randint(1, 4))
        ]
        for _ in range(5)
    ]
    (folder / "d.jsonl.packed").write_text(
        "".join(f"{json.dumps({'messages': list(chain.from_iterable(one))})}\n" for one in merged)
    )
    return len(lines) + len(array) + len(columns) + sum(len(one) for one in merged)


def read_rows(ref):
    """Supervised ids of each document as they stand in the rows, all of its places by its id."""
    places = defaultdict(list)
    with open_dataset(ref.uri, ref.version) as dataset:
        for split in Split:
            if split is Split.NONE:
                continue
            for row in dataset.rows(split, np.arange(dataset.num_rows(split))):
                labels = row.labels()
                kept = 0
                for name, start, length in zip(
                    row.document_ids, row.layout.slot_starts, row.layout.lengths, strict=True
                ):
                    own = labels[start : start + length]
                    places[name].append(own[own >= 0].tolist())
                    kept += len(places[name][-1])
                # Nothing is supervised outside the documents.
                assert kept == (labels >= 0).sum() == row.num_target_tokens
    return places


def supervised(document):
    return document.tokens[mask_of_runs(document.target_runs, document.num_tokens)].tolist()


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(token in rest for token in part)


def told_alone(job, conversations):
    """What each conversation alone gives: ids with supervised tokens, and how many drop why."""
    encoder = HuggingFaceEncoder(read_tokenizer_files(job.tokenizer))
    limited, whole = (
        ConversationTokenizer(encoder=encoder, config=job.tokenize, limit=limit)
        for limit in (job.max_document_tokens, UNLIMITED)
    )
    documents, places, drops = {}, Counter(), Counter()
    for stored in conversations:
        outcome = limited.tokenize([stored])
        drops.update(drop.reason for drop in outcome.drops)
        made = {one.document_id: supervised(one) for one in outcome.documents}
        places.update(made.keys())
        documents |= made
        if made:
            (complete,) = whole.tokenize([stored]).documents
            joined = [token for one in outcome.documents for token in supervised(one)]
            lost = outcome.counts.lost_target_tokens
            if outcome.counts.split_conversations and job.tokenize.format == "identity":
                # Nothing stands between turns there, so a token may lie on both sides of a cut.
                assert len(joined) + lost >= len(supervised(complete))
            else:
                assert len(joined) + lost == len(supervised(complete))
                assert is_subsequence(joined, supervised(complete))
    return documents, places, drops


@settings(
    max_examples=8,
    deadline=None,
    # A seed has nothing in it to shrink.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 2**32 - 1),
    choices=st.fixed_dictionaries(
        {
            "format": st.sampled_from(
                ["chat_template", "identity", "nemotron-h-aligned", "nemotron-nano-v2"]
            ),
            "long_documents": st.sampled_from(["split", "truncate", "drop"]),
            "loss_on": st.sampled_from(["assistant", "all"]),
            "max_document_tokens": st.sampled_from([ROW + 1, ROW + 25]),
        }
    ),
    algorithm=st.sampled_from(["best", "streaming"]),
)
def test_every_supervised_token_of_the_sources_trains_once_or_its_document_says_why_not(
    tokenizer, tmp_path_factory, seed, choices, algorithm
):
    folder = tmp_path_factory.mktemp("law")
    (folder / "chats").mkdir()
    written = write_sources(folder / "chats", Random(seed))
    job = PrepareJob.model_validate(
        {
            "sources": [{"uri": str(folder / "chats"), "name": "chats"}],
            "tokenizer": tokenizer,
            "tokenize": choices | {"on_lossy": "keep"},
            "pack": {"row_length": ROW, "algorithm": algorithm},
            "pack_for": {"context_parallel_size": 2},
            "validation_fraction": 0.1,
            "store": str(folder / "store"),
            "records_per_shard": 20,
        }
    )
    made = tables(job)
    conversations = [
        stored
        for table in made["conversations"]
        for part, frame in parts(committed(table), PartKind.CONVERSATIONS)
        for stored in frame_to_conversations(frame, where=part.key)
    ]
    unread = sum(table.num_dropped for table in made["conversations"])
    assert len(conversations) + unread == written
    ref = pack(job, **made)
    manifest = committed(ref).manifest
    documents, places, drops = told_alone(job, conversations)

    found = read_rows(ref)
    for name, copies in found.items():
        assert all(one == documents[name] for one in copies)
    placed = Counter({name: len(copies) for name, copies in found.items()})
    listed = [
        drop for _, frame in parts(committed(ref), PartKind.DROPS) for drop in frame_to_drops(frame)
    ]
    assert all(drop.detail and drop.uri for drop in listed)
    left_out = Counter(drop.document_id for drop in listed if drop.reason == "longer_than_row")
    assert placed + left_out == places
    by_reason = Counter(drop.reason for drop in listed)
    assert manifest.drop_ledger().documents == by_reason
    assert all(by_reason[reason] >= count for reason, count in drops.items())
    assert by_reason.total() == unread + drops.total() + left_out.total()

    counts = manifest.counts
    further = places.total() + drops.total() - len(conversations)
    assert counts["documents_in"] == written + further
    assert counts["documents_placed"] == placed.total()
    assert counts["documents_in"] == placed.total() - counts["documents_copied"] + len(listed)
    targets = sum(len(documents[name]) * times for name, times in placed.items())
    assert manifest.counts["num_target_tokens"] == targets
    assert audit(ref).violations == ()
