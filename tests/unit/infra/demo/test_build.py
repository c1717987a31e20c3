"""Building the demo: the same bytes everywhere, made once, and refused without docstrings."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from infra.demo import build, reading, topics
from infra.demo.build import Outcome, build_demo
from infra.demo.topics import DemoError

ROOT = Path(build.__file__).parents[2]
SIZE, VOCABULARY_SIZE = 60, 700


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> build.Demo:
    folder = tmp_path_factory.mktemp("demo")
    return build_demo(folder, size=SIZE, vocabulary_size=VOCABULARY_SIZE)


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _bytes(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _records(folder: Path, name: str) -> list:
    path = folder / "data" / name
    if name.endswith(".parquet"):
        return pl.read_parquet(path).to_dicts()
    if name.endswith(".json"):
        return json.loads(path.read_text(encoding="utf-8"))
    raw = path.read_bytes()
    return (gzip.decompress(raw) if name.endswith(".gz") else raw).decode().splitlines()


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_build_is_equal_under_other_hash_seed_and_threads(
    demo: build.Demo, tmp_path: Path, hash_seed: str
) -> None:
    done = _run(
        *("-m", "infra.demo", str(tmp_path), "--size", str(SIZE)),
        *("--vocabulary-size", str(VOCABULARY_SIZE)),
        PYTHONHASHSEED=hash_seed,
        RAYON_NUM_THREADS="1",
        LC_ALL="C",
        TZ="Asia/Tokyo",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("demo built: ")
    assert _bytes(tmp_path) == _bytes(demo.folder)


def test_topics_without_docstrings_are_refused() -> None:
    done = _run("-OO", topics.__file__)
    assert (done.returncode, done.stdout) == (1, "")
    assert "sys.flags.optimize = 2 (-OO or PYTHONOPTIMIZE=2), which removes them" in done.stderr


def test_build_is_equal_under_oo_and_patched_library_and_never_loads_torch(
    demo: build.Demo, tmp_path: Path
) -> None:
    code = (
        "import inspect, logging, pathlib, sys; del inspect.getfile; logging.Logger.extra = len; "
        f"from infra.demo.build import build_demo; build_demo(pathlib.Path({str(tmp_path)!r}), "
        f"size={SIZE}, vocabulary_size={VOCABULARY_SIZE}); "
        "print(sorted({'torch', 'transformers', 'megatron', 'prefect'} & set(sys.modules)))"
    )
    done = _run("-OO", "-c", code)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
    assert _bytes(tmp_path) == _bytes(demo.folder)


def test_failed_reading_says_what_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "__file__", "/nonexistent/topics.py")
    with pytest.raises(DemoError, match=r"-I -S /nonexistent/topics.py; found exit status 2"):
        reading.read_topics()


def test_second_build_finds_the_first(demo: build.Demo) -> None:
    again = build_demo(demo.folder, size=SIZE, vocabulary_size=VOCABULARY_SIZE)
    assert again.outcome is Outcome.ALREADY_THERE
    assert again.manifest == demo.manifest


@pytest.mark.parametrize("damage", ["edited", "deleted", "manifest"])
def test_damaged_build_is_made_again(demo: build.Demo, tmp_path: Path, damage: str) -> None:
    shutil.copytree(demo.folder, tmp_path, dirs_exist_ok=True)
    whole = _bytes(tmp_path)
    target = tmp_path / (build.MANIFEST if damage == "manifest" else "data/alpaca.jsonl")
    if damage == "deleted":
        target.unlink()
    else:
        target.write_text("{", encoding="utf-8")
    again = build_demo(tmp_path, size=SIZE, vocabulary_size=VOCABULARY_SIZE)
    assert (demo.outcome, again.outcome) == (Outcome.BUILT, Outcome.BUILT)
    assert _bytes(tmp_path) == whole


def test_counts_agree_with_the_files(demo: build.Demo) -> None:
    counts = demo.manifest["counts"]
    for name, count in counts.items():
        assert len(_records(demo.folder, name)) == count["records"], name
        if count["shape"] != "merged":
            flawed = sum(count["flawed"].values())
            assert count["good_conversations"] + flawed == count["records"], name
    flaws: dict[str, int] = {}
    for count in counts.values():
        for flaw, number in count["flawed"].items():
            flaws[flaw] = flaws.get(flaw, 0) + number
    assert flaws == dict.fromkeys(
        (
            *("assistant_first", "blank_assistant", "duplicate", "empty_assistant"),
            *("no_assistant", "no_messages", "not_an_object", "unknown_role"),
            *("unknown_shape", "unreadable"),
        ),
        1,
    )


def test_merged_records_begin_each_conversation_with_a_system_message(demo: build.Demo) -> None:
    begun = 0
    for line in _records(demo.folder, "merged.jsonl.packed"):
        roles = [message["role"] for message in json.loads(line)["messages"]]
        assert roles[0] == "system"
        begun += roles.count("system")
    assert begun == demo.manifest["counts"]["merged.jsonl.packed"]["good_conversations"]


def test_other_shapes_hold_their_own_keys(demo: build.Demo) -> None:
    turns = [
        turn for row in _records(demo.folder, "sharegpt.json") for turn in row["conversations"]
    ]
    assert {turn["from"] for turn in turns} == {"system", "human", "gpt"}
    (row, *_) = _records(demo.folder, "table.parquet")
    assert {key for message in row["messages"] for key in message} == {"role", "content"}
    tool_lines = _records(demo.folder, "tools.jsonl.gz")
    assert any('"tool_calls"' in line and '"tools"' in line for line in tool_lines)
