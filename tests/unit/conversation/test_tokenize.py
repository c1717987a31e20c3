from dataclasses import replace

import numpy as np

from megapack.conversation.config import PromptFormat, TokenizeConfig
from megapack.conversation.messages import document_id
from megapack.conversation.tokenize import ConversationTokenizer
from megapack.records.drops import DropReason
from tests.support.chats import call, chat, stored
from tests.support.tokenizing import TW, WORDS, run, supervised
from tests.support.toy_tokenizers import (
    MARKED_TEMPLATE,
    bytes_tokenizer,
    encoder_of,
    words_tokenizer,
)


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


def test_labels_after_the_shift_are_the_answer_and_its_end_mark():
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<u> {{ m.content }}{% else %}"
        " <a> {% generation %}{{ m.content }} <eot>{% endgeneration %}{% endif %}{% endfor %}"
    )
    encoder = encoder_of(words_tokenizer("hi one two"), template=template)
    (document,) = run([chat(("u", "hi"), ("a", "one two"))], encoder=encoder).documents
    assert document.tokens.tolist() == [3, 8, 4, 9, 10, 5]
    assert document.labels().tolist() == [-100, -100, 9, 10, 5, -100]
    assert document.num_target_tokens == 3


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


def test_conversation_that_renders_to_nothing_is_one_drop_and_not_a_failed_part():
    empty = chat(("u", ""), ("a", "", {"tool_calls": (call(),)}))
    for turns in ("all", "none"):
        outcome = run(
            [empty, chat(("u", "w1 "), ("a", "w2"))],
            form="identity",
            on_lossy="keep",
            loss_turns=turns,
        )
        assert [(drop.reason, drop.line) for drop in outcome.drops] == [(DropReason.EMPTY, 0)]
        assert len(outcome.documents) == 1
