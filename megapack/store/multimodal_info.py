"""What every row of a stored multimodal dataset shares, and what became of the samples.

Rules and limits stand as JSON, as their own classes write it: the store knows samples, not how they
are written.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from megapack.records.rejects import RejectReason, SampleLedger
from megapack.store.schema import SCHEMA_KEY, SchemaId


class MultimodalInfo(BaseModel):
    """What all rows share.

    Attributes:
        rules: `WritingRules`.
        limits: `RowLimits`.
        tokenizer_digest: digest of the tokenizer's files.
        vocab_size: ids lie in [0, vocab_size).
        drawn: samples read, by group.
        placed: samples in rows, by group.
        rejected: samples left out, by group and reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: Mapping[str, Any]
    limits: Mapping[str, Any]
    tokenizer_digest: str
    vocab_size: int = Field(ge=1)
    drawn: Mapping[str, int] = Field(default_factory=dict)
    placed: Mapping[str, int] = Field(default_factory=dict)
    rejected: Mapping[str, Mapping[RejectReason, int]] = Field(default_factory=dict)

    @property
    def ledger(self) -> SampleLedger:
        """What became of the samples."""
        return SampleLedger(drawn=self.drawn, placed=self.placed, rejected=self.rejected)

    def with_ledger(self, ledger: SampleLedger) -> "MultimodalInfo":
        """The same with what became of the samples."""
        return self.model_copy(
            update={
                "drawn": dict(sorted(ledger.drawn.items())),
                "placed": dict(sorted(ledger.placed.items())),
                "rejected": {
                    group: dict(sorted(reasons.items()))
                    for group, reasons in sorted(ledger.rejected.items())
                    if reasons
                },
            }
        )

    def metadata(self) -> dict[str, str]:
        """What a part of rows says about itself; nothing that is known only at the end."""
        fields = self.model_dump(mode="json", exclude={"drawn", "placed", "rejected"})
        return {SCHEMA_KEY: SchemaId.MULTIMODAL_ROWS.value} | {
            f"megapack.{name}": value if isinstance(value, str) else json.dumps(value)
            for name, value in sorted(fields.items())
        }
