"""A finite multimodal stream to stored rows, committed as one version of a dataset.

Rows leave as parts of `rows_per_part` rows, or fewer where their images are large; an epoch's last
part is as long as it comes out. A part is the unit of resume: a run that was killed goes on after
the last one that stands, and ends with the version that it would have made. A job whose version is
the newest one is not run again; an older one that it made becomes the newest without reading.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from megapack.errors import ContractError
from megapack.jobs.multimodal import PackMultimodalJob
from megapack.jobs.multimodal_place import multimodal_uri
from megapack.multimodal.config import WritingRules
from megapack.records.multimodal_sample import LaidSample, SampleRef
from megapack.records.refs import MultimodalRef
from megapack.records.rejects import SampleLedger, SampleReject
from megapack.steps.multimodal.pack_identity import Identity, identity_of
from megapack.steps.multimodal.pack_log import PackLog, Standing
from megapack.steps.multimodal.stream import MultimodalStream
from megapack.steps.multimodal.tokenizer import MultimodalTokenizer, open_tokenizer
from megapack.steps.tables import usable_version
from megapack.store.committed import Committed
from megapack.store.location import Location, open_location
from megapack.store.manifest import Contents, Manifest
from megapack.store.multimodal_info import MultimodalInfo
from megapack.store.multimodal_parts import PART_BYTES, RowPart, row_totals, write_rejects
from megapack.store.multimodal_table import StoredRow
from megapack.store.schema import SchemaId
from megapack.store.versions import commit, latest_version

OnSamples = Callable[[int], None]
"""Told how many samples are placed or left out so far, those of an earlier run not counted."""
KIND = "multimodal"
_LIBRARIES = ("pillow", "pyarrow", "numpy", "tokenizers")

_logger = logging.getLogger(__name__)


def pack_multimodal(
    job: PackMultimodalJob, *, on_samples: OnSamples | None = None
) -> MultimodalRef:
    """Write all rows of a job and commit a version.

    Args:
        job: what is packed, and where it goes.
        on_samples: told how it goes on.

    Returns:
        The new version; or the newest one, as reused, when it was made from the same files with
        the same settings.

    Raises:
        ConfigError: a source or the tokenizer is wrong.
        DataError: a file as a whole is wrong, or nothing can be placed; nothing is committed.
        StoreError: the store failed.
        ContractError: samples got lost on the way.
    """
    location = open_location(multimodal_uri(job))
    tokenizer = open_tokenizer(job.stream)
    identity = identity_of(job, tokenizer_digest=tokenizer.digest)
    made = usable_version(location, identity.address)
    if made is not None:
        newest = made.version == latest_version(location)
        standing = made if newest else commit(location, _once_more(made.manifest))
        return standing.multimodal_ref(reused=True)
    run = _Run(job, location, identity, tokenizer, on_samples=on_samples)
    for epoch in range(run.log.standing.epoch, job.epochs):
        run.pack_epoch(epoch)
    stands, own = _commit(location, run.contents(identity))
    run.log.clear()
    return stands.multimodal_ref(reused=not own)


class _Run:
    """One run: the open part, the rejects since the last one, and the log."""

    def __init__(
        self,
        job: PackMultimodalJob,
        location: Location,
        identity: Identity,
        tokenizer: MultimodalTokenizer,
        *,
        on_samples: OnSamples | None,
    ) -> None:
        self._job = job
        self._location = location
        self._info = _info(job, tokenizer)
        self._on_samples = on_samples
        self._done = 0
        self._rejects: list[dict[str, object]] = []
        self.log = PackLog(location, identity.address)

    def pack_epoch(self, epoch: int) -> None:
        """Write the rest of an epoch."""
        begun = self.log.standing
        stream = MultimodalStream(
            self._job.stream,
            epoch=epoch,
            state=begun.stream,
            on_reject=lambda ref, reject: self._rejected(epoch, ref, reject),
        )
        if self.log.parts:
            _logger.info("pack goes on epoch=%d parts=%d", epoch, len(self.log.row_parts))
        part = RowPart(self._info)
        for row in stream:
            part.add(StoredRow(epoch=epoch, laid=tuple(map(_without_pixels, row.laid))))
            self._tell(len(row.laid))
            if part.num_rows == self._job.rows_per_part or part.num_bytes >= PART_BYTES:
                self._finish(part, replace(begun, epoch=epoch, stream=row.state))
                part = RowPart(self._info)
        ledger = begun.before.plus(stream.ledger())
        _check_ledger(ledger)
        statistics = begun.statistics.plus(stream.statistics())
        self._finish(part, Standing(epoch=epoch + 1, before=ledger, statistics=statistics))

    def contents(self, identity: Identity) -> Contents:
        """The version, once all epochs are written.

        Raises:
            ContractError: rows hold other samples than were placed.
        """
        ledger, totals = self.log.standing.before, row_totals(self.log.parts)
        placed, found = sum(ledger.placed.values()), totals["num_samples"]
        if placed != found:
            raise ContractError(f"pack: expected {placed} samples in rows, found {found}.")
        drawn = sum(ledger.drawn.values())
        return Contents(
            schema_id=SchemaId.MULTIMODAL_ROWS,
            kind=KIND,
            parts=self.log.parts,
            address=identity.address,
            counts={"samples_in": drawn, "samples_rejected": drawn - placed, **totals},
            settings={
                "job": self._job.model_dump(mode="json"),
                "statistics": self.log.standing.statistics.model_dump(mode="json"),
                "libraries": {name: _version(name) for name in _LIBRARIES},
            },
            files=identity.files,
            multimodal=self._info.with_ledger(ledger),
        )

    def _finish(self, part: RowPart, standing: Standing) -> None:
        """Write what is held and record the shard; at an epoch's end there may be nothing."""
        parts = [part.close(self._location)] if part.num_rows else []
        if self._rejects:
            parts.append(write_rejects(self._location, self._rejects))
        self._rejects = []
        self.log.finished(parts, standing)

    def _rejected(self, epoch: int, ref: SampleRef, reject: SampleReject) -> None:
        self._rejects.append(
            {
                "epoch": epoch,
                "group": ref.group,
                "source": ref.source,
                "file": _plain(ref.file),
                "row": ref.row,
                "reading": ref.reading,
                "reason": reject.reason.value,
                "detail": _plain(reject.detail),
            }
        )
        self._tell(1)

    def _tell(self, samples: int) -> None:
        self._done += samples
        if self._on_samples is not None:
            self._on_samples(self._done)


