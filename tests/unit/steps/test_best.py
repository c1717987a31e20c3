import math

import pytest

from megapack.jobs.addresses import train_address
from megapack.steps.best import Score, best_checkpoint, better_of
from megapack.store.files import upload_files
from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.versions import commit
from tests.support.tiny_dataset import make_dataset, make_rows, train_job

FIRST, WORSE, EQUAL = Score(step=2, loss=1.0), Score(step=4, loss=1.5), Score(step=6, loss=1.0)


@pytest.mark.parametrize(
    ("before", "now", "best"),
    [
        (None, None, None),
        (None, FIRST, FIRST),
        (FIRST, None, FIRST),
        (FIRST, WORSE, FIRST),
        (WORSE, FIRST, FIRST),
        (FIRST, EQUAL, FIRST),
        (FIRST, Score(step=8, loss=math.nan), FIRST),
        (None, Score(step=8, loss=math.inf), None),
    ],
)
def test_the_lower_loss_is_better_and_the_earlier_of_equals(before, now, best):
    assert better_of(before, now) == best


def test_best_checkpoint_is_the_one_that_the_newest_manifest_names(tmp_path):
    job = train_job(make_dataset(tmp_path / "data", make_rows(2, seed=1)), tmp_path / "out")
    assert best_checkpoint(job) is None
    location = open_location(job.output)
    for step, best in ((2, None), (4, Score(step=4, loss=1.0)), (6, Score(step=4, loss=1.0))):
        (tmp_path / f"files-{step}").mkdir()
        (tmp_path / f"files-{step}" / "shard").write_text(str(step))
        contents = Contents(
            schema_id="megapack.checkpoint/1",
            kind="checkpoint",
            parts=upload_files(location, tmp_path / f"files-{step}"),
            address=train_address(job),
            counts={"step": step, "consumed_rows": 4 * step, "skipped_steps": 0},
            settings={"best": None if best is None else best.as_json()},
        )
        commit(location, contents.manifest())
    found = best_checkpoint(job)
    assert (found.step, found.version) == (4, 2)
