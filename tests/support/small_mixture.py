"""A mixture of all three kinds of groups in small files."""

from megapack.jobs.multimodal import GroupKind
from megapack.packing.row_limits import RowLimits
from tests.support.multimodal_sources import (
    EDITS,
    chat,
    multimodal_job,
    png,
    sample_group,
    write_lines,
    write_pairs,
    write_parquet,
)

SMALL = RowLimits(
    max_tokens=120,
    expected_tokens=90,
    max_sample_tokens=100,
    prefer_buffer_before=60,
    max_buffered=3,
)


def small_mixture(folder, *, limits=SMALL, number=9, **changes):
    """A job over `number` captioned images, as many questions about one, and a few edits."""
    write_pairs(folder / "pairs.parquet", [f"number {count}" for count in range(number)])
    (folder / "images").mkdir()
    (folder / "images" / "one.png").write_bytes(png(28, 14))
    write_lines(
        folder / "talk.jsonl",
        [
            chat(f"<image>What {count}?", f"It is {count}.", image="one.png")
            for count in range(number)
        ],
    )
    edits = [
        {"image_list": [png(), png(color=(0, 0, 250))], "instruction_list": [[f"blue {count}"]]}
        for count in range(4)
    ]
    write_parquet(folder / "edits.parquet", edits, EDITS)
    talk = sample_group(
        GroupKind.UNDERSTANDING,
        folder / "talk.jsonl",
        name="talk",
        images=str(folder / "images"),
        weight=2.0,
    )
    pairs = sample_group(
        GroupKind.TEXT_TO_IMAGE, folder / "pairs.parquet", name="pairs", mandatory=True
    )
    edits = sample_group(GroupKind.EDITING, folder / "edits.parquet", name="edits")
    return multimodal_job(folder, pairs, talk, edits, limits=limits, **changes)
