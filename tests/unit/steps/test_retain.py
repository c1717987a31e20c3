from pathlib import Path

import pytest

from megapack.errors import ConfigError
from megapack.steps.audit import audit
from megapack.steps.resolve import resolve_dataset
from megapack.steps.retain import retain
from megapack.store.pins import pin
from tests.support.chain import prepared, refreshed
from tests.support.prepare_jobs import plain_line, prepare_job


def write(path, numbers):
    Path(path).write_text("".join(f"{plain_line(number)}\n" for number in numbers))


def tables(job):
    """Tables that have a version."""
    return sorted(path.parts[-3] for path in Path(job.store).glob("steps/*/*/versions/*"))


@pytest.fixture
def job(tmp_path):
    return prepare_job(tmp_path, tmp_path / "a.jsonl")


def nights(job, *numbers):
    found = []
    for own in numbers:
        write(job.sources[0].uri, own)
        found.append(refreshed(job))
    return found


def test_newest_versions_stay_readable_and_the_others_go(job):
    refs = nights(job, range(4), range(1, 5), range(2, 6))
    done = retain(job, keep_versions=2, min_age_s=0)
    assert done.versions == (1,)
    assert [audit(ref).violations for ref in refs[1:]] == [(), ()]
    with pytest.raises(ConfigError, match="retired"):
        resolve_dataset(refs[0].uri, version=1)
    named = {part.name for part in (Path(refs[0].uri) / "parts").iterdir()}
    kept = [resolve_dataset(ref.uri, version=ref.version) for ref in refs[1:]]
    assert kept == refs[1:]
    assert len(named) == 2


def test_pinned_version_stays(job):
    refs = nights(job, range(4), range(1, 5))
    pin(refs[0].uri, 1, owner="run")
    assert retain(job, keep_versions=1, min_age_s=0).versions == ()
    assert audit(refs[0]).violations == ()


def test_tables_of_living_versions_of_any_dataset_stay(job):
    nights(job, range(4))
    other = job.model_copy(update={"name": "other"})
    prepared(other)
    first = tables(job)
    nights(job, range(1, 5))
    assert len(tables(job)) == 2 * len(first)
    # Version 1 of the refreshed dataset is retired, and the other dataset is made from its tables.
    assert retain(job, keep_versions=1, min_age_s=0, tables_age_s=0).tables == 0
    nights(other, range(1, 5))
    assert retain(other, keep_versions=1, min_age_s=0, tables_age_s=0).tables == len(first)
    assert not set(first) & set(tables(job))
    assert refreshed(job).reused


def test_young_tables_and_parts_stay(job):
    nights(job, range(4), range(1, 5))
    before = tables(job)
    done = retain(job, keep_versions=1)
    assert (done.versions, done.parts, done.tables) == ((1,), 0, 0)
    assert tables(job) == before
    assert done.line() == "retention versions_retired=1 parts_deleted=0 tables_deleted=0"


def test_hints_of_files_in_use_stay(job):
    nights(job, range(4), range(1, 5))
    hints = Path(job.store) / "steps" / "files"
    assert len(list(hints.iterdir())) == 2
    retain(job, keep_versions=1, min_age_s=0, tables_age_s=0)
    assert len(list(hints.iterdir())) == 1
