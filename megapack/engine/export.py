"""One export: a committed checkpoint, written out as a Hugging Face folder by one process."""

import json
import secrets
import shutil
from pathlib import Path

from megapack.engine.checkpoint import load_weights
from megapack.errors import ContractError, StoreError
from megapack.jobs.export_weights import ExportWeightsJob
from megapack.model.build import build_model
from megapack.model.hf_export import write_weights
from megapack.parallel.context import ParallelContext
from megapack.steps.hugging_face.folder import CONFIG


def run_export(job: ExportWeightsJob, context: ParallelContext, scratch: Path) -> None:
    """Write the folder; it appears under its name when it is whole.

    Args:
        job: what to export, where to.
        context: of one process.
        scratch: node-local folder of the run.

    Raises:
        StoreError: the store or the disk failed.
        DataError: a checkpoint file is damaged.
    """
    if job.model.vocab_size is None or context.sizes.world_size != 1:
        raise ContractError(
            f"weights export: expected one process and a known vocabulary, found "
            f"{context.sizes.world_size} and {job.model.vocab_size}."
        )
    chunks = build_model(job.model, context=context, vocab_size=job.model.vocab_size, seed=None)
    load_weights(job.checkpoint, chunks, context, scratch / "teacher")
    output = Path(job.output)
    staging = output.with_name(f".{output.name}.{secrets.token_hex(6)}")
    try:
        staging.mkdir(parents=True)
        write_weights(chunks[0], job=job.model, folder=staging, file_bytes=job.file_bytes)
        text = json.dumps(job.config, indent=2, sort_keys=True) + "\n"
        (staging / CONFIG).write_text(text, encoding="utf-8")
        staging.replace(output)
    except OSError as error:
        raise StoreError(f"could not write {output}: {error}. Check the disk.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
