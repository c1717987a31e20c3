"""The Megatron formats token for token on nasty chats and real files, against Megatron-core."""

import json
from pathlib import Path
from random import Random

import pytest

from megapack.conversation.config import PromptFormat, TokenizeConfig
from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.parse import parse_conversation
from megapack.conversation.prompt import make_prompt, resolve_pad_id
from megapack.conversation.rejection import RejectedError
from megapack.conversation.shapes import read_shape
from megapack.conversation.split import Merged, split_conversations
from megapack.conversation.tokenized import tokenize_renders
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.records.drops import DropReason
from tests.support.megatron_oracle import megatron_tokens, raw_chats
from tests.support.nasty_chats import Traits, nasty_openai
from tests.support.toy_tokenizers import SPECIALS, bytes_tokenizer, save_tokenizer

sft_tokenizer = pytest.importorskip("megatron.core.tokenizers.text.libraries.sft_tokenizer")
pytestmark = pytest.mark.filterwarnings("default")
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
NEMOTRON = ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<SPECIAL_233>", *SPECIALS)
FORMS = [form for form in PromptFormat if form is not PromptFormat.CHAT_TEMPLATE]
PAD = {"nemotron-h-aligned": "<SPECIAL_233>", "nemotron-nano-v2": "<unk>", "identity": "<unk>"}


@pytest.fixture(scope="module")
def nemotron(tmp_path_factory):
    merges = [("Ċ", "Ċ"), ("a", "b"), ("Ġ", "a")]
    tokenizer = bytes_tokenizer(specials=NEMOTRON, merges=merges)
    tokenizer.add_tokens(["Assistant"])  # Megatron's mask counts on a header of three tokens
    folder = tmp_path_factory.mktemp("nemotron")
    path = save_tokenizer(tokenizer, folder, unk_token="<unk>", eos_token="</s>")
    encoder = HuggingFaceEncoder(read_tokenizer_files(path))
    return encoder, {form: sft_tokenizer.SFTTokenizer(path, form.value) for form in FORMS}


def ours(conversation, encoder, form, **config):
    settings = TokenizeConfig(
        format=form, long_documents="drop", typed_control_tokens="control", **config
    )
    render = make_prompt(form, encoder=encoder, config=settings).render(conversation)
    return tokenize_renders([render], encoder=encoder)[0]


def compare(conversation, turns, *, nemotron, form):
    """Whether both made something of a chat; what they made must be equal."""
    encoder, oracles = nemotron
    loss_on = "all" if form is PromptFormat.IDENTITY else "assistant"
    try:
        made = ours(conversation, encoder, form, on_lossy="keep", loss_on=loss_on)
    except RejectedError as rejection:
        assert rejection.reason is DropReason.BAD_ROLE_ORDER  # noqa: PT017
        return False
    found = megatron_tokens(oracles[form], turns, ignore_index=sft_tokenizer.IGNORE_INDEX)
    if found is None:
        return False
    ids, mask = found
    assert made.tokens.tolist() == ids
    assert made.mask.tolist()[1:] == mask[1:]
    return True


@pytest.mark.parametrize("form", FORMS)
def test_nasty_chats_equal_megatrons_own(nemotron, form):
    draw, compared = Random(7), 0
    for _ in range(60):
        record = nasty_openai(draw, Traits(tools=False, reasoning=False, loss=False))
        turns = [
            {"role": "system" if m["role"] == "developer" else m["role"],
             "content": m["content"] or ""}
            for m in record["messages"]
        ]  # fmt: skip
        conversation = parse_conversation(read_shape(record))
        compared += compare(conversation, turns, nemotron=nemotron, form=form)
    assert compared >= 40


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
@pytest.mark.parametrize(
    ("name", "chats", "least"),
    [
        ("fastchat_dummy_conversation.json", 500, 500),
        ("fastchat_merged.jsonl.packed", 500, 500),
        ("tau_airline.messages.jsonl", 200, 5),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_real_files_equal_megatrons_own(nemotron, form, name, chats, least):
    path = SHARED / name
    text = path.read_text(encoding="utf-8")
    records = json.loads(text) if path.suffix == ".json" else map(json.loads, text.splitlines())
    merged = Merged.AT_SYSTEM_MESSAGES if path.suffix == ".packed" else Merged.NO
    parts = [p for r in records for p in split_conversations(read_shape(r), merged=merged)]
    raw = raw_chats(path)
    assert len(parts) == len(raw) == chats
    pairs = list(zip(parts, raw, strict=True))
    if name.startswith("tau"):  # Megatron fails on null content and renders each turn anew
        whole = [pair for pair in pairs if all(turn["content"] is not None for turn in pair[1])]
        pairs = whole[:5]
    compared = sum(
        compare(parse_conversation(part), turns, nemotron=nemotron, form=form)
        for part, turns in pairs
    )
    assert compared >= least


@pytest.mark.parametrize("form", FORMS)
def test_pad_token_is_megatrons_and_an_override_must_exist(nemotron, form):
    encoder, oracles = nemotron
    settings = TokenizeConfig(format=form, long_documents="drop")
    assert resolve_pad_id(form, encoder=encoder, config=settings) == oracles[form].pad_id
    assert oracles[form].pad_id == encoder.token_id(PAD[form.value])
    chosen = settings.model_copy(update={"pad_token": "</s>"})
    assert resolve_pad_id(form, encoder=encoder, config=chosen) == SPECIALS["</s>"]


@pytest.mark.parametrize("form", FORMS)
def test_what_a_format_cannot_express_is_refused_where_megatron_fails_or_loses_it(nemotron, form):
    encoder, oracles = nemotron
    turns = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"},
        {"role": "tool", "content": "result"},
        {"role": "assistant", "content": "z"},
    ]
    found = megatron_tokens(oracles[form], turns, ignore_index=sft_tokenizer.IGNORE_INDEX)
    text = encoder.decode(found[0])
    conversation = parse_conversation(read_shape({"messages": turns}))
    if form is PromptFormat.IDENTITY:
        assert "result" in text
        return
    assert "result" not in text
    with pytest.raises(RejectedError, match="would lose the tool result of message 2"):
        ours(conversation, encoder, form)
