import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.conversation.messages import Message, Role
from megapack.conversation.too_long import exchanges
from megapack.errors import DataError
from megapack.records.drops import DropReason
from tests.support.chats import call, chat
from tests.support.tokenizing import TW, WORDS, run, supervised, words
from tests.support.toy_tokenizers import (
    MARKED_TEMPLATE,
    PLAIN_TEMPLATE,
    encoder_of,
    words_tokenizer,
)


def test_truncation_keeps_the_mask_of_what_is_left():
    conversation = chat(("u", words(5)), ("a", words(20, 10)))
    outcome = run([conversation], policy="truncate", limit=12)
    assert outcome.documents[0].num_tokens == 12
    assert supervised(outcome) == [[18, 19, 20, 21]]
    assert outcome.counts.truncated_documents == 1
    assert outcome.counts.lost_tokens == 29 - 12
    assert outcome.counts.lost_target_tokens == 17


def test_truncation_before_the_first_target_is_a_counted_drop():
    outcome = run([chat(("u", words(20)), ("a", "w1"))], policy="truncate", limit=10)
    assert [(d.reason, d.tokens) for d in outcome.drops] == [(DropReason.TOO_LONG, 25)]
    assert "the first stands at 23" in outcome.drops[0].detail


def test_document_of_the_limit_is_kept_and_one_more_is_too_long():
    conversation = chat(("u", "w0"), ("a", "w1 w2"))
    assert len(run([conversation], policy="drop", limit=7).documents) == 1
    dropped = run([conversation], policy="drop", limit=6)
    assert [(d.reason, d.tokens) for d in dropped.drops] == [(DropReason.TOO_LONG, 7)]


def test_error_policy_names_the_document():
    with pytest.raises(DataError, match=r"toy.jsonl:1 .*at most 6 tokens, found 7"):
        run([chat(("u", "w0"), ("a", "w1 w2"))], policy="error", limit=6)


def test_split_repeats_the_system_message_and_keeps_calls_with_results():
    encoder = encoder_of(words_tokenizer(WORDS), template=PLAIN_TEMPLATE)
    conversation = chat(
        ("s", "w0"),
        ("u", "w1"),
        ("a", "w2", {"tool_calls": (call(),)}),
        ("t", "w3"),
        ("a", "w4"),
        ("u", "w5"),
        ("a", "w6"),
    )
    outcome = run([conversation], encoder=encoder, limit=16, on_lossy="keep")
    assert outcome.counts.lossy_documents == 2
    assert [d.tokens.tolist() for d in outcome.documents] == [
        [6, 8, 5, 3, 9, 5, 4, 10, 5, 7, 11, 5, 4, 12, 5],
        [6, 8, 5, 3, 13, 5, 4, 14, 5],
    ]
    assert supervised(outcome) == [[10, 5, 12, 5], [14, 5]]
    assert [d.piece for d in outcome.documents] == [0, 1]
    assert len({d.document_id for d in outcome.documents}) == 2
    assert outcome.counts.split_conversations == 1
    assert outcome.counts.lost_target_tokens == 0


def test_exchange_that_fits_nowhere_is_a_drop_that_says_what_row_would_hold_it():
    conversation = chat(
        ("s", "w0"),
        ("u", "w1"),
        ("a", "w2"),
        ("u", "w3"),
        ("a", words(20)),
        ("u", "w5"),
        ("a", "w6"),
    )
    outcome = run([conversation], limit=12)
    assert supervised(outcome) == [[10, 5], [14, 5]]
    assert outcome.counts.lost_target_tokens == 21
    assert (outcome.counts.kept, outcome.counts.dropped_pieces) == (1, 1)
    (drop,) = outcome.drops
    # 28 tokens with the system message; its 3 and the user's header stand in the piece before too.
    assert (drop.reason, drop.tokens) == (DropReason.TOO_LONG, 24)
    assert drop.document_id == outcome.documents[0].document_id
    assert drop.detail == (
        "exchange 2 of 3 (messages 3 to 4) of a split conversation: expected at most 12 tokens, "
        "found 28 with the system message. A row length of 27 would hold it."
    )
    assert not run([conversation], limit=28).drops


def test_conversation_of_which_no_exchange_fits_is_too_long():
    outcome = run([chat(("u", "w1"), ("a", words(20)))], limit=12)
    assert [(d.reason, d.tokens) for d in outcome.drops] == [(DropReason.TOO_LONG, 25)]


def test_split_under_loss_on_all_does_not_supervise_the_repeated_head():
    conversation = chat(("s", "w0"), ("u", "w1"), ("a", "w2"), ("u", "w3"), ("a", "w4"))
    outcome = run([conversation], limit=10, loss_on="all")
    assert supervised(outcome) == [
        [8, 5, 3, 9, 5, 4, 10, 5],
        [11, 5, 4, 12, 5],
    ]
    assert outcome.counts.lost_target_tokens == 1


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(token in rest for token in part)


