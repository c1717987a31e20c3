"""What a teacher payload holds, for people."""

from collections.abc import Iterator

from megapack.steps.wording import byte_size, counted
from megapack.store.committed import Committed
from megapack.store.manifest import PartKind
from megapack.store.payload_parts import PART_KINDS
from megapack.store.payload_vocabulary import VOCABULARY_NAME
from megapack.store.schema import KindInfo, PayloadInfo


def payload_lines(version: Committed, info: PayloadInfo) -> Iterator[str]:
    """Documents, kinds with what a position costs, temperature, teachers, and what stands beside.

    Args:
        version: a teacher payload.
        info: what its payloads share.
    """
    manifest = version.manifest
    documents, positions = manifest.count("num_documents"), manifest.count("num_positions")
    yield f"teacher payload {version.uri} version {version.version}"
    yield f"{counted(documents, 'document')}, {counted(positions, 'position')}"
    for kind in info.kinds:
        yield _kind(version, kind, positions)
    yield f"temperature {info.temperature:g}, vocabulary of {info.vocab_size:,}"
    for number, name in enumerate(info.teachers):
        yield f"teacher {number}: {name}"
        head = info.lm_heads.get(number)
        if head is not None:
            size = byte_size(head.vocab_size * head.width * head.dtype.numpy.itemsize)
            yield (
                f"  LM head {head.vocab_size:,} x {head.width:,} {head.dtype.value}, {size}, "
                f"digest {head.digest[:12]}"
            )
    files = manifest.parts_of(PartKind.FILE)
    words = [part for part in files if part.name == VOCABULARY_NAME]
    told = f", {words[0].counts['num_tokens']:,} tokens published" if words else ", not published"
    yield f"tokenizer {info.tokenizer_digest[:12]}{told}"
    yield "Name it with --teacher when you inspect the dataset to see documents with it."


def _kind(version: Committed, kind: KindInfo, positions: int) -> str:
    parts = version.manifest.parts_of(PART_KINDS[kind.kind])
    size = sum(part.size for part in parts)
    width = f"{kind.width:,} {kind.dtype.value} a position, " if kind.width else ""
    each = f"{size / positions:,.1f} bytes a position" if positions else "nothing"
    return f"{kind.kind.value}: {width}{byte_size(size)} in {counted(len(parts), 'part')}, {each}"
