"""`Document` and `Drop` to and from frames of `megapack.documents/1` and `megapack.drops/1`."""

from collections.abc import Iterable, Iterator, Sequence

import polars as pl

from megapack.errors import DataError, MegapackError
from megapack.records.document import Document
from megapack.records.drops import Drop, DropReason
from megapack.store.ragged import list_series, lists_of
from megapack.store.schema import SCHEMAS, SchemaId, check_frame

_DROP_FIELDS = ("reason", "detail", "uri", "line", "document_id", "tokens")


def documents_to_frame(documents: Sequence[Document], *, formats: Sequence[str]) -> pl.DataFrame:
    """Documents as a frame, one record a document.

    Args:
        documents: any number.
        formats: prompt format of each.
    """
    columns = {
        "document_id": [one.document_id for one in documents],
        "tokens": list_series("tokens", [one.tokens for one in documents]),
        "target_runs": list_series("target_runs", [one.target_runs for one in documents]),
        "source": [one.source for one in documents],
        "uri": [one.uri for one in documents],
        "line": [one.line for one in documents],
        "piece": [one.piece for one in documents],
        "format": list(formats),
        "num_tokens": [one.num_tokens for one in documents],
        "num_target_tokens": [one.num_target_tokens for one in documents],
    }
    return pl.DataFrame(columns, schema=SCHEMAS[SchemaId.DOCUMENTS])


def frame_to_documents(frame: pl.DataFrame, *, where: str) -> Iterator[Document]:
    """Documents of a frame, in its order.

    Args:
        frame: columns of `megapack.documents/1`.
        where: file, for messages.

    Raises:
        ContractError: the columns are not those of the schema.
        DataError: a document contradicts itself.
    """
    check_frame(frame, SchemaId.DOCUMENTS)
    tokens, runs = lists_of(frame["tokens"]), lists_of(frame["target_runs"])
    names = frame.select("document_id", "source", "uri", "line", "piece").iter_rows()
    for at, (document_id, source, uri, line, piece) in enumerate(names):
        try:
            yield Document(
                document_id=document_id,
                tokens=tokens[at],
                target_runs=runs[at],
                source=source,
                uri=uri,
                line=line,
                piece=piece,
            )
        except MegapackError as error:
            raise DataError(f"{where}, record {at}: damaged document: {error}") from error


def drops_to_frame(drops: Iterable[Drop]) -> pl.DataFrame:
    """Drops as a frame, one record a drop."""
    records = [tuple(getattr(drop, name) for name in _DROP_FIELDS) for drop in drops]
    columns = {name: [record[i] for record in records] for i, name in enumerate(_DROP_FIELDS)}
    columns["reason"] = [reason.value for reason in columns["reason"]]
    return pl.DataFrame(columns, schema=SCHEMAS[SchemaId.DROPS])


def frame_to_drops(frame: pl.DataFrame) -> Iterator[Drop]:
    """Drops of a frame, in its order.

    Raises:
        ContractError: the columns are not those of the schema.
    """
    check_frame(frame, SchemaId.DROPS)
    for record in frame.iter_rows(named=True):
        yield Drop(**(record | {"reason": DropReason(record["reason"])}))
