"""The report on stored multimodal rows as markdown and as a page, with pictures of some rows."""

import base64
from collections.abc import Iterator, Sequence

from megapack.records.refs import MultimodalRef
from megapack.steps.inspect.plain import visible
from megapack.steps.multimodal.pictures import row_pictures
from megapack.steps.multimodal.report import MultimodalReport, caps, multimodal_report
from megapack.steps.page import escape, page, table

_DETAIL = 300


def report_markdown(ref: MultimodalRef) -> str:
    """The report with pictures of three rows inside. Raises as `multimodal_report` does."""
    lines = list(_markdown(multimodal_report(ref)))
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


def _body(report: MultimodalReport, rows: Sequence[int] | None) -> Iterator[str]:
    yield (
        f"<p>{report.ref.num_rows:,} rows, {report.fill:.1%} full; {report.ref.num_samples:,} of "
        f"{sum(report.ledger.drawn.values()):,} samples placed.</p>"
    )
    head = ("group", "drawn", "placed", "left out", "positions")
    cells = [(one.name, one.drawn, one.placed, one.rejected, one.tokens) for one in report.groups]
    yield from table(head, cells)
    yield "<h2>Budgets</h2>"
    budgets = [(name, limit, report.largest[name]) for name, limit in caps(report.limits)]
    yield from table(("budget of a row", "allowed", "largest row"), budgets)
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


def _markdown(report: MultimodalReport) -> Iterator[str]:
    """The report as markdown tables."""
    yield (
        f"**{report.ref.num_rows:,} rows**, {report.fill:.1%} full; {report.ref.num_samples:,} "
        f"samples of {sum(report.ledger.drawn.values()):,}; {report.totals['tokens']:,} positions, "
        f"{report.totals['vit_tokens']:,} patches, {report.totals['vae_tokens']:,} latents, "
        f"{report.totals['images']:,} images.\n"
    )
    yield "| group | drawn | placed | left out | positions | share |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for one in report.groups:
        share = one.tokens / max(1, report.totals["tokens"])
        yield (
            f"| {_cell(one.name)} | {one.drawn:,} | {one.placed:,} | {one.rejected:,} | "
            f"{one.tokens:,} | {share:.1%} |"
        )
    yield "\n| budget of a row | allowed | largest row |\n| --- | ---: | ---: |"
    for name, limit in caps(report.limits):
        yield f"| {name} | {limit:,} | {report.largest[name]:,} |"
    yield "\n| packing | |\n| --- | --- |"
    for what, counts in report.packing():
        told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        yield f"| {what.replace('_', ' ')} | {_cell(told)} |"
    if not any(report.rejects()):
        yield "\nNothing was left out."
        return
    yield "\n| left out | group | samples | the first |\n| --- | --- | ---: | --- |"
    for group, reason, count in report.rejects():
        where, detail = report.examples.get((group, reason), ("", "not recorded"))
        yield (
            f"| `{reason}` | {_cell(group)} | {count:,} | {_cell(where)}: "
            f"{_cell(detail[:_DETAIL])} |"
        )


def _cell(text: str) -> str:
    return escape(visible(text)).replace("|", "&#124;").replace("\n", " ")
