"""What is supervised follows from places alone: not from ids, not from what people typed."""

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.chats import chat
from tests.support.nasty_chats import CONTROL, Traits, conversations
from tests.support.templating import CONTROLS, STYLES, bare
from tests.support.tokenizing import run
from tests.support.toy_tokenizers import SPECIALS, bytes_tokenizer, encoder_of

NEMOTRON = ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>")
EVERY = (*NEMOTRON, *SPECIALS, *CONTROLS)
FORMS = ("nemotron-h-aligned", "nemotron-nano-v2", "identity")
TEMPLATES = {name: STYLES[name].replace("bos_token", "'<s>'") for name in sorted(STYLES)}
SETTINGS = [{"form": form} for form in FORMS] + [
    {"form": "chat_template", "chat_template": marks(template)}
    for template in TEMPLATES.values()
    for marks in (str, bare)
]
SWITCHES = [{}, {"loss_turns": "last"}, {"loss_parts": ["content", "tool_calls"]}]
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@cache
def engine(order, names):
    """An engine; the ids of its control tokens and their names differ, the texts do not."""
    specials = EVERY if order > 0 else tuple(reversed(EVERY))
    return encoder_of(bytes_tokenizer(specials=specials), special_tokens=dict(names))


def documents(conversation, *, encoder, **config):
    outcome = run([conversation], encoder=encoder, on_lossy="keep", **config)
    runs = [document.target_runs.tolist() for document in outcome.documents]
    texts = [encoder.decode(document.tokens) for document in outcome.documents]
    return texts, runs, [drop.reason for drop in outcome.drops]


@FEW
@given(
    conversation=conversations(),
    config=st.sampled_from(SETTINGS),
    switches=st.sampled_from(SWITCHES),
    same=st.sampled_from(["<pad>", "<unk>", "<u>"]),
)
def test_masks_do_not_depend_on_ids_or_on_which_token_pads_ends_or_is_unknown(
    conversation, config, switches, same
):
    apart = (("pad_token", "<pad>"), ("unk_token", "<unk>"), ("eos_token", "<eot>"))
    one = tuple((name, same) for name, _ in apart)
    found = [
        documents(conversation, encoder=engine(order, names), **config, **switches)
        for order, names in ((1, apart), (1, one), (-1, one))
    ]
    assert found[0] == found[1] == found[2]


@FEW
@given(
    conversation=conversations(Traits(literals=False)),
    config=st.sampled_from(SETTINGS),
    switches=st.sampled_from(SWITCHES),
    literal=st.sampled_from([*(text for text in CONTROL if text in EVERY), *CONTROLS]),
)
def test_masks_do_not_depend_on_control_tokens_that_people_typed(
    conversation, config, switches, literal
):
    """A literal counts like as many letters: no boundary follows from it, whoever says it."""
    encoder = engine(1, ())

    def typed(text):
        return conversation.with_messages(
            tuple(
                message._replace(content=f"a{text}{message.content}{text}b")
                for message in conversation.messages
            )
        )

    one, other = (
        documents(typed(text), encoder=encoder, **config, **switches)
        for text in (literal, "x" * len(literal))
    )
    assert one[1:] == other[1:]
    assert [text.count(literal) for text in one[0]] >= [2 for _ in one[0]]


@pytest.mark.parametrize("config", SETTINGS[:5], ids=lambda config: config["form"])
@pytest.mark.parametrize("pad", [None, "<pad>", "<eot>", "<|im_end|>", "<SPECIAL_12>"])
def test_end_of_an_answer_is_supervised_whatever_pads(config, pad):
    names = {} if pad is None else {"pad_token": pad, "eos_token": pad}
    encoder = engine(1, tuple(names.items()))
    (document,) = run([chat(("u", "x"), ("a", "y"))], encoder=encoder, **config).documents
    start, end = document.target_runs.tolist()[-2:]
    assert start < end
    assert end >= document.num_tokens - 1  # white space behind an end token is no target
