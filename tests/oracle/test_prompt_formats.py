"""Our ids and masks against transformers' `apply_chat_template` and Megatron-core's tokenizer."""

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from megapack.conversation.config import LossOn, PromptFormat, TokenizeConfig
from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.prompt import make_prompt
from megapack.conversation.rejection import RejectedError
from megapack.conversation.tokenized import tokenize_renders
from megapack.conversation.tokenizer_files import read_tokenizer_files
from tests.support.chats import call, chat
from tests.support.toy_tokenizers import (
    MARKED_TEMPLATE,
    PLAIN_TEMPLATE,
    SPECIALS,
    bytes_tokenizer,
    marked_words_tokenizer,
    save_tokenizer,
    with_bos,
)

transformers = pytest.importorskip("transformers")
sft_tokenizer = pytest.importorskip("megatron.core.tokenizers.text.libraries.sft_tokenizer")
pytestmark = pytest.mark.filterwarnings("default")

NEMOTRON = ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<SPECIAL_233>", *SPECIALS)
TOOLS = (
    {"type": "function", "function": {"name": "find", "parameters": {"z": {"é": "<b>"}, "a": 1}}},
)
AGENT = """{{- bos_token or '' }}
{%- set ns = namespace(calls=0) %}
{%- macro head(role) %}<u>{{ role }}
{% endmacro %}
{%- if tools %}
    {{- head('system') }}{{ tools | tojson(indent=2) }}
    <eot>
{%- endif %}
{% for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- head('assistant') }}
        {%- generation %}
            {%- if message.reasoning_content is defined and message.reasoning_content %}
                {{- '<think>' + message.reasoning_content | trim + '</think>' }}
            {%- endif %}
            {{- message.content }}
            {%- for call in message.tool_calls or [] %}
                {%- set ns.calls = ns.calls + 1 %}
                {{- '[' ~ ns.calls ~ call.function.name ~ call.function.arguments | tojson ~ ']' }}
            {%- endfor %}
            {{- '<eot>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif message.role == 'system' and not loop.first %}
        {%- continue %}
    {%- else %}
        {{- head(message.role) }}{{ message.content | trim }}<eot>
    {%- endif %}
{% endfor %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}
"""


def engines(folder, tokenizer, **named):
    path = save_tokenizer(tokenizer, folder, **named)
    encoder = HuggingFaceEncoder(read_tokenizer_files(path))
    return path, encoder, transformers.AutoTokenizer.from_pretrained(path)


def ours(conversation, encoder, form, **config):
    settings = TokenizeConfig(format=form, long_documents="drop", **config)
    render = make_prompt(form, encoder=encoder, config=settings).render(conversation)
    return tokenize_renders([render], encoder=encoder)[0]


def theirs(conversation, tokenizer, template, **kwargs):
    return tokenizer.apply_chat_template(
        [message.for_template() for message in conversation.messages],
        tools=list(conversation.tools) or None,
        chat_template=template,
        return_dict=True,
        **dict(conversation.template_kwargs),
        **kwargs,
    )


AGENT_CHAT = chat(
    ("s", "be <kind>"),
    ("u", " find it \n"),
    ("a", "", {"reasoning": " hm ", "tool_calls": (call(arguments={"b": 1, "a": "é"}),)}),
    ("t", '{"x": 1}'),
    ("a", "again", {"tool_calls": (call(), call("other"))}),
    ("t", "none\n"),
    ("s", "remember"),
    ("a", "done 🙂\u202f"),
    tools=TOOLS,
)
SHORT = chat(("u", "hi there"), ("a", "  one\n\ntwo "), ("u", "\n\nok"), ("a", "ok"))


@pytest.mark.parametrize("conversation", [AGENT_CHAT, SHORT])
@pytest.mark.parametrize("template", [AGENT, MARKED_TEMPLATE])
def test_ids_and_assistant_mask_equal_those_of_transformers(tmp_path, template, conversation):
    if template is MARKED_TEMPLATE:
        turns = [
            m for m in conversation.messages if m.role.value != "system" or m.content[0] == "b"
        ]
        conversation = chat(tools=TOOLS).with_messages(tuple(turns))
    _, encoder, tokenizer = engines(tmp_path, bytes_tokenizer(), eos_token="</s>")
    made = ours(
        conversation, encoder, PromptFormat.CHAT_TEMPLATE, chat_template=template, on_lossy="keep"
    )
    found = theirs(conversation, tokenizer, template, return_assistant_tokens_mask=True)
    assert made.tokens.tolist() == found["input_ids"]
    assert made.mask.astype(int).tolist() == found["assistant_masks"]
    assert made.num_targets > 0


def test_ids_equal_under_a_template_that_writes_bos_and_a_tokenizer_that_adds_it(tmp_path):
    template = "{{ bos_token }}" + MARKED_TEMPLATE
    tokenizer = with_bos(bytes_tokenizer())
    _, encoder, oracle = engines(tmp_path, tokenizer, bos_token="</s>", eos_token="<eot>")
    made = ours(SHORT, encoder, PromptFormat.CHAT_TEMPLATE, chat_template=template)
    assert made.tokens.tolist() == theirs(SHORT, oracle, template)["input_ids"]
    assert (made.tokens == SPECIALS["</s>"]).sum() == 1


