from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megapack.conversation.config import PromptFormat, TokenizeConfig
from megapack.conversation.messages import Message, Role, document_id
from megapack.conversation.tokenize import ConversationTokenizer
from megapack.conversation.too_long import exchanges
from megapack.errors import DataError
from megapack.layout.runs import mask_of_runs
from megapack.records.drops import DropReason
from tests.support.chats import call, chat, stored
from tests.support.toy_tokenizers import (
    MARKED_TEMPLATE,
    PLAIN_TEMPLATE,
    bytes_tokenizer,
    encoder_of,
    words_tokenizer,
)

WORDS = " ".join(f"w{i}" for i in range(40))
TW = encoder_of(words_tokenizer(WORDS), template=MARKED_TEMPLATE)


def run(conversations, *, encoder=TW, limit=1000, policy="split", form="chat_template", **config):
    tokenizer = ConversationTokenizer(
        encoder=encoder, config=TokenizeConfig(long_documents=policy, **config), limit=limit
    )
    items = [stored(c, form=form, line=i) for i, c in enumerate(conversations)]
    return tokenizer.tokenize(items)


def words(count, start=0):
    return " ".join(f"w{start + i}" for i in range(count))


def supervised(outcome):
    return [
        document.tokens[mask_of_runs(document.target_runs, document.num_tokens)].tolist()
        for document in outcome.documents
    ]


def test_document_holds_tokens_runs_and_provenance():
    conversation = chat(("u", "w0"), ("a", "w1 w2"))
    outcome = run([chat(("u", "w5"), ("a", "w5")), conversation])
    document = outcome.documents[1]
    assert document.tokens.tolist() == [3, 8, 5, 4, 9, 10, 5]
    assert document.target_runs.tolist() == [4, 7]
    assert document.labels().tolist() == [-100, -100, -100, 9, 10, 5, -100]
    assert (document.source, document.uri, document.line, document.piece) == (
        "toy",
        "toy.jsonl",
        1,
        0,
    )
    assert document.document_id == document_id(conversation.dumps())
    assert outcome.formats == ("chat_template", "chat_template")


def test_each_conversation_is_tokenized_with_its_own_format():
    encoder = encoder_of(bytes_tokenizer(specials=("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>")))
    tokenizer = ConversationTokenizer(
        encoder=encoder, config=TokenizeConfig(long_documents="drop"), limit=1000
    )
    conversation = chat(("u", "hi"), ("a", "one"))
    forms = ["nemotron-h-aligned", "nemotron-nano-v2", "identity"]
    outcome = tokenizer.tokenize([stored(conversation, form=form) for form in forms])
    assert outcome.formats == tuple(forms)
    assert [encoder.decode(d.tokens)[-6:] for d in outcome.documents] == [
        "t\none\n",
        "L_12>\n",
        "hione",
    ]


def test_conversation_without_a_target_is_dropped_with_its_reason():
    outcome = run([chat(("u", "w0")), chat(("u", "w0"), ("a", "w1", {"loss": False}))])
    assert [drop.reason for drop in outcome.drops] == [DropReason.NOTHING_SUPERVISED] * 2
    assert [drop.line for drop in outcome.drops] == [0, 1]
    assert outcome.counts.conversations == 2
    assert outcome.counts.kept == 0


def test_switched_off_turn_contradicts_loss_on_all():
    conversation = chat(("u", "w0"), ("a", "w1", {"loss": False}))
    (drop,) = run([conversation], loss_on="all").drops
    assert drop.reason is DropReason.MASK_UNKNOWN
    assert "the loss of message 1 is switched off" in drop.detail


def test_rejected_conversation_does_not_stop_the_batch():
    encoder = encoder_of(
        words_tokenizer(WORDS),
        template="{% if messages[0].content == 'w9' %}{{ raise_exception('no') }}{% endif %}"
        + MARKED_TEMPLATE,
    )
    outcome = run([chat(("u", "w9"), ("a", "w1")), chat(("u", "w0"), ("a", "w1"))], encoder=encoder)
    assert [drop.reason for drop in outcome.drops] == [DropReason.TEMPLATE_ERROR]
    assert len(outcome.documents) == 1


