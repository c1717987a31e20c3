"""Nasty chats under templates of many styles, against transformers' `apply_chat_template`."""

from random import Random

import pytest

from megapack.conversation.chat_template import ChatTemplatePrompt
from megapack.conversation.config import TokenizeConfig
from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.rejection import RejectedError
from megapack.conversation.tokenized import tokenize_renders
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.records.drops import DropReason
from tests.support.nasty_chats import Traits, nasty_conversation
from tests.support.templating import CONTROLS, STYLES, bare
from tests.support.toy_tokenizers import bytes_tokenizer, save_tokenizer, with_bos

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")
MERGES = [("Ċ", "Ċ"), ("a", "b"), ("Ġ", "a"), ("o", "k")]
CHATS = 25


def chats(*, seed, **traits):
    draw = Random(seed)
    return [nasty_conversation(draw, Traits(**traits)) for _ in range(CHATS)]


@pytest.fixture(scope="module", params=["bare", "adds_bos"])
def engines(tmp_path_factory, request):
    tokenizer = bytes_tokenizer(specials=CONTROLS, merges=MERGES)
    if request.param == "adds_bos":
        tokenizer = with_bos(tokenizer, token="<s>")
    path = save_tokenizer(
        tokenizer, tmp_path_factory.mktemp("styles"), bos_token="<s>", eos_token="</s>"
    )
    encoder = HuggingFaceEncoder(read_tokenizer_files(path))
    return encoder, transformers.AutoTokenizer.from_pretrained(path)


PROMPTS = {}


def ours(conversation, encoder, template, **config):
    key = (encoder.digest, template, str(sorted(config.items())))
    if key not in PROMPTS:
        chosen = TokenizeConfig(long_documents="drop", chat_template=template, **config)
        PROMPTS[key] = ChatTemplatePrompt(encoder=encoder, config=chosen)
    return tokenize_renders([PROMPTS[key].render(conversation)], encoder=encoder)[0]


def theirs(conversation, tokenizer, template, **kwargs):
    return tokenizer.apply_chat_template(
        [message.for_template() for message in conversation.messages],
        tools=list(conversation.tools) or None,
        chat_template=template,
        return_dict=True,
        **dict(conversation.template_kwargs),
        **kwargs,
    )


def with_one_bos(ids, encoder):
    """Templates that write no BOS leave it to the tokenizer; `apply_chat_template` adds none."""
    bos = encoder.bos_ids.tolist()
    return ids if ids[: len(bos)] == bos else [*bos, *ids]


@pytest.mark.parametrize("marks", [str, bare], ids=["marked", "derived"])
@pytest.mark.parametrize("style", sorted(STYLES))
def test_ids_of_nasty_chats_equal_those_of_transformers(engines, style, marks):
    encoder, tokenizer = engines
    template = marks(STYLES[style])
    for conversation in chats(seed=1):
        try:
            made = ours(
                conversation, encoder, template, on_lossy="keep", typed_control_tokens="control"
            )
        except RejectedError as rejection:
            known = (DropReason.MASK_UNKNOWN, DropReason.TEMPLATE_ERROR)
            assert rejection.reason in known  # noqa: PT017 - refused, never guessed
            continue
        found = theirs(conversation, tokenizer, template)["input_ids"]
        assert made.tokens.tolist() == with_one_bos(found, encoder)


@pytest.mark.parametrize("style", sorted(STYLES))
def test_masks_of_nasty_chats_equal_those_of_transformers(engines, style):
    encoder, tokenizer = engines
    template = STYLES[style]
    for conversation in chats(seed=2, literals=False, loss=False):
        try:
            made = ours(conversation, encoder, template, on_lossy="keep")
        except RejectedError as rejection:
            assert rejection.reason is DropReason.TEMPLATE_ERROR  # noqa: PT017
            with pytest.raises(Exception, match="no tool turns"):
                theirs(conversation, tokenizer, template)
            continue
        found = theirs(conversation, tokenizer, template, return_assistant_tokens_mask=True)
        mask = found["assistant_masks"]
        assert made.mask.astype(int).tolist() == [0] * (made.num_tokens - len(mask)) + mask


@pytest.mark.parametrize("style", sorted(STYLES))
def test_ids_of_typed_control_tokens_equal_those_of_sanitizing(engines, style):
    encoder, tokenizer = engines
    template, compared = STYLES[style], 0
    for conversation in chats(seed=3, tools=False, reasoning=False, odd=False):
        try:
            made = ours(conversation, encoder, template)
        except RejectedError:
            continue
        found = theirs(conversation, tokenizer, template, sanitize_control_tokens=True)
        assert made.tokens.tolist() == with_one_bos(found["input_ids"], encoder)
        compared += 1
    assert compared > CHATS // 2


@pytest.mark.parametrize("style", sorted(STYLES))
def test_few_nasty_chats_are_refused(engines, style):
    """A finder that refused everything would pass the tests above."""
    encoder, _ = engines
    refused = 0
    for conversation in chats(seed=4, tools=style != "inst"):
        try:
            made = ours(conversation, encoder, bare(STYLES[style]), on_lossy="keep")
        except RejectedError:
            refused += 1
        else:
            trains = any(
                m.loss is not False for m in conversation.messages if m.role == "assistant"
            )
            assert (made.num_targets > 0) is trains
    assert refused <= 2
