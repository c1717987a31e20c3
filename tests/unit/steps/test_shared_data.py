"""Real files prepared under every format: counts add up, and every drop says why."""

import json
from pathlib import Path

import pytest

from infra.demo.build import build_demo
from megapack.jobs.prepare import PrepareJob
from megapack.records.drops import DropReason
from megapack.steps.audit import audit
from megapack.steps.pack import pack
from megapack.steps.tables import committed, parts
from megapack.store.document_frames import frame_to_drops
from megapack.store.manifest import PartKind
from tests.support.chain import tables

SHARED = Path(__file__).parents[4] / "shared" / "data"
FORMATS = ("chat_template", "identity", "nemotron-h-aligned", "nemotron-nano-v2")
PLAIN = ("fastchat_dummy_conversation.json", "fastchat_merged.jsonl.packed")
TOOLS = "tau_airline.messages.jsonl"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    build_demo(folder, size=200, vocabulary_size=1500)
    return folder


def conversations_in(path):
    """How many conversations a file holds, and which of them have tool turns, told without us."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return len(json.loads(text)), 0
    records = [json.loads(line)["messages"] for line in text.splitlines()]
    if path.suffix == ".packed":
        systems = [[one["role"] for one in record].count("system") for record in records]
        first = [record[0]["role"] == "system" for record in records]
        return sum(n + (not begins) for n, begins in zip(systems, first, strict=True)), 0
    tools = [
        any(one["role"] == "tool" or one.get("tool_calls") for one in record) for record in records
    ]
    return len(records), sum(tools)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", [*PLAIN, TOOLS])
def test_file_is_placed_or_dropped_to_the_last_conversation(demo, tmp_path, name, form):
    job = PrepareJob.model_validate(
        {
            "sources": [{"uri": str(SHARED / name), "name": name}],
            "tokenizer": str(demo / "tokenizer"),
            "tokenize": {"format": form, "long_documents": "drop"},
            "pack": {"row_length": 32768},
            "store": str(tmp_path),
        }
    )
    made = tables(job)
    ref = pack(job, **made)
    total, with_tools = conversations_in(SHARED / name)
    manifest = committed(ref).manifest
    ledger = manifest.drop_ledger()
    # Megatron's formats have no words for tools; a chat template has.
    lossy = 0 if form == "chat_template" else with_tools
    assert sum(table.num_records for table in made["conversations"]) == total
    assert manifest.counts["documents_in"] == total
    assert ledger.documents == ({DropReason.LOSSY_FORMAT: lossy} if lossy else {})
    assert manifest.counts["documents_placed"] == total - lossy
    drops = [d for _, frame in parts(committed(ref), PartKind.DROPS) for d in frame_to_drops(frame)]
    assert len(drops) == lossy
    assert all(Path(drop.uri).name == name and len(drop.detail) > 30 for drop in drops)
    assert len({drop.line for drop in drops}) == lossy
    assert audit(ref).violations == ()
