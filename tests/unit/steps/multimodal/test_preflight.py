"""What is found before packing; and a group that cannot be read is not left out unseen."""

import pytest

from megapack.errors import DataError
from megapack.jobs.multimodal import GroupKind, PackMultimodalJob
from megapack.steps.multimodal.pack import pack_multimodal
from megapack.steps.multimodal.preflight import check_multimodal
from megapack.store.versions import latest_version
from tests.support.multimodal_sources import (
    chat,
    multimodal_job,
    sample_group,
    write_lines,
    write_pairs,
)


def test_a_group_of_which_nothing_is_usable_is_warned_of_and_never_committed(tmp_path):
    pairs = write_pairs(tmp_path / "pairs.parquet", ['["a red dot"]'] * 5)
    lines = [chat("<image>", "x", image="none.png")] * 3 + [chat("q")]
    talk = write_lines(tmp_path / "talk.jsonl", lines)
    stream = multimodal_job(
        tmp_path,
        sample_group(GroupKind.TEXT_TO_IMAGE, pairs, name="pairs"),
        sample_group(GroupKind.UNDERSTANDING, talk, name="talk"),
    )
    job = PackMultimodalJob(stream=stream, store=str(tmp_path / "store"))
    (warning,) = check_multimodal(job).warnings
    assert warning.startswith(
        "preflight warning group=talk: none of the first 4 records is usable, 3 of them for "
        "missing_image: "
    )
    with pytest.raises(DataError, match=r"^Group talk: .*missing_image: 3, nothing_supervised: 1"):
        pack_multimodal(job)
    assert latest_version(f"{tmp_path}/store/datasets/multimodal") == 0
