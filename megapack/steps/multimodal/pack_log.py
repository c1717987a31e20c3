"""How far a run of `pack_multimodal` has come: its finished parts, and where the stream goes on.

Each shard of the log holds one part of rows, the rejects met on the way to it, and the stream's own
state after its last row. Everything is a function of the job and its data, so a run that was killed
goes on after its last shard and ends with the same version.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from megapack.records.rejects import RejectReason, SampleLedger
from megapack.steps.multimodal.stream_statistics import StreamStatistics
from megapack.store.location import Location
from megapack.store.manifest import Part, PartKind
from megapack.store.shard_log import ShardLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stands.

    Attributes:
        epoch: that is read.
        stream: state of its stream, None at its beginning.
        before: what became of the samples of the epochs before it.
        statistics: of the rows of these.
    """

    epoch: int = 0
    stream: Mapping[str, Any] | None = None
    before: SampleLedger = field(default_factory=SampleLedger)
    statistics: StreamStatistics = field(default_factory=StreamStatistics)

    def to_json(self) -> str:
        """The standing as JSON text."""
        return json.dumps(
            {
                "epoch": self.epoch,
                "stream": self.stream,
                "before": _ledger_json(self.before),
                "statistics": self.statistics.model_dump(mode="json"),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Standing":
        """The standing that `to_json` wrote."""
        found = json.loads(text)
        return cls(
            epoch=found["epoch"],
            stream=found["stream"],
            before=_ledger_of(found["before"]),
            statistics=StreamStatistics.model_validate(found["statistics"]),
        )


class PackLog:
    """Finished shards of one job, in order.

    Attributes:
        standing: where to go on.
        parts: of all finished shards, in order.
    """

    def __init__(self, location: Location, address: str) -> None:
        """Look up what an earlier run finished.

        Raises:
            StoreError: the store failed.
        """
        self._log = ShardLog(location, address)
        self.standing = Standing()
        self.parts: list[Part] = []
        self._number = 0
        known = self._log.records()
        while self._number in known:
            record = known[self._number]
            self.standing = Standing.from_json(record.state)
            self.parts += record.parts
            self._number += 1

    @property
    def row_parts(self) -> list[Part]:
        """The parts of rows."""
        return [part for part in self.parts if part.kind is PartKind.MULTIMODAL_ROWS]

    def finished(self, parts: list[Part], standing: Standing) -> None:
        """Record a shard whose parts are written.

        Raises:
            StoreError: the store failed.
        """
        self.parts += self._log.record(self._number, parts, state=standing.to_json())
        self.standing = standing
        self._number += 1

    def clear(self) -> None:
        """Forget all: a version names the parts now. Raises StoreError."""
        self._log.clear()


def _ledger_json(ledger: SampleLedger) -> dict[str, Any]:
    return {
        "drawn": dict(ledger.drawn),
        "placed": dict(ledger.placed),
        "rejected": {group: dict(reasons) for group, reasons in ledger.rejected.items()},
    }


def _ledger_of(found: Mapping[str, Any]) -> SampleLedger:
    return SampleLedger(
        drawn=found["drawn"],
        placed=found["placed"],
        rejected={
            group: {RejectReason(reason): count for reason, count in reasons.items()}
            for group, reasons in found["rejected"].items()
        },
    )
