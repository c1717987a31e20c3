"""What can be wrong with packed data of others, and the lines that say where."""

from collections import Counter, defaultdict
from enum import StrEnum

_SHOWN = 10


class Fault(StrEnum):
    """A kind of fault; the value begins its lines."""

    UNREADABLE = "unreadable"
    LENGTHS_DIFFER = "lengths_differ"
    MASK_VALUE = "mask_value"
    LABEL_VALUE = "label_value"
    SHIFTED_LABELS = "shifted_labels"
    SHIFTED_MASK = "shifted_mask"
    LOST_END_TOKEN = "lost_end_token"
    LABEL_CROSSES_DOCUMENTS = "label_crosses_documents"
    PADDING_TRAINS = "padding_trains"
    BAD_BOUNDARIES = "bad_boundaries"
    BAD_POSITIONS = "bad_positions"
    ID_OUTSIDE_VOCABULARY = "id_outside_vocabulary"
    ALL_TRAINED = "all_trained"
    NOT_ALL_TRAINED = "not_all_trained"
    NOTHING_TRAINED = "nothing_trained"
    UNUSABLE_CONVERSATION = "unusable_conversation"
    ROW_TOO_LONG = "row_too_long"
    LOSS_LOST_BY_VALUE = "loss_lost_by_value"


class FaultLog:
    """Faults met; of each kind the first lines are kept and the others counted."""

    def __init__(self) -> None:
        self._counts: Counter[Fault] = Counter()
        self._lines: dict[Fault, list[str]] = defaultdict(list)
        self._unchecked: dict[str, None] = {}

    def add(self, fault: Fault, where: str, *, expected: object, found: object) -> None:
        """One fault."""
        self._counts[fault] += 1
        if len(self._lines[fault]) < _SHOWN:
            self._lines[fault].append(f"{fault} {where}: expected {expected}, found {found}")

    def unchecked(self, what: str) -> None:
        """Something that this data, or what was given with it, does not let us check."""
        self._unchecked[what] = None

    @property
    def counts(self) -> dict[Fault, int]:
        """Faults by kind, in the order of `Fault`."""
        return {fault: self._counts[fault] for fault in Fault if self._counts[fault]}

    def lines(self) -> list[str]:
        """The lines kept, and how many more there are of each kind."""
        lines: list[str] = []
        for fault, count in self.counts.items():
            lines += self._lines[fault]
            if count > _SHOWN:
                lines.append(f"{fault} and {count - _SHOWN} more")
        return lines

    def not_checked(self) -> tuple[str, ...]:
        """What could not be checked, each once."""
        return tuple(self._unchecked)
