"""Teacher payloads as parts: each kind in parts of its own, cut by bytes.

So whoever reads top-k log-probs never touches hidden states. Where parts and row groups are cut
follows from the payloads alone, and a part says nothing that its records do not depend on: equal
payloads are equal parts, whatever layout, run or other kinds produced them.
"""

from collections.abc import Iterable, Iterator, Sequence

from megapack.records.payload import PayloadKind, TeacherPayload
from megapack.store.location import Location
from megapack.store.manifest import Part, PartKind
from megapack.store.payload_frames import payloads_to_frame
from megapack.store.schema import PayloadInfo, SchemaId, payload_metadata
from megapack.store.writer import PartForm, write_part

PART_KINDS = {
    PayloadKind.LOGPROBS: PartKind.PAYLOAD_LOGPROBS,
    PayloadKind.TOPK: PartKind.PAYLOAD_TOPK,
    PayloadKind.HIDDEN: PartKind.PAYLOAD_HIDDEN,
    PayloadKind.LOGITS: PartKind.PAYLOAD_LOGITS,
}
PART_BYTES = 256 << 20
GROUP_BYTES = 4 << 20
GROUP_RECORDS = "group_records"
_LEVEL = 1


def write_payload_parts(
    location: Location, payloads: Sequence[TeacherPayload], *, info: PayloadInfo
) -> tuple[Part, ...]:
    """Write payloads of one shard.

    Args:
        location: the store.
        payloads: of any of the kinds of `info`, in document order within each kind.
        info: what all payloads share.

    Returns:
        Parts, kind by kind in the order of `info.kinds`.

    Raises:
        ConfigError: a payload's kind is not one of `info`.
        ContractError: a payload is not what `info` says.
        StoreError: the store failed.
    """
    for payload in payloads:
        info.of(payload.kind)
    return tuple(
        _write(location, cut, info=info, kind=one.kind)
        for one in info.kinds
        for cut in _cuts([payload for payload in payloads if payload.kind is one.kind])
    )


def payload_bytes(payload: TeacherPayload) -> int:
    """Bytes of a payload's arrays."""
    arrays = (payload.values, payload.indices, payload.target_logprobs, payload.tail_logprobs)
    return sum(one.nbytes for one in arrays if one is not None)


def payload_counts(parts: Iterable[Part]) -> dict[str, int]:
    """Totals of payload parts, under the names that a payload's manifest needs.

    A document counts once, however many kinds there are of it.
    """
    listed = [part for part in parts if part.kind in PART_KINDS.values()]
    kinds = {part.kind: [one for one in listed if one.kind is part.kind] for part in listed}
    return {
        "num_documents": max((_records(own) for own in kinds.values()), default=0),
        "num_positions": max((_positions(own) for own in kinds.values()), default=0),
    }


def _records(parts: Iterable[Part]) -> int:
    return sum(part.num_records for part in parts)


def _positions(parts: Iterable[Part]) -> int:
    return sum(part.counts["num_positions"] for part in parts)


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
