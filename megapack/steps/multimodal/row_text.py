"""Rows as lines of text: each sample, where it comes from, and its spans with decoded words."""

from collections.abc import Iterator, Sequence

from megapack.records.multimodal_sample import LaidSample, SpanKind
from megapack.records.refs import MultimodalRef
from megapack.steps.inspect.plain import visible
from megapack.steps.multimodal.pictures import mode_of, spread
from megapack.steps.multimodal.words import Words, words_of
from megapack.steps.tables import committed
from megapack.store.multimodal_reader import MultimodalReader

_SHOWN = 200


def row_lines(ref: MultimodalRef, rows: Sequence[int] | None = None) -> Iterator[str]:
    """Some rows of a version, three spread over it by default.

    Raises:
        ConfigError: there is no such version or row.
        StoreError: the store failed.
        DataError: a part is damaged.
    """
    version = committed(ref)
    reader, words = MultimodalReader(version), words_of(version.manifest)
    for number in spread(reader.num_rows) if rows is None else rows:
        row = reader.row(number)
        size = row.size
        yield (
            f"row {number} of {reader.num_rows}, epoch {row.epoch}: {len(row.laid)} samples, "
            f"{size.tokens:,} positions, {size.images} images"
        )
        for at, laid in enumerate(row.laid):
            ref_of = laid.sample.ref
            place = f"{ref_of.group}, {ref_of.source}/{ref_of.file} row {ref_of.row}"
            yield f"  sample {at}: {visible(place)}"
            yield from _spans(laid, words)
    reader.close()


def _spans(laid: LaidSample, words: Words) -> Iterator[str]:
    for item, kept, length in zip(laid.sample.items, laid.kept, laid.lengths, strict=True):
        told = f"{mode_of(item).value} {length}" if kept else "dropped"
        if item.kind is SpanKind.TEXT and item.text is not None:
            told += ", trained" if item.loss else ""
            shown = visible(words(item.text))[:_SHOWN].replace("\n", " ")
            yield f"    text ({told}): {shown}"
        else:
            told += ", predicted" if item.loss else ""
            yield f"    {item.kind.value} ({told}): image {item.image}, {item.width}x{item.height}"
