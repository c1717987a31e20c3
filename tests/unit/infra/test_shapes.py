"""The shapes: what is said of a picture is true of its pixels, and all of it is repeatable."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer

from infra.shapes.build import MANIFEST, Amounts, Outcome, build_shapes, shapes_content
from infra.shapes.edits import draw_chain
from infra.shapes.job import shapes_job
from infra.shapes.scenes import BACKGROUNDS, COLOURS, PLACES, draw_scene, render
from infra.shapes.talks import draw_talk
from infra.shapes.vocabulary import SPECIAL_TOKENS

AMOUNTS = Amounts(captions=7, talks=12, chains=5, held_out=3, flaws=1)


@pytest.fixture(scope="module")
def content() -> dict[str, bytes]:
    return shapes_content(AMOUNTS)


def test_words_agree_with_pixels() -> None:
    for number in range(20):
        scene = draw_scene(Random(number))
        image = render(scene)
        assert image.size == (scene.width, scene.height)
        assert image.getpixel((0, 0)) == BACKGROUNDS[scene.background]
        for shape in scene.shapes:
            x, y = PLACES[shape.place]
            assert (
                image.getpixel((int(x * image.width), int(y * image.height)))
                == (COLOURS[shape.colour])
            )
            assert f"{shape.colour} {shape.kind} {shape.place}" in scene.caption()


def test_each_edit_changes_the_picture_and_each_talk_is_answered() -> None:
    for number in range(20):
        chain = draw_chain(Random(number))
        assert len(chain.instructions) == len(chain.scenes) - 1
        for before, after in zip(chain.scenes, chain.scenes[1:], strict=False):
            assert before != after
        talk = draw_talk(Random(number))
        marks = talk.turns[0][0].count("<video>" if talk.video else "<image>")
        assert marks == (1 if talk.video else len(talk.scenes))
        assert all(question and answer for question, answer in talk.turns)


def test_content_depends_on_seed_and_amounts_alone(content: dict[str, bytes]) -> None:
    assert shapes_content(AMOUNTS) == content
    other = shapes_content(replace(AMOUNTS, seed=1))
    assert other["text_to_image/part-000.parquet"] != content["text_to_image/part-000.parquet"]
    more = shapes_content(replace(AMOUNTS, talks=13, flaws=0))
    lines = content["understanding/talks.jsonl"].splitlines()
    assert more["understanding/talks.jsonl"].splitlines()[:12] == lines[:12]
    assert [json.loads(line)["id"][:4] for line in lines[12:]] == ["flaw"] * 3


def test_the_tokenizer_writes_every_text_and_knows_the_special_tokens(
    content: dict[str, bytes],
) -> None:
    tokenizer = Tokenizer.from_str(content["tokenizer/tokenizer.json"].decode())
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    text = "a small red circle, naïvely"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    shapes_job("anywhere")


def test_a_second_build_finds_the_first_and_an_edit_is_noticed(tmp_path: Path) -> None:
    amounts = Amounts(captions=3, talks=2, chains=1, held_out=1, flaws=0)
    assert build_shapes(tmp_path, amounts) is Outcome.BUILT
    assert build_shapes(tmp_path, amounts) is Outcome.ALREADY_THERE
    (tmp_path / "editing" / "part-000.parquet").write_bytes(b"edited")
    assert build_shapes(tmp_path, amounts) is Outcome.BUILT
    names = json.loads((tmp_path / MANIFEST).read_text())["files"]
    assert all((tmp_path / name).is_file() for name in names)
