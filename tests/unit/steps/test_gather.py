import pytest

from megapack.errors import DataError
from megapack.records.drops import DropReason
from megapack.steps.pack import pack
from megapack.steps.split import list_sources, split_source
from megapack.steps.tables import committed
from megapack.steps.tokenize import tokenize_part
from megapack.store.location import open_location
from megapack.store.manifest import PartKind
from tests.support.prepare_jobs import line, plain_line, prepare_job


def tables(job):
    sources = [split_source(job, shard) for shard in list_sources(job)]
    documents = [tokenize_part(job, ref, at) for ref in sources for at in range(ref.num_parts)]
    return {"conversations": sources, "documents": documents}


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("documents", PartKind.DOCUMENTS),
        ("documents", PartKind.DROPS),
        ("conversations", PartKind.DROPS),
    ],
)
def test_altered_part_is_refused_and_a_rerun_heals(tmp_path, step, kind):
    source = tmp_path / "a.jsonl"
    too_long = line(("user", "w1"), ("assistant", "w2 " * 90))
    source.write_text("\n".join([*(plain_line(number) for number in range(9)), too_long, "{"]))
    job = prepare_job(tmp_path, source, validation_fraction=0.0)
    refs = tables(job)
    sound = pack(job.model_copy(update={"name": "sound"}), **refs)
    version = committed(refs[step][0])
    assert set(version.manifest.drop_ledger().documents) <= set(DropReason)
    (part,) = version.manifest.parts_of(kind)
    location = open_location(version.uri)
    data = location.get(part.key)
    location.put(part.key, data[:-1] + b"?")
    with pytest.raises(DataError, match=r"the part was altered. It was deleted: run again"):
        pack(job, **refs)
    healed = pack(job, **tables(job))
    assert location.get(part.key) == data
    assert (healed.digest, healed.version) == (sound.digest, 1)
