"""The demo's conversations: real, different from one another, and the same on every run."""

import itertools
import json
import unicodedata
from random import Random

import pytest

from infra.demo import conversations, tools
from infra.demo.flaws import Flaw, flawed_lines
from infra.demo.reading import read_topics
from infra.demo.talks import Conversation, Library
from infra.demo.topics import DemoError

SIZE = 120


@pytest.fixture(scope="module")
def library() -> Library:
    return Library.of(read_topics())


@pytest.fixture(scope="module")
def made(library: Library) -> dict[str, tuple[Conversation, ...]]:
    return conversations.generate(library, size=SIZE)


@pytest.fixture(scope="module")
def talks(made: dict[str, tuple[Conversation, ...]]) -> list[Conversation]:
    return [talk for file_talks in made.values() for talk in file_talks]


def test_topics_name_documented_things_once(library: Library) -> None:
    names = [topic.name for topic in library.topics]
    assert len(set(names)) == len(names)
    assert library.by_name["json.dumps"].summary == (
        "Serialize ``obj`` to a JSON formatted ``str``."
    )
    assert library.by_name["textwrap.indent"].call == (
        "textwrap.indent(text, prefix, predicate=None)"
    )
    assert [a.default for a in library.by_name["textwrap.indent"].arguments] == [None, None, "None"]


def test_topics_hold_no_text_that_changes_between_runs(library: Library) -> None:
    for topic in library.topics:
        assert " at 0x" not in f"{topic.call} {topic.documentation}", topic.name


def test_shares_add_up_to_all_conversations() -> None:
    assert sum(share for plan in conversations.FILES for _, share in plan.shares) == 100


def test_generate_is_equal_for_equal_size(
    library: Library, made: dict[str, tuple[Conversation, ...]]
) -> None:
    assert conversations.generate(library, size=SIZE) == made


def test_no_two_good_conversations_are_equal(talks: list[Conversation]) -> None:
    assert len({talk.key() for talk in talks}) == len(talks)


def test_good_conversations_keep_the_role_order(talks: list[Conversation]) -> None:
    allowed = {
        "system": {"user"},
        "user": {"assistant"},
        "assistant": {"user", "tool"},
        "tool": {"tool", "assistant"},
    }
    for talk in talks:
        roles = [message["role"] for message in talk.messages]
        assert roles[0] in {"system", "user"}
        assert roles[-1] == "assistant"
        for before, after in itertools.pairwise(roles):
            assert after in allowed[before], roles


def test_good_contents_begin_and_end_with_text(talks: list[Conversation]) -> None:
    for talk in talks:
        for message in talk.messages:
            if message["content"] is None:
                assert message["tool_calls"]
            else:
                assert message["content"] == message["content"].strip("\n")
                assert message["content"].strip()


def test_tool_results_answer_their_calls(library: Library, talks: list[Conversation]) -> None:
    checked = 0
    for talk in talks:
        offered = {tool["function"]["name"] for tool in talk.tools}
        calls = {c["id"]: c for m in talk.messages for c in m.get("tool_calls", ())}
        results = {m["tool_call_id"]: m for m in talk.messages if m["role"] == "tool"}
        assert calls.keys() == results.keys()
        for identity, call in calls.items():
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            assert name in offered
            if name == "lookup_docs":
                expected = tools.lookup(arguments["name"], topics=library.by_name)
                assert results[identity]["content"] == expected
                checked += 1
            elif name == "describe_character":
                found = json.loads(results[identity]["content"])
                assert found["name"] == unicodedata.name(arguments["character"])
                checked += 1
    assert checked > 10


def test_compute_gives_the_value_of_its_expression() -> None:
    rng = Random(1)
    for _ in range(100):
        computed = tools.compute(rng)
        value = eval(computed.expression, {"math": __import__("math")})
        assert repr(value) == computed.value


def test_lookup_of_unknown_name_offers_the_nearest(library: Library) -> None:
    found = json.loads(tools.lookup("json.dumsp", topics=library.by_name))
    assert found["error"] == "no documentation for json.dumsp"
    assert "json.dumps" in found["similar"]


def test_lengths_vary_widely(talks: list[Conversation]) -> None:
    sizes = sorted(len(talk.key()) for talk in talks)
    assert sizes[-1] > 10 * sizes[len(sizes) // 10]


def test_generate_refuses_a_size_without_new_conversations(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_talk(_library: Library, _target: int, _rng: Random) -> Conversation:
        return Conversation(messages=({"role": "user", "content": "Hello?"},))

    plan = conversations.FilePlan(
        name="one.jsonl", shape=conversations.Shape.MESSAGES, shares=((only_talk, 100),)
    )
    monkeypatch.setattr(conversations, "FILES", (plan,))
    expected = r"Expected a new only_talk; found 200 known ones in a row after 1 conversations"
    with pytest.raises(DemoError, match=expected):
        conversations.generate(library, size=2)


def test_flawed_lines_hold_each_flaw_as_named(made: dict[str, tuple[Conversation, ...]]) -> None:
    good = made["messages-000.jsonl"]
    lines = flawed_lines(good, each=2, rng=Random(3))
    assert sorted(flaw for flaw, _ in lines) == sorted([*Flaw, *Flaw])
    known = {talk.key() for talk in good}
    for flaw, line in lines:
        if flaw is Flaw.UNREADABLE:
            with pytest.raises(json.JSONDecodeError):
                json.loads(line)
            continue
        record = json.loads(line)
        if flaw is Flaw.NOT_AN_OBJECT:
            assert isinstance(record, str)
            continue
        messages = record.get("messages")
        roles = [message["role"] for message in messages or ()]
        is_as_named = {
            Flaw.UNKNOWN_SHAPE: messages is None,
            Flaw.UNKNOWN_ROLE: bool({"narrator", "critic", "bot"} & set(roles)),
            Flaw.ASSISTANT_FIRST: roles[:1] == ["assistant"],
            Flaw.NO_MESSAGES: messages == [],
            Flaw.EMPTY_ASSISTANT: bool(roles)
            and messages[-1] == {"role": "assistant", "content": ""},
            Flaw.BLANK_ASSISTANT: bool(roles)
            and messages[-1]["content"] != ""
            and messages[-1]["content"].strip() == "",
            Flaw.NO_ASSISTANT: bool(roles) and "assistant" not in roles,
            Flaw.DUPLICATE: bool(roles) and Conversation(messages=tuple(messages)).key() in known,
        }
        assert {named for named, holds in is_as_named.items() if holds} == {flaw}
