"""`kill -9` at any moment of a preparation or a refresh on a real S3 server costs nothing.

A run is measured, then killed ten times at times drawn uniformly over it. After each kill readers
see the version before or the whole new one, and running again gives the undisturbed result to the
byte, without garbage.
"""

import hashlib
import json
import os
import random
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import megapack.steps.dataset_version as writing
import megapack.store.schema as schema
from megapack.jobs.pipeline import dataset_uri
from megapack.steps.audit import audit
from megapack.store.location import open_location
from megapack.store.retention import collect
from megapack.store.versions import check_parts, latest_version, read_version
from tests.support import chain
from tests.support.chain_child import GROUP_TOKENS, SMALL_PARTS, started
from tests.support.prepare_jobs import line, prepare_job
from tests.support.s3_server import BUCKET, s3_server

pytestmark = pytest.mark.flow
KILLS = 10
HINT = re.compile("/latest.json$|/addresses/")
LOOKS = 12
_NOW = -60.0


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    with (
        s3_server(tmp_path_factory.mktemp("s3")) as variables,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(schema, "GROUP_TOKENS", GROUP_TOKENS)
        patch.setattr(writing, "RowSink", SMALL_PARTS)
        yield


def chat(number):
    words = " ".join(f"w{(number * 7 + at) % 50}" for at in range(3 + number % 23))
    return line(("user", words), ("assistant", f"w{number % 50} {words}"))


def write(path, numbers):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{chat(number)}\n" for number in numbers) + "{broken\n")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Sources of two nights: of three files one changes, one goes, and one comes."""
    folder = tmp_path_factory.mktemp("kills")
    nights = (
        {"a": range(40), "b": range(60, 120), "c": range(120, 160)},
        {"a": range(40), "b": range(70, 130), "d": range(180, 220)},
    )
    for night, files in enumerate(nights):
        for name, numbers in files.items():
            write(folder / f"night{night}" / f"{name}.jsonl", numbers)
    return prepare_job(
        folder,
        {"uri": str(folder / "night0"), "name": "chats"},
        store="unset",
        validation_fraction=0.1,
        records_per_shard=50,
    )


def at(job, name, night):
    source = job.sources[0]
    moved = source.model_copy(update={"uri": source.uri.replace("night0", f"night{night}")})
    return job.model_copy(update={"sources": (moved,), "store": f"s3://{BUCKET}/{name}"})


def copied(source, target):
    """Copy all objects of a store."""
    one, other = open_location(source), open_location(target)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: other.put(key.key, one.get(key.key)), one.list_keys("")))


def content(job):
    """What a store holds but hints: keys with sizes, for datasets with digests of the bytes."""
    location = open_location(job.store)
    listed = [one for one in location.list_keys("") if not HINT.search(one.key)]

    def told(one):
        if "/versions/" in one.key:
            return json.loads(location.get(one.key))["digest"]
        if one.key.startswith("datasets/"):
            return hashlib.sha256(location.get(one.key)).hexdigest()
        return one.size

    with ThreadPoolExecutor(8) as pool:
        return dict(zip([one.key for one in listed], pool.map(told, listed), strict=True))


def check_whole(job, allowed):
    """The newest version is one of those that may stand, with all of its parts."""
    location = open_location(dataset_uri(job))
    newest = latest_version(location)
    assert newest in allowed
    if newest:
        version = read_version(location, newest)
        check_parts(location, version.manifest.parts)
        assert version.manifest.digest == allowed[newest]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", ["prepared", "refreshed"])
def test_killed_run_leaves_the_version_before_and_a_rerun_gives_the_undisturbed_one(
    how, environment, job
):
    night = 1 if how == "refreshed" else 0
    base = at(job, f"{how}-base", 0)
    standing = {0: ""}
    if night:
        ref = chain.prepared(base)
        standing = {ref.version: ref.digest}
    undisturbed = at(job, f"{how}-undisturbed", night)
    copied(base.store, undisturbed.store)
    process, answer = started(how, undisturbed)
    began = time.monotonic()
    made = answer.recv()
    process.join()
    seconds = time.monotonic() - began
    assert audit(read_version(made.uri).dataset_ref()).violations == ()
    assert collect(made.uri, min_age_s=_NOW) == 0
    expected = content(undisturbed)
    assert len([key for key in expected if "/datasets/" in f"/{key}" and "/parts/" in key]) > 5
    seed = random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"{how} takes {seconds:.2f} s; seed of the kills: {seed}\n")
    moments = random.Random(seed)
    allowed = standing | {made.version: made.digest}
    for number in range(KILLS):
        killed = at(job, f"{how}-{number}", night)
        copied(base.store, killed.store)
        process, _ = started(how, killed)
        deadline = time.monotonic() + moments.uniform(0.0, seconds)
        while (left := deadline - time.monotonic()) > 0 and process.is_alive():
            check_whole(killed, allowed)
            process.join(min(left, seconds / LOOKS))
        process.kill()
        process.join()
        check_whole(killed, allowed)
        again = getattr(chain, how)(killed)
        assert (again.version, again.digest) == (made.version, made.digest)
        assert collect(again.uri, min_age_s=_NOW) == 0
        assert content(killed) == expected