@given(st.lists(st.sampled_from(list(Role)), min_size=1, max_size=12))
def test_head_and_exchanges_joined_are_the_messages(roles):
    messages = [Message(role=role, content=str(i)) for i, role in enumerate(roles)]
    head, parts = exchanges(messages)
    assert [*head, *(m for part in parts for m in part)] == messages
    for part in parts[1:]:
        prompting = [m.role for m in part]
        assert Role.USER in prompting
        assert part[0].role in (Role.USER, Role.SYSTEM)


PLENTY = " ".join(f"w{i}" for i in range(400))
MANY = encoder_of(words_tokenizer(PLENTY), template=MARKED_TEMPLATE)
SWITCHES = [
    {"loss_turns": "all"},
    {"loss_turns": "last"},
    {"loss_turns": "none"},
    {"loss_parts": ["content"]},
    {"loss_parts": ["end_of_turn"], "loss_turns": "last"},
    {"loss_on": "all"},
]


@settings(max_examples=50, deadline=None)
@given(
    shape=st.lists(
        st.tuples(
            st.integers(1, 6),
            st.integers(1, 8),
            st.sampled_from([None, True, False]),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    limit=st.integers(10, 40),
    system=st.booleans(),
    trailing=st.booleans(),
    switches=st.sampled_from(SWITCHES),
    policy=st.sampled_from(["split", "truncate", "drop"]),
)
def test_every_target_is_kept_once_or_counted_under_any_switch(
    shape, limit, system, trailing, switches, policy
):
    """Each word is used once, so a target that came twice or out of nowhere would show."""
    fresh = iter(range(400))

    def text(count):
        return " ".join(f"w{next(fresh)}" for _ in range(count))

    turns = [("s", text(2))] if system else []
    for asked, answered, loss, again in shape:
        loss = None if switches.get("loss_on") else loss
        turns += [("u", text(1))] if again else []
        turns += [("u", text(asked)), ("a", text(answered), {"loss": loss})]
    turns += [("u", text(2))] if trailing else []
    conversation = chat(*turns)
    whole = run([conversation], encoder=MANY, limit=10**6, **switches)
    outcome = run([conversation], encoder=MANY, limit=limit, policy=policy, **switches)
    counts = outcome.counts
    assert counts.conversations + counts.dropped_pieces == counts.kept + len(outcome.drops)
    assert counts.conversations == 1
    assert all(document.num_tokens <= limit for document in outcome.documents)
    if not counts.kept:
        return
    assert counts.target_tokens + counts.lost_target_tokens == whole.counts.target_tokens
    kept = [token for part in supervised(outcome) for token in part]
    own = [token for token in kept if token > 7]
    assert len(own) == len(set(own))
    assert is_subsequence(kept, supervised(whole)[0])
    if switches.get("loss_turns") == "none":
        assert kept == []
    elif policy == "split":
        assert all(document.num_target_tokens for document in outcome.documents)


def test_split_for_the_last_turn_keeps_it_with_all_the_turns_before_it_that_fit():
    conversation = chat(
        ("s", "w0"),
        *[turn for i in range(1, 6) for turn in (("u", f"w{i}"), ("a", f"w{i + 10}"))],
        ("u", "w30"),
    )
    outcome = run([conversation], limit=16, loss_turns="last")
    (document,) = outcome.documents
    assert TW.decode(document.tokens) == (
        "<sys> w0 <eot> <u> w4 <eot> <a> w14 <eot> <u> w5 <eot> <a> w15 <eot>"
    )
    assert [TW.decode(ids) for ids in supervised(outcome)] == ["w15 <eot>"]
    assert outcome.counts.left_out_exchanges == 4
    assert outcome.drops == ()
    assert outcome.counts.lost_target_tokens == 0


def test_split_without_targets_keeps_every_piece_when_the_job_wants_none():
    conversation = chat(("u", words(8)), ("a", "w9"), ("u", words(8, 10)), ("a", "w19"))
    outcome = run([conversation], limit=14, loss_turns="none")
    assert [document.piece for document in outcome.documents] == [0, 1]
    assert outcome.counts.target_tokens == outcome.counts.lost_tokens == 0
    assert run([conversation], limit=14, policy="truncate", loss_turns="none").counts.kept == 1


def test_piece_of_which_nothing_trains_is_left_out_and_counted():
    conversation = chat(
        ("u", words(8)), ("a", "w9"), ("u", words(8, 10)), ("a", "w19", {"loss": False})
    )
    outcome = run([conversation], limit=14)
    assert supervised(outcome) == [[17, 5]]
    assert outcome.counts.lost_target_tokens == 0
    assert outcome.counts.lost_tokens == 13
    assert [drop.reason for drop in outcome.drops] == [DropReason.NOTHING_SUPERVISED]
    kept = run([conversation], limit=14, loss_turns="none")
    assert [document.num_tokens for document in kept.documents] == [13, 13]


def test_last_exchange_that_does_not_fit_is_too_long():
    conversation = chat(("u", "w1"), ("a", "w2"), ("u", "w3"), ("a", words(20)))
    outcome = run([conversation], limit=12, loss_turns="last")
    assert [drop.reason for drop in outcome.drops] == [DropReason.TOO_LONG]
