"""The end of an extraction: LM head and vocabulary beside the shards, and one commit of it all."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from megapack.engine.shard_rounds import ShardPlan
from megapack.engine.together import raise_everywhere
from megapack.errors import ContractError, MegapackError
from megapack.jobs.addresses import extract_address
from megapack.jobs.extract import ExtractJob
from megapack.outputs.lm_head_rows import lm_head_dtype, lm_head_rows
from megapack.parallel.context import ParallelContext
from megapack.records.payload import PayloadDtype, PayloadKind
from megapack.steps.extraction.rate import MeasuredRun
from megapack.steps.extraction.vocabulary import dataset_vocabulary
from megapack.steps.tables import usable_version
from megapack.store.committed import Committed
from megapack.store.lm_head import lm_head_info, write_lm_head
from megapack.store.location import Location, open_location
from megapack.store.manifest import Contents, Manifest, Part
from megapack.store.payload_parts import payload_counts
from megapack.store.payload_vocabulary import write_vocabulary
from megapack.store.schema import PayloadInfo, SchemaId
from megapack.store.shard_log import ShardLog
from megapack.store.versions import commit, read_version

_HEAD_ROWS = 8192

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extracted:
    """What one rank knows when all shards are stored.

    Attributes:
        plan: all shards.
        parts: of the shards that this rank has written.
        run: what this rank has measured.
    """

    plan: ShardPlan
    parts: Mapping[int, tuple[Part, ...]]
    run: MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class _LmHead:
    parts: tuple[Part, ...]
    dtype: PayloadDtype


def publish_payload(
    job: ExtractJob,
    info: PayloadInfo,
    chunks: Sequence[Any],
    context: ParallelContext,
    extracted: Extracted,
) -> int:
    """Collective over the world: commit the payload on rank 0, and forget the records of shards.

    Where another run of this job has committed it meanwhile, that version is the payload.

    Args:
        job: the extraction.
        info: what its payloads share.
        chunks: the teacher.
        context: this rank.
        extracted: what this rank knows.

    Returns:
        Documents of the payload.

    Raises:
        StoreError: the store failed.
        ContractError: a shard is missing, or the shards hold other documents than were chosen.
    """
    head = _write_head(open_location(job.output), info, chunks, context)
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, (extracted.parts, extracted.run, head))
    parts = _in_order(extracted.plan, [shards for shards, _, _ in everyones])
    if dist.get_rank() == 0:
        heads = [found for _, _, found in everyones if found is not None]
        run = _slowest([one for _, one, _ in everyones])
        _commit(job, _with_head(info, heads), parts, heads, run)
    dist.barrier()
    return payload_counts(parts)["num_documents"]


def _in_order(plan: ShardPlan, written: Sequence[Mapping[int, tuple[Part, ...]]]) -> list[Part]:
    """Parts of all shards, by number; a shard has those that it was recorded with."""
    known = dict(plan.done)
    for shards in written:
        known.update(shards)
    missing = [number for number in range(plan.num_shards) if number not in known]
    if missing:
        raise ContractError(
            f"extraction: expected {plan.num_shards} shards, found none for {missing[:5]}."
        )
    parts = [part for number in range(plan.num_shards) for part in known[number]]
    expected, found = plan.chosen.num_documents, payload_counts(parts)["num_documents"]
    if found != expected:
        raise ContractError(
            f"extraction: expected payloads of {expected} documents, found {found} in its "
            f"{plan.num_shards} shards: some were recorded by another version of megapack. "
            "Remove the records under shards/ in the output, and run again."
        )
    return parts


def _write_head(
    location: Location, info: PayloadInfo, chunks: Sequence[Any], context: ParallelContext
) -> _LmHead | None:
    """Collective over the world: the LM head beside hidden states, on the rank that writes it."""
    if all(kind.kind is not PayloadKind.HIDDEN for kind in info.kinds):
        return None
    head, failure = None, None
    if context.is_last_stage and context.dp_rank == 0 and context.cp_rank == 0:
        dtype = lm_head_dtype(chunks[-1])
        rows = lm_head_rows(chunks[-1], context, _HEAD_ROWS)
        if context.is_writer:
            try:
                head = _LmHead(parts=write_lm_head(location, rows, dtype), dtype=dtype)
            except MegapackError as error:
                failure = error
        # The other ranks of the group gather with the writer, to the end even when it failed.
        for _ in rows:
            pass
    raise_everywhere(failure)
    return head


def _with_head(info: PayloadInfo, heads: Sequence[_LmHead]) -> PayloadInfo:
    if not heads:
        return info
    return info.model_copy(update={"lm_heads": {0: lm_head_info(heads[0].parts, heads[0].dtype)}})


def _slowest(runs: Sequence[MeasuredRun]) -> MeasuredRun:
    return MeasuredRun(
        ranks=runs[0].ranks,
        tokens=runs[0].tokens,
        compute_s=max(one.compute_s for one in runs),
        write_wait_s=max(one.write_wait_s for one in runs),
        seconds=max(one.seconds for one in runs),
    )


def _commit(
    job: ExtractJob,
    info: PayloadInfo,
    parts: Sequence[Part],
    heads: Sequence[_LmHead],
    run: MeasuredRun,
) -> None:
    location, address = open_location(job.output), extract_address(job)
    made = usable_version(location, address)
    if made is not None:
        ShardLog(location, address).clear()
        _logger.info("payload committed by another run version=%d", made.version)
        return
    files = [part for head in heads for part in head.parts]
    dataset = read_version(job.dataset.uri, job.dataset.version).manifest
    vocabulary = dataset_vocabulary(dataset)
    if vocabulary is not None:
        files.append(write_vocabulary(location, vocabulary))
    contents = Contents(
        schema_id=SchemaId.TEACHER_PAYLOAD,
        kind="payload",
        parts=[*parts, *files],
        address=address,
        counts=payload_counts(parts),
        settings={"job": job.model_dump(mode="json"), "run": run.model_dump(mode="json")},
        parents={"dataset": job.dataset.digest, "checkpoint": job.checkpoint.digest},
        payload=info,
    )

    def unless_made(winner: Committed) -> Manifest | None:
        """Another run of this job was first: its payload is this one."""
        return None if winner.manifest.address == address else contents.manifest()

    version = commit(location, contents.manifest(), replan=unless_made).version
    ShardLog(location, address).clear()
    _logger.info("payload committed version=%d parts=%d", version, len(contents.parts))
