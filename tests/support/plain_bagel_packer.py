"""How the published packer behaves, in plain loops, written from the description of its faults.

It knows lengths only, and says what became of each sample, so that a test can show where the two
agree and what differs on purpose.
"""

from dataclasses import dataclass, field


@dataclass
class PublishedOutcome:
    rows: list[list[int]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    too_long: list[int] = field(default_factory=list)
    left_behind: list[int] = field(default_factory=list)
    raised: bool = False


class _EndedError(Exception):
    pass


class PublishedPacker:
    """Samples are numbered; `lengths[number]` is their size, `groups[name]` their order."""

    def __init__(self, limits, lengths, groups, mandatory=()):
        self.limits = limits
        self.lengths = lengths
        self.queues = {name: list(numbers) for name, numbers in groups.items()}
        self.mandatory = list(mandatory)
        self.row = []
        self.buffer = []
        self.out = PublishedOutcome()

    def run(self, choose):
        """Until a group has no more, which ends it in an error. `choose` names a group."""
        try:
            while True:
                if self.length == 0:
                    self.begin_row()
                self.one_more(choose)
        except _EndedError:
            self.out.raised = True
            self.out.left_behind = self.row + self.buffer
        return self.out

    @property
    def length(self):
        return sum(self.lengths[number] for number in self.row)

    def next_of(self, name):
        if not self.queues[name]:
            raise _EndedError
        return self.queues[name].pop(0)

    def begin_row(self):
        """Mandatory groups: strictly below the limit of a sample, and no look at the row's."""
        for name in self.mandatory:
            number = self.next_of(name)
            while self.lengths[number] >= self.limits.max_sample_tokens:
                self.out.too_long.append(number)
                number = self.next_of(name)
            self.row.append(number)

    def one_more(self, choose):
        buffered = bool(self.buffer) and self.length < self.limits.prefer_buffer_before
        number = self.buffer.pop(0) if buffered else self.next_of(choose())
        if self.lengths[number] > self.limits.max_sample_tokens:
            self.out.too_long.append(number)
        elif self.length + self.lengths[number] <= self.limits.max_tokens:
            self.row.append(number)
            if self.length >= self.limits.expected_tokens:
                self.hand_out()
        elif not buffered and len(self.buffer) < self.limits.max_buffered:
            self.buffer.append(number)
        else:
            self.out.lost.append(number)
            self.hand_out()

    def hand_out(self):
        self.out.rows.append(self.row)
        self.row = []
