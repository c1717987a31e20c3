"""What a stored multimodal dataset holds, and what was left out."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from megapack.packing.row_limits import RowLimits
from megapack.records.refs import MultimodalRef
from megapack.records.rejects import SampleLedger
from megapack.steps.inspect.plain import visible
from megapack.steps.tables import committed
from megapack.store.multimodal_reader import MultimodalReader

_SAMPLE = "samples.list.element"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShare:
    """One group of the mixture.

    Attributes:
        name: of the group.
        drawn: samples read.
        placed: samples in rows.
        rejected: samples left out.
        tokens: positions written of it.
    """

    name: str
    drawn: int
    placed: int
    rejected: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalReport:
    """What a version holds.

    Attributes:
        ref: the version.
        epochs: of the stream.
        limits: budgets of a row.
        totals: sums over rows: tokens, vit_tokens, vae_tokens, images.
        largest: largest row in each of these.
        groups: of the mixture, by name.
        ledger: what became of the samples.
        examples: first reject of each group and reason: where, and its detail.
        statistics: of the stream, as it counted them; empty when not recorded.
    """

    ref: MultimodalRef
    epochs: int
    limits: RowLimits
    totals: Mapping[str, int]
    largest: Mapping[str, int]
    groups: tuple[GroupShare, ...]
    ledger: SampleLedger
    examples: Mapping[tuple[str, str], tuple[str, str]]
    statistics: Mapping[str, Any]

    @property
    def fill(self) -> float:
        """Positions written over those allowed."""
        return self.totals["tokens"] / max(1, self.ref.num_rows * self.limits.max_tokens)

    def lines(self) -> Iterator[str]:
        """One line an event, `key=value`."""
        yield f"dataset uri={self.ref.uri} version={self.ref.version} epochs={self.epochs}"
        yield (
            f"rows={self.ref.num_rows} fill={self.fill:.4f} samples={self.ref.num_samples} "
            + " ".join(f"{name}={total}" for name, total in self.totals.items())
        )
        for one in self.groups:
            yield (
                f"group name={one.name} drawn={one.drawn} placed={one.placed} "
                f"rejected={one.rejected} tokens={one.tokens}"
            )
        for group, reason, count in self.rejects():
            where, detail = self.examples.get((group, reason), ("", "not recorded"))
            told = " ".join(visible(f"{where} {detail}").split())
            yield f"rejected group={group} reason={reason} samples={count} first: {told}"
        for name, limit in caps(self.limits):
            yield f"limit {name} largest={self.largest[name]} allowed={limit}"
        for what, counts in self.packing():
            yield f"{what} " + " ".join(f"{name}={count}" for name, count in counts.items())

    def packing(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        """How rows were closed, what budgets deferred, and what was dropped, as the stream says."""
        found = self.statistics
        for what, name in (
            ("rows_closed", "closed"),
            ("rows_closed_by_budget", "closed_by"),
            ("samples_deferred_by_budget", "deferred"),
            ("conditions", "conditions"),
            ("conditions_dropped", "dropped"),
        ):
            if found.get(name):
                yield what, dict(sorted(found[name].items()))
        if found:
            names = ("mandatory_missed", "most_waiting")
            yield "packer", {name: int(found[name]) for name in names}

    def rejects(self) -> Iterator[tuple[str, str, int]]:
        """Group, reason and count of what was left out."""
        for group, reasons in sorted(self.ledger.rejected.items()):
            for reason, count in sorted(reasons.items()):
                yield group, reason.value, count


def multimodal_report(ref: MultimodalRef) -> MultimodalReport:
    """Report on a version: its counts, its groups, and examples of what was left out.

    Raises:
        ConfigError: there is no such version, or it holds other rows.
        StoreError: the store failed.
        DataError: a part is damaged.
    """
    version = committed(ref)
    reader = MultimodalReader(version)
    names = ("tokens", "vit_tokens", "vae_tokens", "images")
    largest = dict.fromkeys(names, 0)
    tokens: Counter[str] = Counter()
    for part in range(len(reader.parts)):
        planned = reader.planning(part)
        for name in names:
            largest[name] = max(largest[name], *planned[name].to_pylist())
        for samples in reader.columns(part, (f"{_SAMPLE}.group", f"{_SAMPLE}.tokens"))["samples"]:
            for one in samples.as_py():
                tokens[one["group"]] += one["tokens"]
    ledger = reader.info.ledger
    settings = version.manifest.settings
    report = MultimodalReport(
        ref=ref,
        epochs=int(settings.get("job", {}).get("epochs", 1)),
        limits=RowLimits.model_validate(reader.info.limits),
        totals={name: version.manifest.count(f"num_{name}") for name in names},
        largest=largest,
        groups=tuple(
            GroupShare(
                name=name,
                drawn=ledger.drawn[name],
                placed=ledger.placed.get(name, 0),
                rejected=sum(ledger.rejected.get(name, {}).values()),
                tokens=tokens[name],
            )
            for name in sorted(ledger.drawn)
        ),
        ledger=ledger,
        examples=_examples(reader),
        statistics=settings.get("statistics", {}),
    )
    reader.close()
    return report


def reject_lines(ref: MultimodalRef) -> Iterator[str]:
    """One line for every sample that was left out. Raises as `multimodal_report` does."""
    reader = MultimodalReader(committed(ref))
    for one in reader.rejects().to_pylist():
        place = f"{one['group']}/{one['source']}/{one['file']} row {one['row']}"
        told = f"{place}, epoch {one['epoch']}: {one['reason']}: {one['detail']}"
        yield visible(told).replace("\n", " ")
    reader.close()


def _examples(reader: MultimodalReader) -> dict[tuple[str, str], tuple[str, str]]:
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for one in reader.rejects().to_pylist():
        where = f"{one['source']}/{one['file']} row {one['row']}"
        found.setdefault((one["group"], one["reason"]), (where, one["detail"]))
    return found


def caps(limits: RowLimits) -> Iterator[tuple[str, int]]:
    """The budgets of a row that are set."""
    budgets = (
        ("tokens", limits.max_tokens),
        ("vit_tokens", limits.max_vit_tokens),
        ("vae_tokens", limits.max_vae_tokens),
        ("images", limits.max_images),
    )
    yield from ((name, limit) for name, limit in budgets if limit is not None)