def test_pad_equal_to_end_token_leaves_the_end_token_supervised():
    encoder = encoder_of(
        words_tokenizer(WORDS),
        template=MARKED_TEMPLATE,
        special_tokens={"pad_token": "<eot>", "eos_token": "<eot>"},
    )
    outcome = run([chat(("u", "w0"), ("a", "w1"))], encoder=encoder)
    assert supervised(outcome) == [[9, 5]]


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
    with pytest.raises(DataError, match=r"toy.jsonl line 0 .*at most 6 tokens, found 7"):
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


def test_exchange_that_fits_nowhere_is_lost_and_counted():
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
    assert outcome.counts.lost_exchanges == 1
    assert outcome.counts.lost_target_tokens == 21
    assert outcome.counts.kept == 1


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


TURNS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 8), st.booleans()), min_size=1, max_size=7
)


@settings(max_examples=60, deadline=None)
@given(TURNS, st.integers(10, 30), st.booleans(), st.sampled_from(["split", "truncate", "drop"]))
def test_every_supervised_token_is_kept_once_or_counted_as_lost(shape, limit, system, policy):
    turns = [("s", "w39")] if system else []
    for number, (asked, answered, again) in enumerate(shape):
        turns += [("u", words(asked)), ("a", words(answered, number))]
        turns += [("u", "w38")] if again else []
    conversation = chat(*turns)
    outcome = run([conversation], limit=limit, policy=policy)
    whole = run([conversation], limit=10**6)
    total = whole.counts.target_tokens
    counts = outcome.counts
    assert counts.conversations == counts.kept + len(outcome.drops) == 1
    assert all(d.num_tokens <= limit and d.num_target_tokens for d in outcome.documents)
    if counts.kept:
        assert counts.target_tokens + counts.lost_target_tokens == total
        kept = [token for part in supervised(outcome) for token in part]
        assert is_subsequence(kept, supervised(whole)[0])


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


def test_count_tokens_is_the_length_of_the_document():
    conversation = chat(("u", "w0"), ("a", "w1 w2"))
    tokenizer = ConversationTokenizer(
        encoder=TW, config=TokenizeConfig(long_documents="drop"), limit=3
    )
    counted = tokenizer.count_tokens(conversation, form=PromptFormat.CHAT_TEMPLATE)
    assert counted == run([conversation]).documents[0].num_tokens == 7


def test_batches_do_not_change_the_documents():
    conversations = [
        chat(("u", f"w{i} <eot>" if i % 3 else "w0"), ("a", f"w{i}")) for i in range(9)
    ]
    together = run(conversations)
    alone = [run([one]).documents[0] for one in conversations]
    for one, other in zip(together.documents, alone, strict=True):
        assert one.document_id == other.document_id
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.target_runs, other.target_runs)
    assert together.counts.typed_control_documents == 6


def test_deep_nesting_costs_its_conversation_alone():
    depth = 100_000
    deep = '{"a":' * depth + "1" + "}" * depth
    plain = stored(chat(("u", "w0"), ("a", "w1"), tools=({"a": 1},)))
    nested = replace(plain, conversation=plain.conversation.replace('{"a":1}', deep))
    tokenizer = ConversationTokenizer(
        encoder=TW, config=TokenizeConfig(long_documents="split"), limit=100
    )
    outcome = tokenizer.tokenize([nested, replace(plain, line=1)])
    assert [d.line for d in outcome.documents] == [1]
    assert outcome.counts.conversations == 2
    assert [drop.reason for drop in outcome.drops] == [DropReason.UNREADABLE]
    assert "nested too deeply" in outcome.drops[0].detail
