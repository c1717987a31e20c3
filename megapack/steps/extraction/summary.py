"""What an extraction made, in the lines a person wants at its end."""

from megapack.records.refs import PayloadRef
from megapack.steps.extraction.rate import measured_run
from megapack.steps.tables import committed
from megapack.steps.wording import byte_size
from megapack.store.manifest import PartKind
from megapack.store.payload_parts import PART_KINDS


def payload_lines(payload: PayloadRef) -> list[str]:
    """Documents, kinds with their bytes, how fast it went, and the address.

    Raises:
        ConfigError: the version is no payload.
        StoreError: it cannot be read.
    """
    manifest = committed(payload).manifest
    lines = [f"payload documents={payload.num_documents} positions={payload.num_positions}"]
    for kind in manifest.payload.kinds if manifest.payload else ():
        size = sum(part.size for part in manifest.parts_of(PART_KINDS[kind.kind]))
        each = size / max(1, payload.num_positions)
        lines.append(
            f"payload kind={kind.kind.value} dtype={kind.dtype.value} width={kind.width} "
            f"bytes={size} ({byte_size(size)}, {each:.1f} a position)"
        )
    files = sum(part.size for part in manifest.parts_of(PartKind.FILE))
    lines.append(f"payload lm_head_and_vocabulary bytes={files} ({byte_size(files)})")
    run = measured_run(manifest)
    if run is not None and run.seconds:
        lines.append(
            f"payload tokens_per_s={run.tokens_per_s:.0f} ranks={run.ranks} "
            f"share_waiting_for_store={run.write_wait_s / run.seconds:.3f}"
        )
    lines.append(f"payload uri={payload.uri} version={payload.version}")
    lines.append(f"reused {'payload' if payload.reused else 'nothing'}")
    return lines
