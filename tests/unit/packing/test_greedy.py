"""The greedy packer: its rule, its laws, and where it differs from the published one on purpose."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megapack.packing.greedy import CloseReason, GreedyPacker, Held, PackItem
from megapack.packing.group_draw import GroupDraw
from megapack.packing.row_limits import RowLimits
from megapack.records.multimodal_sample import SampleSize
from megapack.records.rejects import RejectReason
from megapack.records.shard import Shard
from tests.support.plain_bagel_packer import PublishedPacker


class World:
    """Numbered samples of a few groups, and a packer over them that can be left and taken up."""

    def __init__(self, limits, groups, *, weights=None, mandatory=()):
        self.limits = limits
        sizes = {name: [_size(size) for size in sizes] for name, sizes in groups.items()}
        self.items, self.groups = [], {}
        for name, of_group in sizes.items():
            first = len(self.items)
            self.items += [
                PackItem(group=name, size=size, content=first + number)
                for number, size in enumerate(of_group)
            ]
            self.groups[name] = list(range(first, len(self.items)))
        self.weights = weights or dict.fromkeys(groups, 1.0)
        self.mandatory = tuple(mandatory)
        self.read = Counter()
        self.draw = self.new_draw()
        self.packer = self.new_packer(Held())

    def new_draw(self):
        return GroupDraw(self.weights, seed=3, epoch=0, shard=Shard())

    def new_packer(self, held):
        return GreedyPacker(self.limits, self.draw, self.take, mandatory=self.mandatory, held=held)

    def take(self, name):
        if self.read[name] == len(self.groups[name]):
            return None
        self.read[name] += 1
        return self.items[self.groups[name][self.read[name] - 1]]

    def rows(self):
        out = []
        while (row := self.packer.next_row()) is not None:
            out.append(row)
        return out

    def lengths(self):
        return [item.size.tokens for item in self.items]


def _size(size):
    return SampleSize(tokens=size) if isinstance(size, int) else size


def _numbers(rows):
    return [[item.content for item in row.items] for row in rows]


def _limits(max_tokens, expected=None, *, prefer=0, buffered=0, **more):
    return RowLimits(
        max_tokens=max_tokens,
        expected_tokens=max_tokens if expected is None else expected,
        max_sample_tokens=more.pop("sample", max_tokens),
        prefer_buffer_before=prefer,
        max_buffered=buffered,
        **more,
    )


# Sizes at, one below and one above what decides: a row of 10 that is handed out at 8.
NASTY = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])


@st.composite
def worlds(draw):
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    mandatory = [name for name in names if draw(st.booleans())]
    groups = {name: draw(st.lists(NASTY, max_size=9)) for name in names}
    weights = {
        name: draw(st.sampled_from([0.0, 1.0] if name in mandatory else [1.0, 5.0]))
        for name in names
    }
    limits = _limits(
        10,
        draw(st.sampled_from([1, 7, 8, 9, 10])),
        prefer=draw(st.sampled_from([0, 1, 5, 10])),
        buffered=draw(st.sampled_from([0, 1, 3])),
    )
    return World(limits, groups, weights=weights, mandatory=mandatory)


@given(worlds())
@settings(max_examples=80)
def test_every_sample_is_placed_once_and_all_limits_hold(world):
    rows = world.rows()
    placed = sorted(number for row in _numbers(rows) for number in row)
    assert placed == list(range(len(world.items)))
    for row in rows:
        assert row.size.tokens == sum(item.size.tokens for item in row.items) <= 10
        assert (row.reason is CloseReason.EXPECTED) == (
            row.size.tokens >= world.limits.expected_tokens
        )
        assert (row.cap is not None) == (row.reason is CloseReason.NO_ROOM)
        assert row.most_waiting <= world.limits.max_buffered
    held = world.packer.held()
    assert not held.openers + held.waiting


@given(worlds())
@settings(max_examples=60)
def test_a_packer_resumed_after_every_row_gives_the_same_rows(world):
    whole = _numbers(world.rows())
    world.read, world.draw = Counter(), world.new_draw()
    world.packer, rows = world.new_packer(Held()), []
    while (row := world.packer.next_row()) is not None:
        rows.append(row)
        world.draw = world.new_draw().resume(world.draw.state())
        world.packer = world.new_packer(world.packer.held())
    assert _numbers(rows) == whole


@given(worlds())
@settings(max_examples=60)
def test_few_samples_have_to_open_a_row_and_the_first_always_does(world):
    before = ()
    while (row := world.packer.next_row()) is not None:
        if before:
            assert row.items[0] is before[0]
        before = world.packer.held().openers
        assert len(before) <= len(world.mandatory) + 2


@given(
    st.lists(st.integers(1, 4), max_size=40),
    st.lists(st.integers(1, 5), max_size=40),
    st.sampled_from([6, 8, 10]),
    st.sampled_from([[], ["a"]]),
)
@example([4] * 30, [5, 1] * 15, 8, ["a"])
@settings(max_examples=60)
def test_rows_equal_the_published_ones_where_no_sample_triggers_a_row(a, b, expected, mandatory):
    """Whatever waits fits a row below `prefer`, the buffer has room, none is at a limit."""
    limits = _limits(10, expected, prefer=5, buffered=100, sample=6)
    weights = {"a": 0.0 if mandatory else 1.0, "b": 1.0}
    world = World(limits, {"a": a, "b": b}, weights=weights, mandatory=mandatory)
    published = PublishedPacker(limits, world.lengths(), world.groups, mandatory)
    theirs = published.run(world.new_draw().draw)
    ours = _numbers(world.rows())
    assert theirs.raised
    assert not theirs.lost
    assert ours[: len(theirs.rows)] == theirs.rows


def test_m12_the_sample_that_triggers_a_row_opens_the_next_one():
    """Published: it is gone, if the buffer is full or if it came from the buffer."""
    world = World(_limits(10), {"a": [6, 7, 2]})
    published = PublishedPacker(world.limits, [6, 7, 2], world.groups).run(lambda: "a")
    assert (published.rows, published.lost) == ([[0]], [1])
    first = world.packer.next_row()
    assert (first.reason, first.cap) == (CloseReason.NO_ROOM, RejectReason.TOO_MANY_TOKENS)
    assert [item.content for item in world.packer.held().openers] == [1]
    assert _numbers(world.rows()) == [[1, 2]]


def test_m12_a_waiting_sample_that_closes_a_row_opens_the_next_one():
    world = World(_limits(10, prefer=10, buffered=5), {"a": [6, 7, 5, 4]})
    assert _numbers(world.rows()) == [[0], [1], [2, 3]]
    published = PublishedPacker(world.limits, world.lengths(), world.groups).run(lambda: "a")
    assert published.lost == [1]


def test_m13_finite_data_ends_without_error_and_flushes_rows_and_buffer():
    world = World(_limits(10, 10, buffered=3), {"a": [6, 7, 3, 8]})
    published = PublishedPacker(world.limits, world.lengths(), world.groups).run(lambda: "a")
    assert published.raised
    assert published.left_behind
    rows = world.rows()
    assert sorted(number for row in _numbers(rows) for number in row) == [0, 1, 2, 3]
    assert rows[-1].reason is CloseReason.END
    assert world.packer.next_row() is None


def test_m14_a_sample_of_exactly_the_limit_counts_alike_in_all_groups():
    """Published: left out of a mandatory group, taken from another."""
    limits = _limits(10, 10)
    for mandatory in ([], ["a"]):
        world = World(limits, {"a": [10]}, mandatory=mandatory)
        published = PublishedPacker(limits, [10], {"a": [0]}, mandatory).run(lambda: "a")
        assert published.too_long == ([0] if mandatory else [])
        assert _numbers(world.rows()) == [[0]]


def test_c12_mandatory_groups_that_together_exceed_the_maximum_take_turns():
    """Published: 3 x 16000 in a row of 36864, so its padding is negative."""
    limits = RowLimits(max_sample_tokens=16384, max_buffered=0)
    groups = {name: [16000] * 4 for name in "abc"}
    world = World(limits, groups, mandatory="abc")
    theirs = PublishedPacker(limits, world.lengths(), world.groups, "abc").run(lambda: "a")
    assert 48000 in [sum(world.lengths()[n] for n in row) for row in theirs.rows]
    rows = world.rows()
    assert max(row.size.tokens for row in rows) == 32000
    assert [row.mandatory_missed for row in rows][:2] == [1, 1]
    assert [[item.group for item in row.items] for row in rows][:3] == [
        ["a", "b"],
        ["c", "a"],
        ["b", "a"],
    ]


def test_a_row_whose_mandatory_samples_reach_the_expected_tokens_is_handed_out():
    """Published: one more sample is drawn first."""
    world = World(_limits(10, 5), {"a": [5, 5], "b": [1, 1]}, mandatory="a")
    first = world.packer.next_row()
    assert [item.group for item in first.items] == ["a"]
    assert first.reason is CloseReason.EXPECTED


def test_mm4_images_have_budgets_of_their_own_and_what_they_defer_is_counted():
    def picture(images, vit, vae):
        return SampleSize(tokens=1 + vit + vae, images=images, vit_tokens=vit, vae_tokens=vae)

    sizes = [picture(1, 4, 0), picture(1, 2, 0), picture(1, 0, 3), 1, picture(2, 0, 0)]
    limits = _limits(100, buffered=9, max_vit_tokens=5, max_vae_tokens=3, max_images=3)
    rows = World(limits, {"a": sizes}).rows()
    assert _numbers(rows) == [[0, 2, 3], [1, 4]]
    assert rows[0].deferred == {
        RejectReason.TOO_MANY_VIT_TOKENS: 2,
        RejectReason.TOO_MANY_IMAGES: 1,
    }
    assert rows[0].cap is RejectReason.TOO_MANY_VIT_TOKENS
    assert rows[0].size.vit_tokens == 4


def test_nobody_waits_for_ever_behind_mandatory_samples_of_a_group_without_end():
    """The one that waits never fits beside a mandatory sample, and is never preferred."""
    limits = _limits(10, prefer=0, buffered=2)
    world = World(limits, {"a": [5] * 60, "b": [9] + [3] * 60}, mandatory="a")
    rows = [world.packer.next_row() for _ in range(8)]
    nine = world.groups["b"][0]
    assert any(nine in row for row in _numbers(rows))


@pytest.mark.parametrize("prefer", [0, 10])
def test_nobody_waits_for_ever_behind_mandatory_groups_that_take_turns(prefer):
    """Each row leaves the other group's sample over; those that wait still come in between."""
    world = World(
        _limits(10, prefer=prefer, buffered=1),
        {"a": [6] * 60, "b": [6] * 60, "c": [5] * 60},
        weights={"a": 0.0, "b": 0.0, "c": 1.0},
        mandatory="ab",
    )
    rows = [world.packer.next_row() for _ in range(30)]
    placed = Counter(item.group for row in rows for item in row.items)
    assert min(placed[name] for name in "abc") >= 9


@pytest.mark.parametrize("buffered", [0, 1])
def test_buffers_of_none_and_one_defer_that_many(buffered):
    rows = World(_limits(10, 10, prefer=1, buffered=buffered), {"a": [6, 5, 5, 4]}).rows()
    assert _numbers(rows) == ([[0], [1, 2], [3]] if not buffered else [[0], [2, 3], [1]])
