"""What a stored multimodal dataset holds, what was left out, and pictures of its rows."""

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megapack.packing.row_limits import RowLimits
from megapack.records.refs import MultimodalRef
from megapack.records.rejects import SampleLedger
from megapack.steps.inspect.plain import visible
from megapack.steps.multimodal.pictures import row_pictures
from megapack.steps.page import escape, page, table
from megapack.steps.tables import committed
from megapack.store.multimodal_reader import MultimodalReader

_SAMPLE = "samples.list.element"
_DETAIL = 300


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
        for name, limit in _caps(self.limits):
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

    def markdown(self) -> Iterator[str]:
        """The same as markdown tables."""
        yield (
            f"**{self.ref.num_rows:,} rows**, {self.fill:.1%} full; {self.ref.num_samples:,} "
            f"samples of {sum(self.ledger.drawn.values()):,}; {self.totals['tokens']:,} positions, "
            f"{self.totals['vit_tokens']:,} patches, {self.totals['vae_tokens']:,} latents, "
            f"{self.totals['images']:,} images.\n"
        )
        yield "| group | drawn | placed | left out | positions | share |"
        yield "| --- | ---: | ---: | ---: | ---: | ---: |"
        for one in self.groups:
            share = one.tokens / max(1, self.totals["tokens"])
            yield (
                f"| {_cell(one.name)} | {one.drawn:,} | {one.placed:,} | {one.rejected:,} | "
                f"{one.tokens:,} | {share:.1%} |"
            )
        yield "\n| budget of a row | allowed | largest row |\n| --- | ---: | ---: |"
        for name, limit in _caps(self.limits):
            yield f"| {name} | {limit:,} | {self.largest[name]:,} |"
        yield "\n| packing | |\n| --- | --- |"
        for what, counts in self.packing():
            told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            yield f"| {what.replace('_', ' ')} | {_cell(told)} |"
        if not any(self.rejects()):
            yield "\nNothing was left out."
            return
        yield "\n| left out | group | samples | the first |\n| --- | --- | ---: | --- |"
        for group, reason, count in self.rejects():
            where, detail = self.examples.get((group, reason), ("", "not recorded"))
            yield (
                f"| `{reason}` | {_cell(group)} | {count:,} | {_cell(where)}: "
                f"{_cell(detail[:_DETAIL])} |"
            )


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


def report_markdown(ref: MultimodalRef) -> str:
    """The report with pictures of three rows inside. Raises as `multimodal_report` does."""
    lines = list(multimodal_report(ref).markdown())
    for picture in row_pictures(ref):
        data = base64.b64encode(picture.png).decode()
        lines += [
            f"\n{picture.caption}\n",
            f"![row {picture.number}](data:image/png;base64,{data})",
        ]
    return "\n".join(lines)


def report_page(ref: MultimodalRef, rows: Sequence[int] | None = None) -> Iterator[str]:
    """The report as one HTML page with pictures of rows. Raises as `multimodal_report` does."""
    yield from page(f"{ref.uri} version {ref.version}", _body(multimodal_report(ref), rows))


def reject_lines(ref: MultimodalRef) -> Iterator[str]:
    """One line for every sample that was left out. Raises as `multimodal_report` does."""
    reader = MultimodalReader(committed(ref))
    for one in reader.rejects().to_pylist():
        place = f"{one['group']}/{one['source']}/{one['file']} row {one['row']}"
        told = f"{place}, epoch {one['epoch']}: {one['reason']}: {one['detail']}"
        yield visible(told).replace("\n", " ")
    reader.close()


def _body(report: MultimodalReport, rows: Sequence[int] | None) -> Iterator[str]:
    yield (
        f"<p>{report.ref.num_rows:,} rows, {report.fill:.1%} full; {report.ref.num_samples:,} of "
        f"{sum(report.ledger.drawn.values()):,} samples placed.</p>"
    )
    head = ("group", "drawn", "placed", "left out", "positions")
    cells = [(one.name, one.drawn, one.placed, one.rejected, one.tokens) for one in report.groups]
    yield from table(head, cells)
    yield "<h2>Budgets</h2>"
    caps = [(name, limit, report.largest[name]) for name, limit in _caps(report.limits)]
    yield from table(("budget of a row", "allowed", "largest row"), caps)
    yield "<h2>What was left out, and why</h2>"
    rejects = [
        (reason, group, count, visible(": ".join(report.examples.get((group, reason), ()))))
        for group, reason, count in report.rejects()
    ]
    yield from table(("reason", "group", "samples", "the first"), rejects)
    yield "<h2>Rows</h2>"
    for picture in row_pictures(report.ref, rows):
        data = base64.b64encode(picture.png).decode()
        image = f'<img alt="row {picture.number}" src="data:image/png;base64,{data}">'
        yield f"<p>{escape(picture.caption)}</p><figure>{image}</figure>"


def _examples(reader: MultimodalReader) -> dict[tuple[str, str], tuple[str, str]]:
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for one in reader.rejects().to_pylist():
        where = f"{one['source']}/{one['file']} row {one['row']}"
        found.setdefault((one["group"], one["reason"]), (where, one["detail"]))
    return found


def _caps(limits: RowLimits) -> Iterator[tuple[str, int]]:
    caps = (
        ("tokens", limits.max_tokens),
        ("vit_tokens", limits.max_vit_tokens),
        ("vae_tokens", limits.max_vae_tokens),
        ("images", limits.max_images),
    )
    yield from ((name, limit) for name, limit in caps if limit is not None)


def _cell(text: str) -> str:
    return escape(visible(text)).replace("|", "&#124;").replace("\n", " ")
