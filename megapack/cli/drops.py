"""What was dropped, for a terminal: every record on its line, or examples with their text."""

from collections.abc import Iterator

from megapack.records.refs import DatasetRef
from megapack.steps.drop_advice import advice
from megapack.steps.drop_examples import DropExample, all_drops, drop_examples, place
from megapack.steps.inspect.plain import visible
from megapack.steps.report import packing_report

_EXAMPLES = 3


def list_drops(ref: DatasetRef) -> Iterator[str]:
    """One line a dropped record: file, line as editors count it, reason, what was found."""
    for drop in all_drops(ref):
        yield visible(f"{place(drop)}: {drop.reason.value}: {drop.detail}".replace("\n", " "))


def show_drops(ref: DatasetRef) -> Iterator[str]:
    """By reason: how many, what to do, and a few records with their text."""
    report = packing_report(ref)
    yield f"{report.drops.total:,} of {report.documents_in:,} documents were dropped"
    for reason, examples in drop_examples(ref, most=_EXAMPLES).items():
        count = report.drops.documents[reason]
        yield ""
        yield f"{reason.value}: {count:,}" + (
            f" (the first {len(examples)} are shown)" if count > len(examples) else ""
        )
        yield f"  what to do: {advice(reason)}"
        for example in examples:
            yield from _example(example)


def _example(example: DropExample) -> Iterator[str]:
    yield f"  {visible(place(example.drop))}: {visible(example.drop.detail)}"
    if example.missing:
        yield f"    ({example.missing})"
    else:
        yield f"    {visible(example.text)}"
