"""A second run of the data steps with nothing to do: what it reads of the stored data.

Between the runs every data file of the store is overwritten with zeros of the same size. A second
run that read one of them would fail its check, so a run that ends well has read none, whatever the
store does to read. Prefect is left out: it only calls these steps.
"""

import json
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks.record import at_most, emit, missing
from benchmarks.tekken import tekken_folder
from megapack.errors import MegapackError
from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import DatasetRef
from megapack.steps.audit import audit
from megapack.steps.pack import pack
from megapack.steps.split import list_sources, split_source
from megapack.steps.tokenize import tokenize_part

_FILES, _CHATS = 64, 25


def main() -> None:
    """Print the goal lines, and the wall seconds of both runs."""
    try:
        tokenizer = tekken_folder()
    except ImportError as error:
        missing("P9", "rerun", peer="mistral-common (tokenizer)", why=str(error))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _measure(
            PrepareJob.model_validate(
                {
                    "sources": [{"uri": str(path)} for path in _sources(folder / "sources")],
                    "tokenizer": str(tokenizer),
                    "tokenize": {"long_documents": "drop"},
                    "pack": {"row_length": 4096},
                    "store": str(folder / "store"),
                }
            )
        )


def _measure(job: PrepareJob) -> None:
    begin = perf_counter()
    first = _prepare(job)
    first_s = perf_counter() - begin
    files = _spoil(Path(job.store))
    begin = perf_counter()
    try:
        again = _prepare(job)
    except MegapackError as error:
        sys.stderr.write(f"{error}\n")
        at_most("P9", "stored files read by split, tokenize and pack", 1, 0, unit="or more")
        return
    rerun_s = perf_counter() - begin
    at_most("P9", "stored files read by split, tokenize and pack", 0, 0, unit="files", of=files)
    at_most("P9", "new versions", float(again.version != first.version), 0, unit="versions")
    emit(
        "rerun",
        sources=_FILES,
        first_wall_s=round(first_s, 2),
        rerun_wall_s=round(rerun_s, 2),
        audit_reads_rows=_audit_reads(again),
    )


def _prepare(job: PrepareJob) -> DatasetRef:
    """What the `prepare` flow does before its audit."""
    conversations = [split_source(job, shard) for shard in list_sources(job)]
    documents = [
        tokenize_part(job, ref, index) for ref in conversations for index in range(ref.num_parts)
    ]
    return pack(job, conversations=conversations, documents=documents)


def _audit_reads(ref: DatasetRef) -> bool:
    """Whether an audit notices that the rows are spoiled."""
    try:
        return bool(audit(ref).violations)
    except MegapackError:
        return True


def _sources(folder: Path) -> list[Path]:
    """Small files of chats, all different."""
    folder.mkdir()
    paths = [folder / f"{number:03}.jsonl" for number in range(_FILES)]
    for number, path in enumerate(paths):
        lines = [_chat(number * _CHATS + chat) for chat in range(_CHATS)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def _chat(number: int) -> str:
    question = {"role": "user", "content": f"What is {number} and {number}?"}
    answer = {"role": "assistant", "content": f"It is {2 * number}. " * (1 + number % 40)}
    return json.dumps({"messages": [question, answer]})


def _spoil(store: Path) -> int:
    """Overwrite every data file with zeros of the same size; how many there are."""
    paths = sorted(store.rglob("*.parquet"))
    for path in paths:
        path.write_bytes(bytes(path.stat().st_size))
    return len(paths)


if __name__ == "__main__":
    main()
