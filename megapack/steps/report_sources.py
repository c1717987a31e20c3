"""Sources of a dataset as a table: what each holds, and what a blend asked for beside it."""

from collections.abc import Iterator, Sequence

from megapack.packing.config import BlendUnit
from megapack.steps.inspect.plain import visible
from megapack.steps.report import PackingReport
from megapack.steps.report_details import PackingDetails, SourceReport


def source_records(
    report: PackingReport, details: PackingDetails
) -> tuple[tuple[str, ...], list[tuple[str | int, ...]]]:
    """Head and records of the table.

    A blend weighs the training side, so what it reached is told of that side.
    """
    head: tuple[str, ...] = ("source", "documents", "tokens", "share", "trained tokens", "trained")
    unit = report.blend_unit
    if unit is not None:
        head += ("asked for",)
    if unit in (BlendUnit.DOCUMENTS, BlendUnit.TOKENS):
        head += (f"reached ({unit.value} in train)",)
    return head, [_record(one, report, details.sources) for one in details.sources]


def sources_table(report: PackingReport, details: PackingDetails) -> Iterator[str]:
    """The same as aligned lines."""
    head, records = source_records(report, details)
    cells = [head, *([one if isinstance(one, str) else f"{one:,}" for one in r] for r in records)]
    widths = [max(len(one[at]) for one in cells) for at in range(len(head))]
    for name, *numbers in cells:
        line = [name.ljust(widths[0])]
        line += [one.rjust(width) for one, width in zip(numbers, widths[1:], strict=True)]
        yield "  " + "  ".join(line)


def _record(
    one: SourceReport, report: PackingReport, sources: Sequence[SourceReport]
) -> tuple[str | int, ...]:
    share = one.tokens / max(1, sum(other.tokens for other in sources))
    trained = one.targets / max(1, one.tokens)
    name = visible(one.name) or "(no name)"
    record = (name, one.documents, one.tokens, f"{share:.1%}", one.targets, f"{trained:.1%}")
    asked = report.asked.get(one.name)
    if report.blend_unit is None:
        return record
    if report.blend_unit is BlendUnit.EPOCHS:
        return (*record, "" if asked is None else f"{asked:g} epochs")
    sizes = {
        other.name: other.train_tokens
        if report.blend_unit is BlendUnit.TOKENS
        else other.train_documents
        for other in sources
    }
    reached = sizes[one.name] / max(1, sum(sizes.values()))
    return (*record, "" if asked is None else f"{asked:.1%}", f"{reached:.1%}")
