"""Sources, tokenizer and data steps against a real S3 server."""

import gzip

import fsspec
import pytest

from megapack.errors import ConfigError, StoreError
from megapack.steps.split import list_sources, split_source
from megapack.steps.tokenize import tokenize_part
from megapack.store.source_files import list_files
from megapack.store.source_records import read_records
from tests.support.prepare_jobs import plain_line, prepare_job
from tests.support.s3_server import closed_port

pytestmark = pytest.mark.flow


@pytest.fixture
def s3_files(s3):
    files = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    return files, s3.removeprefix("s3://")


def test_prefix_glob_and_file_are_listed_and_read(s3_files):
    files, prefix = s3_files
    lines = "\n".join(plain_line(i) for i in range(3)).encode()
    files.pipe_file(f"{prefix}/b.jsonl", lines)
    files.pipe_file(f"{prefix}/sub/a.jsonl.gz", gzip.compress(lines))
    files.pipe_file(f"{prefix}/_SUCCESS", b"")
    found = list_files(f"s3://{prefix}")
    assert [f.uri for f in found] == [f"s3://{prefix}/b.jsonl", f"s3://{prefix}/sub/a.jsonl.gz"]
    assert [len(list(read_records(file))) for file in found] == [3, 3]
    assert [f.uri for f in list_files(f"s3://{prefix}/*.jsonl")] == [f"s3://{prefix}/b.jsonl"]
    before = list_files(f"s3://{prefix}/b.jsonl")[0]
    files.pipe_file(f"{prefix}/b.jsonl", lines + b"\n" + lines)
    after = list_files(f"s3://{prefix}/b.jsonl")[0]
    assert after.fingerprint != before.fingerprint
    assert after.size == 2 * before.size + 1


def test_missing_prefix_and_closed_endpoint_are_told_apart(s3_files, monkeypatch):
    _, prefix = s3_files
    with pytest.raises(ConfigError, match="found nothing"):
        list_files(f"s3://{prefix}/none")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(StoreError, match="does not answer"):
        list_files(f"s3://{prefix}")


def test_split_and_tokenize_work_from_s3_to_s3(s3_files, tmp_path):
    files, prefix = s3_files
    files.pipe_file(f"{prefix}/in/a.jsonl", plain_line(1).encode())
    job = prepare_job(tmp_path, f"s3://{prefix}/in", store=f"s3://{prefix}/store")
    files.put(job.tokenizer, f"{prefix}/tokenizer", recursive=True)
    job = job.model_copy(update={"tokenizer": f"s3://{prefix}/tokenizer"})
    (shard,) = list_sources(job)
    conversations = split_source(job, shard)
    documents = tokenize_part(job, conversations, 0)
    assert (documents.num_records, documents.num_dropped) == (1, 0)
    assert tokenize_part(job, split_source(job, shard), 0).reused
    with pytest.raises(
        ConfigError, match=r"expected a tokenizer folder with tokenizer.json at s3:"
    ):
        tokenize_part(job.model_copy(update={"tokenizer": f"s3://{prefix}/none"}), conversations, 0)


def test_a_bucket_that_is_not_there_is_called_so(s3_files):
    _, prefix = s3_files
    with pytest.raises(ConfigError, match="expected a bucket 'no-bucket', found no such bucket"):
        list_files("s3://no-bucket/in")
    with pytest.raises(ConfigError, match="found nothing"):
        list_files(f"s3://{prefix}/none")
