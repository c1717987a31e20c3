"""Peak memory: a source file ten times the memory allowed, its rows, and 10M documents' lengths.

Each measurement is a process of its own, whose high-water mark the kernel keeps. `over_mb` is that
mark above the one of a process that does the same with a file of 2 MB: what the rest costs.
`within` says whether that stays below the limit; for lengths, whether the whole process does. The
tokenizer has a word a token, so that tokens take as much room as they can. Arrays and Parquet are
split alone, and from a smaller file. Packing holds a part of rows beside its limit, about
three times its tokens while it is written (measured, not bounded).
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.record import emit
from megapack.jobs.prepare import PrepareJob
from megapack.records.refs import TableRef
from megapack.steps.admission import admit
from megapack.steps.document_index import DocumentIndex
from megapack.steps.pack import pack
from megapack.steps.placement import place_documents
from megapack.steps.split import list_sources, split_source
from megapack.steps.split_sides import split_sides
from megapack.steps.tokenize import tokenize_part
from megapack.store.schema import PackedInfo
from megapack.store.sinks import ROW_PART_BYTES

LIMIT_MB = 48
LARGE_MB = {"jsonl": 10 * LIMIT_MB, "json": 3 * LIMIT_MB, "parquet": 3 * LIMIT_MB}
SMALL_MB = 2
RECORDS_PER_SHARD = 500
DOCUMENTS = 10_000_000
LENGTHS_LIMIT_MB = 1200
_MB = 1 << 20
_WORDS = 4096
_SENTENCES = 2000
_SENTENCE_WORDS = 100
_CHAT_SENTENCES = 6


def main() -> None:
    """Print a line for each measurement."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for suffix, large in LARGE_MB.items():
            small, big = (
                _child("split", _source(folder / f"{size}.{suffix}", size))
                for size in (SMALL_MB, large)
            )
            emit(f"split {suffix}", file_mb=large, **_over(small, big))
        large = LARGE_MB["jsonl"]
        files = [folder / f"{size}.jsonl" for size in (SMALL_MB, large)]
        emit("tokenize jsonl", file_mb=large, **_over(*(_child("tokenize", one) for one in files)))
        part = ROW_PART_BYTES // _MB
        packed = _over(*(_child("pack", one) for one in files), limit_mb=LIMIT_MB + 3 * part)
        emit("pack jsonl", file_mb=large, part_mb=part, **packed)
    for count in (DOCUMENTS // 10, DOCUMENTS):
        found = _child("lengths", count)
        within = found["peak_mb"] <= LENGTHS_LIMIT_MB
        limits = {"limit_mb": LENGTHS_LIMIT_MB, "within": within}
        emit("admit and plan lengths", documents=count, **found, **limits)


def _over(
    small: dict[str, float], big: dict[str, float], *, limit_mb: int = LIMIT_MB
) -> dict[str, float | bool]:
    over = big["peak_mb"] - small["peak_mb"]
    return big | {"over_mb": round(over, 1), "limit_mb": limit_mb, "within": over <= limit_mb}


def _child(what: str, about: Path | int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_memory", what, str(about)],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(what: str, about: str) -> None:
    """In the child: do the work, print the peak."""
    work: dict[str, Callable[[str], object]] = {
        "split": lambda path: _split(_job(Path(path))),
        "tokenize": lambda path: _tokenize(_job(Path(path))),
        "pack": _pack,
        "lengths": _lengths,
    }
    begin = time.process_time()
    work[what](about)
    # Not `ru_maxrss`: that one is handed down by the process that started this one.
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    seconds = time.process_time() - begin
    sys.stdout.write(json.dumps({"peak_mb": round(peak, 1), "cpu_s": round(seconds, 1)}) + "\n")


def _split(job: PrepareJob) -> list[TableRef]:
    return [split_source(job, shard) for shard in list_sources(job)]


def _tokenize(job: PrepareJob) -> tuple[list[TableRef], list[TableRef]]:
    tables = _split(job)
    parts = [(ref, index) for ref in tables for index in range(ref.num_parts)]
    return tables, [tokenize_part(job, ref, index) for ref, index in parts]


def _pack(path: str) -> None:
    job = _job(Path(path))
    conversations, documents = _tokenize(job)
    pack(job, conversations=conversations, documents=documents, memory_bytes=LIMIT_MB * _MB // 2)


def _lengths(count: str) -> None:
    size = int(count)
    draw = np.random.Generator(np.random.Philox(0))
    lengths = np.minimum(draw.lognormal(6.4, 1.2, size) + 1, 32_769).astype(np.int32)
    numbers = np.arange(size, dtype=np.int32)
    index = DocumentIndex(
        high=draw.integers(0, 2**64, size, dtype=np.uint64),
        low=draw.integers(0, 2**64, size, dtype=np.uint64),
        num_tokens=lengths,
        source=np.zeros(size, np.int32),
        part=numbers // 2000,
        record=numbers % 2000,
        given=numbers,
        sources=("chats",),
        parts=(),
    )
    job = _job(Path("none.jsonl"), pack={"row_length": 32_768, "duplicates": "drop"})
    info = PackedInfo(
        row_length=32_768,
        segment_granularity=8,
        row_granularity=8,
        pad_id=0,
        vocab_size=_WORDS,
        tokenizer_digest="",
        format="identity",
    )
    sides = split_sides(index, admit(index, job).placed, job)
    place_documents(index, sides, info=info, config=job.pack)


def _job(source: Path, **changes: object) -> PrepareJob:
    return PrepareJob.model_validate(
        {
            "sources": [{"uri": str(source), "name": "chats"}],
            "tokenizer": str(source.parent / "tokenizer"),
            "tokenize": {"format": "identity", "long_documents": "drop"},
            "pack": {"row_length": 8192},
            "store": str(source.parent / f"store-{source.stem}"),
            "records_per_shard": RECORDS_PER_SHARD,
        }
        | changes
    )


def _source(path: Path, size_mb: int) -> Path:
    """A file of chats of about this size, and the tokenizer beside it."""
    tokenizer = path.parent / "tokenizer"
    if not tokenizer.is_dir():
        tokenizer.mkdir()
        words = {"<unk>": 0} | {f"w{number}": number for number in range(1, _WORDS)}
        made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        made.save(str(tokenizer / "tokenizer.json"))
        config = {"pad_token": "<unk>", "unk_token": "<unk>", "eos_token": "<unk>"}
        (tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
    if path.suffix == ".parquet":
        pl.LazyFrame({"messages": [one["messages"] for one in _chats(size_mb)]}).sink_parquet(
            path, row_group_size=2000
        )
        return path
    with path.open("w") as file:
        lines = (json.dumps(one) for one in _chats(size_mb))
        if path.suffix == ".json":
            file.write("[")
            for number, line in enumerate(lines):
                file.write(f"{',' if number else ''}\n{line}")
            file.write("]\n")
        else:
            file.writelines(f"{line}\n" for line in lines)
    return path


def _chats(size_mb: int) -> Iterator[dict[str, list[dict[str, str]]]]:
    draw = np.random.Generator(np.random.Philox(1))
    sentences = [
        " ".join(f"w{number}" for number in draw.integers(1, _WORDS, _SENTENCE_WORDS).tolist())
        for _ in range(_SENTENCES)
    ]
    size = 0
    while size < size_mb * _MB:
        chosen = draw.integers(0, _SENTENCES, _CHAT_SENTENCES).tolist()
        question, *answers = [sentences[number] for number in chosen]
        answer = " ".join(answers)
        size += len(question) + len(answer) + 80
        yield {
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _measure(sys.argv[1], sys.argv[2])
    else:
        main()