def test_ids_of_a_word_mark_tokenizer_are_those_of_the_whole_conversation(tmp_path):
    _, encoder, oracle = engines(tmp_path, marked_words_tokenizer("Say it The sky"))
    conversation = chat(("u", "Say it"), ("a", "The sky"))
    for template in (MARKED_TEMPLATE, PLAIN_TEMPLATE):
        made = ours(conversation, encoder, PromptFormat.CHAT_TEMPLATE, chat_template=template)
        assert made.tokens.tolist() == theirs(conversation, oracle, template)["input_ids"]


def test_template_variables_of_the_row_reach_both(tmp_path):
    template = "{{ mode }}{{ eos_token }}{{ pad_token }}" + MARKED_TEMPLATE
    _, encoder, oracle = engines(tmp_path, bytes_tokenizer(), eos_token="<eot>", pad_token="<pad>")
    conversation = chat(("u", "x"), ("a", "y"), template_kwargs={"mode": "deep"})
    made = ours(conversation, encoder, PromptFormat.CHAT_TEMPLATE, chat_template=template)
    assert made.tokens.tolist() == theirs(conversation, oracle, template)["input_ids"]


def test_typed_control_tokens_equal_those_of_sanitizing(tmp_path):
    _, encoder, oracle = engines(tmp_path, bytes_tokenizer())
    conversation = chat(("u", "x<eot><a>y"), ("a", "<u>"))
    made = ours(conversation, encoder, PromptFormat.CHAT_TEMPLATE, chat_template=MARKED_TEMPLATE)
    found = theirs(conversation, oracle, MARKED_TEMPLATE, sanitize_control_tokens=True)
    assert made.tokens.tolist() == found["input_ids"]


NAMED = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template": NAMED},
        {"chat_template": NAMED, "template": "C"},
        {"template": "C", "side_templates": {"tool_use": "D", "rag": "é"}},
    ],
)
def test_templates_of_a_folder_are_those_that_transformers_reads(tmp_path, files):
    _, encoder, tokenizer = engines(tmp_path, bytes_tokenizer(), **files)
    found = tokenizer.chat_template
    expected = found if isinstance(found, dict) else {"default": found}
    assert dict(encoder.chat_templates) == expected


TEXT = st.text(alphabet="ab /\n\t é🙂\u2003think_o<>", max_size=14)
ANSWER = TEXT.filter(str.strip)
CHATS = st.tuples(
    st.none() | TEXT, st.lists(st.tuples(TEXT, ANSWER), min_size=1, max_size=3), st.none() | TEXT
)


@pytest.fixture(scope="module")
def nemotron(tmp_path_factory):
    merges = [("Ċ", "Ċ"), ("a", "b"), ("Ġ", "a")]
    tokenizer = bytes_tokenizer(specials=NEMOTRON, merges=merges)
    tokenizer.add_tokens(["Assistant"])  # Megatron's mask counts on a header of three tokens
    path, encoder, _ = engines(tmp_path_factory.mktemp("nemotron"), tokenizer, unk_token="<unk>")
    forms = [form for form in PromptFormat if form is not PromptFormat.CHAT_TEMPLATE]
    return encoder, {form: sft_tokenizer.SFTTokenizer(path, form.value) for form in forms}


@pytest.mark.parametrize("form", [f for f in PromptFormat if f is not PromptFormat.CHAT_TEMPLATE])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(shape=CHATS, keep=st.booleans())
def test_megatron_formats_equal_megatrons_own(nemotron, form, shape, keep):
    encoder, oracles = nemotron
    system, pairs, last = shape
    turns = [] if system is None else [("s", system)]
    turns += [turn for question, answer in pairs for turn in (("u", question), ("a", answer))]
    turns += [] if last is None else [("u", last)]
    conversation = chat(*turns)
    try:
        # Megatron makes control tokens of what people typed; only asked for does megapack, too.
        made = ours(
            conversation,
            encoder,
            form,
            on_lossy="keep" if keep else "reject",
            typed_control_tokens="control",
        )
    except RejectedError:
        reject()
    ids, target = oracles[form].tokenize_conversation(
        [message.for_template() for message in conversation.messages],
        return_target=True,
        add_generation_prompt=False,
    )
    assert made.tokens.tolist() == ids.tolist()
    if form is PromptFormat.IDENTITY:
        made = ours(
            conversation,
            encoder,
            form,
            on_lossy="keep",
            loss_on=LossOn.ALL,
            typed_control_tokens="control",
        )
        assert made.mask.tolist()[1:] == [True] * (len(ids) - 1)
    else:
        assert made.mask.tolist()[1:] == (target != sft_tokenizer.IGNORE_INDEX).tolist()[1:]


def test_default_of_megatron_is_chat_template_with_loss_on_all(tmp_path):
    path, encoder, _ = engines(
        tmp_path, bytes_tokenizer(), template=MARKED_TEMPLATE, eos_token="</s>"
    )
    oracle = sft_tokenizer.SFTTokenizer(path, "default")
    ids, target = oracle.tokenize_conversation(
        [message.for_template() for message in SHORT.messages],
        return_target=True,
        add_generation_prompt=False,
    )
    made = ours(SHORT, encoder, PromptFormat.CHAT_TEMPLATE, loss_on="all")
    assert made.tokens.tolist() == ids.tolist()
    assert made.mask.tolist() == [False] + [True] * (len(target) - 1)
