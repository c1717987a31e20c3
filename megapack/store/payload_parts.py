"""Teacher payloads as parts: each kind in parts of its own, cut by bytes, and a small index.

So whoever reads top-k log-probs never touches hidden states, and whoever looks for documents reads
one small part a shard. All kinds hold the same documents in the same order, and the index says
which: its record number n is record n of each kind. Where parts and row groups are cut
follows from the payloads alone, and a part says nothing that its records do not depend on: equal
payloads are equal parts, whatever layout, run or other kinds produced them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import polars as pl

from megapack.errors import ContractError
from megapack.records.payload import PayloadKind, TeacherPayload
from megapack.store.location import Location
from megapack.store.manifest import Part, PartKind
from megapack.store.payload_frames import payloads_to_frame
from megapack.store.schema import SCHEMAS, PayloadInfo, SchemaId, file_metadata, payload_metadata
from megapack.store.writer import PartForm, write_part

PART_KINDS = {
    PayloadKind.LOGPROBS: PartKind.PAYLOAD_LOGPROBS,
    PayloadKind.TOPK: PartKind.PAYLOAD_TOPK,
    PayloadKind.HIDDEN: PartKind.PAYLOAD_HIDDEN,
    PayloadKind.LOGITS: PartKind.PAYLOAD_LOGITS,
}
PART_BYTES = 256 << 20
GROUP_BYTES = 1 << 20
GROUP_RECORDS = "group_records"
_LEVEL = 1


def write_payload_parts(
    location: Location, payloads: Sequence[TeacherPayload], *, info: PayloadInfo
) -> tuple[Part, ...]:
    """Write payloads of one shard.

    Args:
        location: the store.
        payloads: of each kind of `info` those of the same documents, in the same order.
        info: what all payloads share.

    Returns:
        Parts: the index, then kind by kind in the order of `info.kinds`; none without payloads.

    Raises:
        ConfigError: a payload's kind is not one of `info`.
        ContractError: a payload is not what `info` says, or a document has not one payload of
            each kind.
        StoreError: the store failed.
    """
    of_kind: dict[PayloadKind, list[TeacherPayload]] = {one.kind: [] for one in info.kinds}
    for payload in payloads:
        of_kind[info.of(payload.kind).kind].append(payload)
    if not payloads:
        return ()
    index = _index(of_kind)
    parts = [_write_index(location, index)]
    for kind, own in of_kind.items():
        parts += [_write(location, cut, info=info, kind=kind) for cut in _cuts(own)]
    return tuple(parts)


def payload_bytes(payload: TeacherPayload) -> int:
    """Bytes of a payload's arrays."""
    arrays = (payload.values, payload.indices, payload.target_logprobs, payload.tail_logprobs)
    return sum(one.nbytes for one in arrays if one is not None)


def payload_counts(parts: Iterable[Part]) -> dict[str, int]:
    """Totals of payload parts, under the names that a payload's manifest needs.

    A document counts once, however many kinds there are of it.
    """
    listed = [part for part in parts if part.kind is PartKind.PAYLOAD_INDEX]
    return {
        "num_documents": sum(part.num_records for part in listed),
        "num_positions": sum(part.counts["num_positions"] for part in listed),
    }


def _index(of_kind: Mapping[PayloadKind, Sequence[TeacherPayload]]) -> pl.DataFrame:
    """What the index says, which every kind agrees on."""
    rows = {
        kind: [(one.document_id, one.teacher, one.num_positions, one.labels_digest) for one in own]
        for kind, own in of_kind.items()
    }
    first, *others = rows
    for other in others:
        if rows[other] != rows[first]:
            raise ContractError(
                "payloads of a shard: expected the same documents with the same positions in the "
                f"same order for each kind, found {len(rows[first])} of kind {first.value} and "
                f"{len(rows[other])} others of kind {other.value}."
            )
    return pl.DataFrame(rows[first], schema=SCHEMAS[SchemaId.PAYLOAD_INDEX], orient="row")


def _write_index(location: Location, index: pl.DataFrame) -> Part:
    form = PartForm(
        schema=SchemaId.PAYLOAD_INDEX,
        kind=PartKind.PAYLOAD_INDEX,
        metadata=file_metadata(SchemaId.PAYLOAD_INDEX),
        group_records=index.height,
    )
    counts = {"num_positions": int(index["num_tokens"].sum())}
    return write_part(location, index, form=form, counts=counts)


def _cuts(payloads: Sequence[TeacherPayload]) -> Iterator[Sequence[TeacherPayload]]:
    """Stretches of at most `PART_BYTES`, or of one payload that is larger by itself."""
    first, size = 0, 0
    for at, payload in enumerate(payloads):
        own = payload_bytes(payload)
        if at > first and size + own > PART_BYTES:
            yield payloads[first:at]
            first, size = at, 0
        size += own
    if payloads:
        yield payloads[first:]


def _write(
    location: Location, payloads: Sequence[TeacherPayload], *, info: PayloadInfo, kind: PayloadKind
) -> Part:
    total = sum(payload_bytes(one) for one in payloads)
    group = max(1, len(payloads) * GROUP_BYTES // max(1, total))
    form = PartForm(
        schema=SchemaId.TEACHER_PAYLOAD,
        kind=PART_KINDS[kind],
        metadata=payload_metadata(info, kind),
        group_records=group,
        level=_LEVEL,
    )
    counts = {
        "num_positions": sum(one.num_positions for one in payloads),
        GROUP_RECORDS: min(group, len(payloads)),
    }
    frame = payloads_to_frame(payloads, info=info, kind=kind)
    return write_part(location, frame, form=form, counts=counts)
