"""A packing report in the order in which a person asks: what came in, placed, dropped and why."""

from collections.abc import Iterator, Mapping, Sequence

from megapack.records.drops import Drop, DropReason
from megapack.steps.drop_advice import advice
from megapack.steps.drop_examples import place
from megapack.steps.inspect.plain import visible
from megapack.steps.report import PackingReport
from megapack.steps.report_details import PackingDetails
from megapack.steps.report_origin import Origin
from megapack.steps.wording import counted


def report_text(
    report: PackingReport,
    details: PackingDetails,
    first: Mapping[DropReason, Sequence[Drop]],
    source: Origin | None,
) -> Iterator[str]:
    """The lines of a report.

    Args:
        report: counts.
        details: distributions.
        first: drops by reason; the first of each is shown.
        source: what the tokenize step did, None when that is not known any more.
    """
    yield f"dataset {report.ref.uri}, version {report.ref.version}"
    yield ""
    yield came_in(report, source)
    yield from (f"  {sentence}" for sentence in (source.sentences() if source else ()))
    placed = counted(report.documents_placed, "document")
    yield f"placed: {placed}, in rows of {report.row_length:,} positions"
    for one in report.splits:
        if one.rows:
            yield (
                f"  {one.name:<10} {counted(one.documents, 'document')} in "
                f"{counted(one.rows, 'row')}, "
                f"{one.fill:.1%} full; {one.real_tokens:,} tokens, {one.target_tokens:,} trained "
                f"({one.target_tokens / max(1, one.real_tokens):.1%})"
            )
    yield from _dropped(report, first)
    yield ""
    yield "sources"
    yield from sources_table(details)
    if report.changes is not None:
        yield ""
        yield "what changed"
        yield from (f"  {visible(line)}" for line in report.changes.lines())


def came_in(report: PackingReport, source: Origin | None) -> str:
    """One line on how much came in."""
    pieces = counted(report.documents_in, "document")
    if source is None or not source.split_conversations:
        return f"came in: {pieces}"
    return f"came in: {pieces} (each piece of a split conversation counts as one)"


def sources_table(details: PackingDetails) -> Iterator[str]:
    """Sources with documents, tokens and how much of them is trained."""
    head = ("source", "documents", "tokens", "share", "trained")
    total = max(1, sum(one.tokens for one in details.sources))
    records = [
        (
            visible(one.name) or "(no name)",
            f"{one.documents:,}",
            f"{one.tokens:,}",
            f"{one.tokens / total:.1%}",
            f"{one.targets / max(1, one.tokens):.1%}",
        )
        for one in details.sources
    ]
    widths = [max(len(one[at]) for one in [head, *records]) for at in range(len(head))]
    for record in [head, *records]:
        name, *numbers = record
        cells = [name.ljust(widths[0])]
        cells += [one.rjust(width) for one, width in zip(numbers, widths[1:], strict=True)]
        yield "  " + "  ".join(cells)


def _dropped(report: PackingReport, first: Mapping[DropReason, Sequence[Drop]]) -> Iterator[str]:
    share = report.drops.total / max(1, report.documents_in)
    yield f"dropped: {counted(report.drops.total, 'document')} ({share:.1%})"
    for reason, count in report.drops.documents.items():
        tokens = report.drops.tokens.get(reason)
        yield f"  {reason.value}: {count:,}" + (f", {tokens:,} tokens" if tokens else "")
        yield f"    what to do: {advice(reason)}"
        for drop in first.get(reason, ())[:1]:
            yield f"    first: {visible(place(drop))}: {visible(drop.detail)}"
