"""A packing report as one self-contained HTML page, and as markdown with its pictures."""

from collections.abc import Iterator, Mapping, Sequence

from megapack.records.drops import DropReason
from megapack.records.refs import DatasetRef
from megapack.steps.drop_advice import advice
from megapack.steps.drop_examples import DropExample, drop_examples, place
from megapack.steps.inspect.plain import visible
from megapack.steps.page import bars, escape, page, table
from megapack.steps.report import WANTED, PackingReport, packing_report
from megapack.steps.report_charts import charts
from megapack.steps.report_details import PackingDetails, SourceReport, packing_details
from megapack.steps.report_origin import Origin, origin
from megapack.steps.report_sources import source_records
from megapack.steps.version_list import HEAD, version_lines
from megapack.steps.wording import counted

_EXAMPLES = 5


def report_page(ref: DatasetRef) -> Iterator[str]:
    """The page of a dataset version, in pieces.

    Raises:
        StoreError: the store failed.
        DataError: a part is damaged.
    """
    report, details = packing_report(ref), packing_details(ref)
    examples = drop_examples(ref, most=_EXAMPLES)
    body = _body(report, details, examples, origin(ref))
    return page(f"{ref.uri} version {ref.version}", body)


def report_markdown(ref: DatasetRef) -> str:
    """The pictures and the sources as markdown; the pictures are inside.

    Raises:
        StoreError: the store failed.
        DataError: a part is damaged.
    """
    details = packing_details(ref)
    lines = [f"![{chart.title}]({chart.data_url()})\n" for chart in charts(details)]
    lines += ["| source | documents | tokens | trained |", "| --- | ---: | ---: | ---: |"]
    lines += [
        f"| {_cell(one.name)} | {one.documents:,} | {one.tokens:,} | {_share(one)} |"
        for one in details.sources
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return escape(visible(text)).replace("|", "&#124;").replace("\n", " ")


def _body(
    report: PackingReport,
    details: PackingDetails,
    examples: Mapping[DropReason, Sequence[DropExample]],
    source: Origin | None,
) -> Iterator[str]:
    yield f"<p>{escape(report.headline()[1])}.</p>"
    if report.settings:
        yield f"<p>{escape(visible(report.settings))}</p>"
    yield "<h2>What came in, and where it went</h2>"
    yield from _flow(report)
    yield from (f"<p>{sentence}</p>" for sentence in (source.sentences() if source else ()))
    for chart in charts(details):
        yield f"<figure>{chart.svg()}</figure>"
    yield "<h2>Sources</h2>"
    yield from bars([(visible(one.name) or "(no name)", one.tokens) for one in details.sources])
    yield from table(*source_records(report, details))
    yield "<h2>What was dropped, and why</h2>"
    yield from _drops(report, examples)
    if report.changes is not None:
        yield "<h2>What changed</h2>"
        yield f"<pre>{escape(visible(chr(10).join(report.changes.lines())))}</pre>"
    yield "<h2>Versions</h2>"
    yield from table(HEAD, (one.cells for one in version_lines(report.ref)))


def _share(one: SourceReport) -> str:
    return f"{one.targets / max(1, one.tokens):.1%}"


def _flow(report: PackingReport) -> Iterator[str]:
    records: list[tuple[object, ...]] = [("came in", report.documents_in, "", "", "", "")]
    records += [
        (
            f"placed: {one.name}",
            one.documents,
            one.rows,
            f"{one.fill:.1%}",
            one.real_tokens,
            one.target_tokens,
        )
        for one in report.splits
    ]
    if report.documents_copied:
        again = ("of these, placed again by the blend", report.documents_copied)
        records.append((*again, "", "", "", ""))
    for name, total, wanted in (
        ("left out as the job asks", report.left_out, True),
        ("dropped", report.lost, False),
    ):
        tokens = sum(n for one, n in report.drops.tokens.items() if (one in WANTED) is wanted)
        if total or not wanted:
            records.append((name, total, "", "", tokens, ""))
    head = ("", "documents", f"rows of {report.row_length:,}", "full", "tokens", "trained tokens")
    yield from table(head, records)


def _drops(
    report: PackingReport, examples: Mapping[DropReason, Sequence[DropExample]]
) -> Iterator[str]:
    if not report.drops.total:
        yield "<p>Nothing.</p>"
    yield from bars([(reason.value, count) for reason, count in report.drops.documents.items()])
    for reason, count in report.drops.documents.items():
        tokens = report.drops.tokens.get(reason, 0)
        title = f"<code>{escape(reason.value)}</code>: {counted(count, 'document')}"
        title += f", {counted(tokens, 'token')}" if tokens else ""
        yield f"<h3>{title}</h3>"
        yield f"<p>{escape(advice(reason))}</p>"
        for example in examples.get(reason, ()):
            where, detail = visible(place(example.drop)), visible(example.drop.detail)
            yield f"<p><code>{escape(where)}</code>: {escape(detail)}</p>"
            if example.missing:
                yield f'<p class="note">({escape(visible(example.missing))})</p>'
            else:
                yield f"<pre>{escape(visible(example.text))}</pre>"