def _plain(text: str) -> str:
    """Text that Arrow can hold: what is no Unicode becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _info(job: PackMultimodalJob, tokenizer: MultimodalTokenizer) -> MultimodalInfo:
    rules = WritingRules(
        special=tokenizer.special,
        vision=job.stream.vision,
        loss_weighting=job.stream.loss_weighting,
    )
    return MultimodalInfo(
        rules=rules.model_dump(mode="json"),
        limits=job.stream.limits.model_dump(mode="json"),
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
    )


def _without_pixels(laid: LaidSample) -> LaidSample:
    return replace(laid, sample=replace(laid.sample, pixels=()))


def _check_ledger(ledger: SampleLedger) -> None:
    """Each sample that was drawn is placed or left out.

    Raises:
        ContractError: some are neither.
    """
    held = {group: ledger.held(group) for group in sorted(ledger.drawn)}
    if any(held.values()):
        raise ContractError(
            f"pack: expected each sample to be placed or left out at the end of an epoch, found "
            f"neither for {held}."
        )


def _once_more(manifest: Manifest) -> Manifest:
    """The same content, to be committed as a version of its own."""
    fresh = Contents(schema_id="", kind=manifest.kind, parts=()).manifest()
    own = {name: getattr(fresh, name) for name in ("commit_token", "created_at", "host")}
    return manifest.model_copy(update=own)


def _commit(location: Location, contents: Contents) -> tuple[Committed, bool]:
    """Commit, unless another run of this job was first; whether this run's version stands."""
    manifest = contents.manifest()

    def replan(winner: Committed) -> Manifest | None:
        return None if winner.manifest.address == manifest.address else manifest

    first = usable_version(location, contents.address)
    stands = first or commit(location, manifest, replan=replan)
    return stands, stands.manifest.commit_token == manifest.commit_token


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
