"""Groups of a multimodal job on a real S3 server, also in a process that was forked."""

import json
import multiprocessing

import fsspec
import pytest

from megapack.errors import ConfigError, StoreError
from megapack.jobs.multimodal import GroupKind
from megapack.records.multimodal_sample import Sample
from megapack.records.rejects import RejectReason
from megapack.records.shard import Shard
from megapack.steps.multimodal.groups import open_group
from megapack.steps.multimodal.tokenizer import open_tokenizer
from tests.support.multimodal_sources import (
    EDITS,
    chat,
    drain,
    multimodal_job,
    png,
    sample_group,
    write_lines,
    write_pairs,
    write_parquet,
)
from tests.support.s3_server import closed_port

pytestmark = pytest.mark.flow


@pytest.fixture
def source(tmp_path, s3):
    """The same files here and there; gives a function that reads a group from either."""
    local = tmp_path / "data"
    write_pairs(local / "pairs" / "a.parquet", [f"caption {n}" for n in range(9)])
    edits = {"image_list": [png(), png(32)], "instruction_list": [["widen it"]]}
    write_parquet(local / "edits" / "a.parquet", [edits] * 5, EDITS)
    (local / "images" / "v").mkdir(parents=True)
    for name in ("a.png", "v/1.png", "v/2.png"):
        (local / "images" / name).write_bytes(png())
    lines = [
        chat("<image>", "x", image="a.png"),
        chat("<video>", "y", video="v"),
        chat("<image>", "x", image="none.png"),
        chat("<image>", "x", image="v"),
        chat("<video>", "x", video="a.png"),
    ]
    write_lines(local / "chats" / "in.jsonl", lines)
    (local / "meta.json").write_text(json.dumps({"a.parquet": {"num_row_groups": 3}}))
    files = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    files.put(f"{local}/", s3.removeprefix("s3://"), recursive=True)

    def opened(kind, base):
        changes = {
            GroupKind.TEXT_TO_IMAGE: {"metadata": f"{base}/meta.json"},
            GroupKind.UNDERSTANDING: {"images": f"{base}/images"},
            GroupKind.EDITING: {},
        }[kind]
        place = dict(zip(GroupKind, ("pairs", "chats", "edits"), strict=True))[kind]
        job = multimodal_job(tmp_path, sample_group(kind, f"{base}/{place}", **changes))
        return open_group(job.groups[0], job, open_tokenizer(job))

    return opened, str(local), s3


def read(group):
    return [
        (one.ref, one.outcome.encoded if isinstance(one.outcome, Sample) else one.outcome.reason)
        for one in drain(group.reader(Shard(), 0))
    ]


def _send(group, pipe):
    pipe.send(read(group))


# Data workers are forked like this while other threads run; nothing of theirs is used.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_groups_read_the_same_from_s3_as_from_a_folder_also_after_a_fork(source):
    opened, local, s3 = source
    for kind in GroupKind:
        there = opened(kind, s3)
        expected = read(opened(kind, local))
        assert read(there) == expected
        receiver, sender = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=_send, args=(there, sender))
        child.start()
        assert receiver.poll(60)
        assert receiver.recv() == expected
        child.join(10)
        assert child.exitcode == 0
        assert there.digest == opened(kind, local).digest
    found = {ref.row: outcome for ref, outcome in read(opened(GroupKind.UNDERSTANDING, s3))}
    assert [found[row] for row in (2, 3, 4)] == [RejectReason.MISSING_IMAGE] * 3


def test_a_store_that_fails_is_no_reject_and_nothing_to_read_is_the_jobs_fault(source, monkeypatch):
    opened, _, s3 = source
    group = opened(GroupKind.UNDERSTANDING, s3)
    before = group.identity()
    nowhere = sample_group(GroupKind.UNDERSTANDING, f"{s3}/chats", images=f"{s3}/none")
    with pytest.raises(ConfigError, match=r"images s3://.*/none: expected a folder or prefix"):
        open_group(nowhere, None, None)
    files = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    files.pipe_file(f"{s3.removeprefix('s3://')}/images/a.png", png(32))
    assert group.identity() != before
    reader = group.reader(Shard(), 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(StoreError, match="does not answer"):
        reader.next()
