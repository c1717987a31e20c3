"""The audit finds what is planted, and nothing in a sound version; the report and the pictures."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from megapack.errors import ConfigError, DataError
from megapack.multimodal.attention import nested_masks
from megapack.records.rejects import SampleLedger
from megapack.steps.audit_record import found_sound, record_sound
from megapack.steps.multimodal.audit import audit_multimodal
from megapack.steps.multimodal.mask_picture import mask_picture
from megapack.steps.multimodal.pack import pack_multimodal
from megapack.steps.multimodal.pictures import row_pictures, save_pictures, spread
from megapack.steps.multimodal.report import multimodal_report
from megapack.steps.multimodal.report_shown import report_markdown
from megapack.steps.multimodal.stored import open_multimodal
from megapack.store.location import open_location
from megapack.store.manifest import Contents, PartKind
from megapack.store.multimodal_parts import RowPart, row_totals
from megapack.store.versions import commit, read_version
from tests.support.shapes_rows import pack_job


@pytest.fixture(scope="module")
def ref(tmp_path_factory):
    return pack_multimodal(pack_job(tmp_path_factory.mktemp("shapes"), rows_per_part=4))


@pytest.fixture(scope="module")
def rows(ref):
    reader = open_multimodal(ref.uri).reader
    return [reader.row(number) for number in range(reader.num_rows)]


def published(ref, folder, rows, change=lambda info: info):
    """A version of these rows with the ledger and rejects of a sound one."""
    sound = read_version(ref.uri).manifest
    location, source = open_location(folder), open_location(ref.uri)
    info = sound.multimodal_info()
    part = RowPart(info)
    for row in rows:
        part.add(row)
    rejects = sound.parts_of(PartKind.MULTIMODAL_REJECTS)
    for one in rejects:
        location.put(one.key, source.get(one.key))
    parts = [part.close(location), *rejects]
    contents = Contents(
        schema_id=sound.schema_id,
        kind=sound.kind,
        parts=parts,
        counts=row_totals(parts),
        settings=sound.settings,
        multimodal=change(info),
    )
    return commit(location, contents.manifest()).multimodal_ref()


def first_with(rows, wanted):
    """Row, sample and item of the first item that is wanted."""
    return next(
        (at, number, item)
        for at, row in enumerate(rows)
        for number, laid in enumerate(row.laid)
        for item, one in enumerate(laid.sample.items)
        if wanted(one)
    )


def changed(rows, at, number, change):
    laid = list(rows[at].laid)
    laid[number] = change(laid[number])
    return [*rows[:at], replace(rows[at], laid=tuple(laid)), *rows[at + 1 :]]


def with_item(laid, item, **values):
    items = list(laid.sample.items)
    items[item] = replace(items[item], **values)
    return replace(laid, sample=replace(laid.sample, items=tuple(items)))


def bumped(array, at=0):
    array = array.copy()
    array[at] += 1
    return array


def test_a_sound_version_has_no_violations_and_is_remembered(ref, rows):
    report = audit_multimodal(ref)
    assert report.violations == ()
    assert report.num_rows == len(rows)
    assert not found_sound(ref)
    record_sound(ref)
    assert found_sound(ref)


def test_the_same_rows_published_by_hand_are_sound(ref, rows, tmp_path):
    assert audit_multimodal(published(ref, tmp_path, rows)).violations == ()


FAULTS = {
    "position": (
        "any",
        lambda laid, _: replace(laid, positions=bumped(laid.positions)),
        "positions",
    ),
    "length": ("any", lambda laid, _: replace(laid, lengths=bumped(laid.lengths)), "lengths that"),
    "size": (
        "any",
        lambda laid, _: replace(laid, size=replace(laid.size, vit_tokens=laid.size.vit_tokens + 1)),
        "expected size",
    ),
    "id": (
        "text",
        lambda laid, at: with_item(laid, at, text=np.array([9999], np.int32)),
        "outside",
    ),
    "forced": (
        "predicted",
        lambda laid, at: replace(laid, kept=np.arange(laid.kept.size) != at),
        "only conditions to be dropped",
    ),
    "noise": (
        "noised",
        lambda laid, at: replace(laid, timesteps=np.full(laid.timesteps.size, -np.inf, np.float32)),
        "noise levels",
    ),
    "image": (
        "vit",
        lambda laid, _: replace(
            laid, sample=replace(laid.sample, encoded=(b"no image",) * len(laid.sample.encoded))
        ),
        "assembles",
    ),
    "number": ("vit", lambda laid, at: with_item(laid, at, image=77), "found number 77"),
    "unused": (
        "vit",
        lambda laid, _: replace(
            laid, sample=replace(laid.sample, encoded=(*laid.sample.encoded, b"unused"))
        ),
        "shown by an item",
    ),
    "row": (
        "any",
        lambda laid, _: replace(
            laid, sample=replace(laid.sample, ref=replace(laid.sample.ref, row=-5))
        ),
        "from nowhere",
    ),
    "grid": ("vit", lambda laid, at: with_item(laid, at, width=13), "expected"),
}
WANTED = {
    "any": lambda one: True,
    "text": lambda one: one.kind == "text",
    "vit": lambda one: one.kind == "vit",
    "predicted": lambda one: one.kind == "text" and one.loss,
    "noised": lambda one: one.kind == "vae" and one.loss,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_in_a_sample_is_found(ref, rows, tmp_path, name):
    wanted, change, message = FAULTS[name]
    at, number, item = first_with(rows, WANTED[wanted])
    planted = changed(rows, at, number, lambda laid: change(laid, item))
    violations = audit_multimodal(published(ref, tmp_path, planted)).violations
    assert any(message in one and f"row {at}" in one for one in violations), violations


def test_a_sample_twice_a_lost_row_and_a_full_row_are_found(ref, rows, tmp_path):
    twice = [*rows, replace(rows[0], laid=rows[0].laid[:1])]
    violations = audit_multimodal(published(ref, tmp_path / "twice", twice)).violations
    assert any("placed before" in one for one in violations)
    assert any("samples placed, by group" in one for one in violations)
    lost = audit_multimodal(published(ref, tmp_path / "lost", rows[1:])).violations
    assert any("samples placed, by group" in one for one in lost)
    for number, epoch in ((0, 1), (1, 7), (1, -1)):
        late = [*rows[:number], replace(rows[number], epoch=epoch), *rows[number + 1 :]]
        audit = audit_multimodal(published(ref, tmp_path / f"{number}{epoch}", late))
        assert any("epochs from 0 on" in one for one in audit.violations)
    full = [replace(rows[0], laid=tuple(one for row in rows for one in row.laid))]
    violations = audit_multimodal(published(ref, tmp_path / "full", full)).violations
    assert any("budget exceeded" in one for one in violations)


def test_a_ledger_that_does_not_add_up_is_found(ref, rows, tmp_path):
    def more(info):
        drawn = {group: count + 1 for group, count in info.drawn.items()}
        return info.with_ledger(
            SampleLedger(drawn=drawn, placed=info.placed, rejected=info.rejected)
        )

    violations = audit_multimodal(published(ref, tmp_path / "more", rows, more)).violations
    assert any("neither placed nor rejected" in one for one in violations)

    def fewer(info):
        return info.model_copy(update={"rejected": {}})

    violations = audit_multimodal(published(ref, tmp_path / "fewer", rows, fewer)).violations
    assert any("rejects listed" in one for one in violations)


def test_damaged_and_missing_parts_are_violations_and_others_are_checked(ref, rows, tmp_path):
    damaged = published(ref, tmp_path, rows)
    part = read_version(damaged.uri).manifest.parts_of(PartKind.MULTIMODAL_ROWS)[0]
    path = tmp_path / part.key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    report = audit_multimodal(damaged)
    assert any("sha256" in one for one in report.violations)
    with pytest.raises(DataError, match="violations"):
        report.check()
    path.unlink()
    assert any("nothing" in one for one in audit_multimodal(damaged).violations)


def _items(laid):
    """Items with whether they are kept, later frames left out."""
    pairs = zip(laid.sample.items, laid.kept.tolist(), strict=True)
    return [(item, kept) for item, kept in pairs if not item.joins]


def test_report_says_rows_groups_and_the_first_reject_of_each_reason(ref, rows):
    report = multimodal_report(ref)
    lines = "\n".join(report.lines())
    assert f"rows={len(rows)} fill={report.fill:.4f} samples={ref.num_samples}" in lines
    assert 0.5 < report.fill <= 1.0
    assert "reason=missing_image samples=1 first: main/talks.jsonl row" in lines
    assert sum(one.tokens for one in report.groups) == ref.num_tokens
    packing = dict(report.packing())
    assert sum(packing["rows_closed"].values()) == len(rows)
    kept = [(item, kept) for row in rows for laid in row.laid for item, kept in _items(laid)]
    for kind, count in packing["conditions"].items():
        own = [kept for item, kept in kept if item.kind == kind and item.droppable]
        assert (count, packing["conditions_dropped"].get(kind, 0)) == (len(own), own.count(False))
    text = report_markdown(ref)
    assert text.count("data:image/png;base64,") == 3
    assert "| `too_few_images` | editing | 1 |" in text


def test_pictures_are_small_and_show_dropped_conditions_and_the_mask(ref, rows, tmp_path):
    numbers = list(range(len(rows)))
    paths = save_pictures(ref, tmp_path / "new", numbers)
    assert [path.name for path in paths] == [f"row-{number:05d}.png" for number in numbers]
    assert all(path.stat().st_size < 100_000 for path in paths)
    dropped = next(at for at, row in enumerate(rows) if not all(one.kept.all() for one in row.laid))
    (picture,) = row_pictures(ref, [dropped])
    colours = Image.open(io.BytesIO(picture.png)).convert("RGB").getcolors(1 << 24)
    assert any(abs(r - 192) + abs(g - 54) + abs(b - 44) < 20 for _, (r, g, b) in colours)
    with pytest.raises(ConfigError, match="row number"):
        list(row_pictures(ref, [99]))
    assert spread(3) == [0, 1, 2]


def test_the_mask_of_a_short_row_is_drawn_position_by_position(ref):
    stored = open_multimodal(ref.uri)
    row = min((stored.row(at) for at in range(stored.num_rows)), key=lambda row: row.length)
    assert row.length <= 256
    times = 256 // row.length
    drawn = np.asarray(mask_picture(row))[::times, ::times].max(axis=2) > 16
    start = 0
    for mask in nested_masks(row):
        end = start + mask.shape[0]
        np.testing.assert_array_equal(drawn[start:end, start:end], mask)
        drawn[start:end, start:end] = False
        start = end
    assert not drawn.any()
