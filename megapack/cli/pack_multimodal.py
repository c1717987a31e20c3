"""`megapack pack-multimodal JOB`: packed rows of text and images, without Prefect."""

import argparse
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megapack.cli.audit import audited_rows
from megapack.cli.commands import FAILED, Lesson, add_command
from megapack.cli.progress import watcher
from megapack.cli.settings import merged, parse_setting, read_json
from megapack.cli.terminal import note, write
from megapack.errors import ConfigError
from megapack.jobs.explain import explain
from megapack.jobs.multimodal import PackMultimodalJob
from megapack.jobs.multimodal_place import multimodal_uri
from megapack.records.refs import MultimodalRef
from megapack.store.versions import latest_version

LESSON = Lesson(
    sentence="pack images with captions, conversations and edits into rows in a store",
    more=(
        "Runs in this process, without Prefect: checks the job, packs, audits, reports. Run it\n"
        "again after a stop: it goes on after the last finished part. docs/multimodal-rows.md has\n"
        "a job file, docs/multimodal.md the fields of its stream."
    ),
    examples=(
        "megapack pack-multimodal job.json",
        "megapack pack-multimodal job.json --set stream.limits.max_tokens=16384 --set epochs=2",
        "megapack pack-multimodal job.json --pictures look   # pictures of three rows, too",
    ),
    failed="the audit found a broken law",
)


def add(commands: Any) -> None:  # noqa: ANN401 - argparse's own class is private
    """Register the command."""
    parser = add_command(commands, "pack-multimodal", LESSON, _pack)
    parser.add_argument("job", type=Path, help="job file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change one field, such as stream.seed=1; VALUE is JSON or text",
    )
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="write pictures of rows here")


def _pack(options: argparse.Namespace) -> int:
    # Loaded here, because they load what decodes images.
    from megapack.steps.multimodal.pack import pack_multimodal
    from megapack.steps.multimodal.pictures import save_pictures
    from megapack.steps.multimodal.preflight import check_multimodal
    from megapack.steps.multimodal.report import multimodal_report

    job = _job(options)
    watching = watcher()
    checked = check_multimodal(job)
    for line in (*checked.lines, *checked.warnings):
        note(line)
    newest = latest_version(multimodal_uri(job))
    total = max(1, checked.num_samples)
    with watching.stage("pack", total) as done:
        ref = pack_multimodal(
            job, on_samples=lambda count: done(min(count, total), f"{count:,} samples")
        )
        done(total, f"{ref.num_rows:,} rows, {ref.num_samples:,} samples")
    report = audited_rows(ref, watcher=watching)
    write(multimodal_report(ref).lines())
    if ref.reused:
        note(_reused(ref, newest))
    if options.pictures is not None:
        for path in save_pictures(ref, options.pictures):
            note(f"wrote {path}")
    if report.violations:
        write(["", "the audit found:", *(f"  {line}" for line in report.violations)])
        return FAILED
    note(f"look at it: megapack inspect {ref.uri}")
    return 0


def _reused(ref: MultimodalRef, newest: int) -> str:
    """What is told of a version that was not made anew; `newest` was there before."""
    if ref.version > newest:
        return (
            "nothing had changed since an older version: its content was published again as "
            f"version {ref.version}"
        )
    return "nothing had changed: this version stood there already"


def _job(options: argparse.Namespace) -> PackMultimodalJob:
    fields = read_json(options.job)
    for setting in options.set:
        fields = merged(fields, parse_setting(setting))
    try:
        return PackMultimodalJob.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(
            f"{options.job} is no valid PackMultimodalJob:\n{explain(error, PackMultimodalJob)}"
        ) from error
