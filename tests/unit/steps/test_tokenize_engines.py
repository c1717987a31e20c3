"""Whichever engine turns texts into tokens, the step writes the same bytes."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megapack.conversation import fast_engine
from megapack.conversation.config import Engine
from megapack.conversation.encoder import EncodedBatch
from megapack.conversation.engines import Engines
from megapack.errors import ConfigError
from megapack.steps import tokenize as step
from megapack.steps.split import list_sources, split_source
from megapack.steps.tables import committed
from megapack.steps.tokenize import tokenize_part
from tests.support.byte_tokenizers import NASTY, trained_tokenizer
from tests.support.prepare_jobs import line, prepare_job
from tests.support.toy_tokenizers import save_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
)
needs_fastokens = pytest.mark.skipif(
    fast_engine.fastokens is None, reason="fastokens is not installed"
)


def make_job(tmp_path, *, store="store", engine="auto", count=40, **changes):
    lines = [
        line(
            (
                "user",
                f"{NASTY[number % len(NASTY)]} {number % 7} <|im_end|>"
                if number % 5 == 1
                else NASTY[number % 9],
            ),
            ("assistant", f"{NASTY[number * 7 % len(NASTY)]} answer {number}"),
            ("user", "again"),
            ("assistant", f"same {NASTY[number % len(NASTY)]}"),
        )
        for number in range(count)
    ]
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(lines))
    folder = save_tokenizer(trained_tokenizer(), tmp_path / "trained", template=TEMPLATE)
    return prepare_job(
        tmp_path,
        source,
        tokenizer=folder,
        tokenize={"long_documents": "split", "engine": engine, **changes},
        pack={"row_length": 256},
        store=str(tmp_path / store),
    )


def keys_of(job):
    ref = tokenize_part(job, split_source(job, list_sources(job)[0]), 0)
    manifest = committed(ref).manifest
    return [part.key for part in manifest.parts], manifest.address, ref.digest


@pytest.fixture(autouse=True)
def fresh_engines():
    step._engines.cache_clear()
    yield
    step._engines.cache_clear()


@needs_fastokens
def test_documents_are_byte_identical_under_any_engine_and_batch(tmp_path, monkeypatch, caplog):
    made = []
    for engine in Engine:
        for batch, size in ((256, 1 << 22), (3, 1 << 22), (256, 300)):
            monkeypatch.setattr(step, "_BATCH", batch)
            monkeypatch.setattr(step, "_BATCH_BYTES", size)
            store = f"{engine.value}-{batch}-{size}"
            with caplog.at_level(logging.INFO):
                made.append(keys_of(make_job(tmp_path, store=store, engine=engine.value)))
    assert all(one == made[0] for one in made)
    ran = [
        r.getMessage().split("engine=")[1] for r in caplog.records if "engine=" in r.getMessage()
    ]
    assert ran == ["fast"] * 3 + ["distinct segments"] * 3 + ["fast"] * 3


def test_documents_are_byte_identical_without_the_package(tmp_path, monkeypatch, caplog):
    with_any = keys_of(make_job(tmp_path, store="one"))
    step._engines.cache_clear()
    monkeypatch.setattr(fast_engine, "fastokens", None)
    with caplog.at_level(logging.INFO):
        assert keys_of(make_job(tmp_path, store="two")) == with_any
    assert "engine=distinct segments (no fast engine: the package fastokens is not" in caplog.text
    with pytest.raises(ConfigError, match="fastokens is not installed"):
        keys_of(make_job(tmp_path, store="three", engine="fast"))


def test_engine_is_no_part_of_the_address(tmp_path):
    job = make_job(tmp_path)
    source = split_source(job, list_sources(job)[0])
    first = tokenize_part(job, source, 0)
    other = make_job(tmp_path, engine="reference")
    assert tokenize_part(other, source, 0) == first.model_copy(update={"reused": True})


class LateAndWrong:
    """The reference but for texts with a mark, which come late in the part."""

    name = "wrong"

    def __init__(self, reference):
        self._reference = reference

    def encode(self, texts):
        right = self._reference.encode(texts)
        wrong = np.repeat(["answer 35" in text for text in texts], np.diff(right.tokens))
        # A mistake that it makes from the start, in texts that no check looks at.
        wrong |= np.repeat(["answer 5" in text for text in texts], np.diff(right.tokens))
        return EncodedBatch(
            ids=np.where(wrong, 300, right.ids).astype(np.int32),
            starts=right.starts,
            ends=right.ends,
            tokens=right.tokens,
            characters=right.characters,
        )


def test_engine_found_wrong_late_makes_the_part_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(step, "_BATCH", 2)
    expected = keys_of(make_job(tmp_path, store="one", engine="reference"))
    load = Engines.load

    def with_wrong(files, *, choice):
        engines = load(files, choice=choice)
        return Engines(
            reference=engines.reference,
            quicker=(LateAndWrong(engines.reference),),
            unusable={},
            required=None,
        )

    monkeypatch.setattr(Engines, "load", with_wrong)
    monkeypatch.setattr("megapack.conversation.checked_encoder._FIRST", 0)
    monkeypatch.setattr(
        "megapack.conversation.checked_encoder.CheckedEncoder._is_due",
        lambda _, text: "answer 35" in text,
    )
    step._engines.cache_clear()
    job = make_job(tmp_path, store="two")
    seen = []
    ref = tokenize_part(job, split_source(job, list_sources(job)[0]), 0, on_progress=seen.append)
    assert [part.key for part in committed(ref).manifest.parts] == expected[0]
    assert seen == [*range(2, 41, 2)] * 2
    assert "engine=wrong given up" in caplog.text


def test_batches_are_bounded_in_number_and_size(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "_BATCH_BYTES", 1000)
    monkeypatch.setattr(step, "_BATCH", 4)
    job = make_job(tmp_path, count=20)
    seen = []
    tokenize_part(job, split_source(job, list_sources(job)[0]), 0, on_progress=seen.append)
    assert seen[-1] == 20
    assert max(np.diff([0, *seen])) <= 4


def test_documents_are_byte_identical_in_any_process(tmp_path):
    make_job(tmp_path)
    script = (
        "import json,sys; from pathlib import Path; sys.path.insert(0, sys.argv[3])\n"
        "from tests.unit.steps.test_tokenize_engines import keys_of, make_job\n"
        "print(json.dumps(keys_of(make_job(Path(sys.argv[1]), store=sys.argv[2]))))"
    )
    root = Path(__file__).parents[3]
    found = []
    for seed in ("1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), f"seed-{seed}", str(root)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[0] == found[1] == list(keys_of(make_job(tmp_path, store="here")))
