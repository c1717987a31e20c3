"""A packing report in the order in which a person asks: what came in, placed, dropped and why."""

from collections.abc import Iterator, Mapping, Sequence

from megapack.records.drops import Drop, DropReason
from megapack.steps.drop_advice import advice
from megapack.steps.drop_examples import place
from megapack.steps.inspect.plain import visible
from megapack.steps.report import WANTED, PackingReport
from megapack.steps.report_details import PackingDetails
from megapack.steps.report_origin import Origin
from megapack.steps.report_sources import sources_table
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
    if report.settings:
        yield report.settings
    yield ""
    yield came_in(report, source)
    yield from (f"  {sentence}" for sentence in (source.sentences() if source else ()))
    placed = counted(report.documents_placed, "document")
    if report.documents_copied:
        placed += f" ({report.documents_copied:,} of them placed again by the blend)"
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
    yield from sources_table(report, details)
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


def _dropped(report: PackingReport, first: Mapping[DropReason, Sequence[Drop]]) -> Iterator[str]:
    """Losses, and apart from them what the job asks to leave out."""
    groups = [
        ("dropped", report.lost, [one for one in report.drops.documents if one not in WANTED])
    ]
    if report.left_out:
        wanted = [one for one in WANTED if one in report.drops.documents]
        groups.insert(0, ("left out as the job asks", report.left_out, wanted))
    for name, total, reasons in groups:
        yield f"{name}: {counted(total, 'document')} ({total / max(1, report.documents_in):.1%})"
        for reason in reasons:
            tokens = report.drops.tokens.get(reason)
            yield (
                f"  {reason.value}: {report.drops.documents[reason]:,}"
                + (f", {tokens:,} tokens" if tokens else "")
            )
            yield f"    what to do: {advice(reason)}"
            for drop in first.get(reason, ())[:1]:
                yield f"    first: {visible(place(drop))}: {visible(drop.detail)}"
