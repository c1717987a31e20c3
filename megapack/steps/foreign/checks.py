"""Checks of one row, whatever tool made it."""

from collections.abc import Iterable

import numpy as np

from megapack.conversation.config import LossOn
from megapack.steps.foreign.faults import Fault, FaultLog
from megapack.steps.foreign.markers import Ids, Markers, trailing_run
from megapack.steps.foreign.rows import ForeignRow


class RowChecks:
    """Checks rows against markers and what is meant to be supervised."""

    def __init__(self, markers: Markers, *, loss_on: LossOn, log: FaultLog) -> None:
        self._markers = markers
        self._loss_on = loss_on
        self._log = log

    def check(self, row: ForeignRow) -> None:
        """All checks of a row."""
        self._check_ids(row)
        self._check_crossing(row)
        for number, start, end in row.documents():
            where = f"{row.where} document {number}"
            real = self._real_end(row, start, end)
            self._check_positions(row, where, start, real)
            self._check_padding(row, where, real, end)
            self._check_begin(row, where, start, real)
            if real > start + 1:
                self._check_supervision(row, where, start, real)

    def _check_ids(self, row: ForeignRow) -> None:
        size = self._markers.vocabulary
        wrong = row.tokens < 0
        if size is not None:
            wrong |= row.tokens >= size
        if wrong.any():
            at = int(np.argmax(wrong))
            self._log.add(
                Fault.ID_OUTSIDE_VOCABULARY,
                f"{row.where} position {at}",
                expected=f"an id in [0, {size})" if size is not None else "an id of at least 0",
                found=int(row.tokens[at]),
            )

    def _check_crossing(self, row: ForeignRow) -> None:
        """A label on a document's first token is predicted from the document before."""
        for start in row.starts[1:][row.learnt[row.starts[1:]]].tolist()[:1]:
            self._log.add(
                Fault.LABEL_CROSSES_DOCUMENTS,
                f"{row.where} position {start}",
                expected="no label on the first token of a document",
                found=f"id {int(row.tokens[start])} learnt from the document before it",
            )

    def _check_positions(self, row: ForeignRow, where: str, start: int, real: int) -> None:
        if row.positions is None:
            return
        found = row.positions[start:real]
        wrong = np.flatnonzero(found != np.arange(found.size))
        if wrong.size:
            at = int(wrong[0])
            self._log.add(
                Fault.BAD_POSITIONS,
                f"{where} position_ids[{start + at}]",
                expected=f"{at}, counted from 0 in every document",
                found=int(found[at]),
            )

    def _check_padding(self, row: ForeignRow, where: str, real: int, end: int) -> None:
        learnt = np.flatnonzero(row.learnt[real:end])
        if learnt.size:
            at = real + int(learnt[0])
            self._log.add(
                Fault.PADDING_TRAINS,
                f"{where} position {at}",
                expected="no label on padding",
                found=f"{learnt.size} of {end - real} padding positions learnt",
            )

    def _check_begin(self, row: ForeignRow, where: str, start: int, real: int) -> None:
        """Where the tokenizer begins every text with something, it marks documents."""
        bos = self._markers.bos
        if not bos or real <= start:
            return
        inside = np.flatnonzero(row.tokens[start + len(bos) : real] == bos[0])
        if inside.size:
            self._log.add(
                Fault.BAD_BOUNDARIES,
                f"{where} position {start + len(bos) + int(inside[0])}",
                expected=f"id {bos[0]} only where a document begins",
                found="it inside the document: a boundary is missing, or it was put in twice",
            )

    def _check_supervision(self, row: ForeignRow, where: str, start: int, real: int) -> None:
        inside = row.learnt[start + 1 : real]
        if (row.tokens[start:real] == row.tokens[start]).all():
            return
        if not inside.any():
            self._log.add(
                Fault.NOTHING_TRAINED,
                where,
                expected="at least one learnt token",
                found=f"none in {real - start}",
            )
        elif self._loss_on is LossOn.ALL:
            self._check_all(row, where, start, real)
        elif inside.all() and real - start > 2:  # noqa: PLR2004 - prompt and answer of one token
            self._log.add(
                Fault.ALL_TRAINED,
                where,
                expected="tokens of the prompt that are not learnt (or --loss-on all)",
                found=f"all {real - start - 1} that can be",
            )
        else:
            self._check_answers(row, where, start, real)

    def _check_all(self, row: ForeignRow, where: str, start: int, real: int) -> None:
        missing = np.flatnonzero(~row.learnt[start + 1 : real]) + start + 1
        if not missing.size:
            return
        only_last = missing.size == 1 and missing[0] == real - 1
        self._log.add(
            Fault.LOST_END_TOKEN if only_last else Fault.NOT_ALL_TRAINED,
            f"{where} position {int(missing[0])}",
            expected="every token but the first learnt",
            found=f"{missing.size} that are not",
        )

    def _check_answers(self, row: ForeignRow, where: str, start: int, real: int) -> None:
        tokens = row.tokens[start:real].tolist()
        for begin, end in row.answers(start + 1, real):
            moved = _moved_start(tokens, begin - start, self._markers.opens)
            lost, beyond = _moved_end(tokens, end - start, self._markers.ends)
            if moved or beyond:
                late = "late" if moved > 0 or beyond else "early"
                self._log.add(
                    Fault.SHIFTED_MASK,
                    f"{where} positions {begin} to {end}",
                    expected="an answer learnt from its first token to its end token",
                    found=f"the mask one token {late}",
                )
            elif lost:
                self._log.add(
                    Fault.LOST_END_TOKEN,
                    f"{where} position {end}",
                    expected=f"the end of the answer, id {tokens[end - start + lost - 1]}, learnt",
                    found="an answer that never learns to stop",
                )

    def _real_end(self, row: ForeignRow, start: int, end: int) -> int:
        """One past a document's last token that is no padding."""
        marked = np.flatnonzero(~row.padding[start:end])
        real = start + (int(marked[-1]) + 1 if marked.size else 0)
        if real == start:
            return start
        last = int(row.tokens[real - 1])
        if last not in self._markers.pads:
            return real
        repeated = trailing_run(row.tokens[start:real])
        return real - (repeated - 1 if last in self._markers.may_end else repeated)


def _ends_at(tokens: list[int], end: int, endings: Iterable[Ids]) -> bool:
    """Whether one of the endings stands right before position `end`."""
    return any(
        end - len(one) >= 0 and end <= len(tokens) and tuple(tokens[end - len(one) : end]) == one
        for one in endings
    )


def _moved_start(tokens: list[int], begin: int, opens: frozenset[Ids]) -> int:
    """1 when an answer is learnt from its second token on, -1 from its opening's last, else 0."""
    if not opens or _ends_at(tokens, begin, opens):
        return 0
    if _ends_at(tokens, begin - 1, opens):
        return 1
    return -1 if _ends_at(tokens, begin + 1, opens) else 0


def _moved_end(tokens: list[int], end: int, endings: frozenset[Ids]) -> tuple[int, bool]:
    """How many tokens of an answer's end are not learnt, and whether one beyond it is."""
    if not endings or _ends_at(tokens, end, endings):
        return 0, False
    for more in range(1, max(len(one) for one in endings) + 1):
        if _ends_at(tokens, end + more, (one for one in endings if len(one) >= more)):
            return more, False
    return 0, _ends_at(tokens, end - 1, endings)
