"""Chat templates in the styles that models come with, and short ways to run them.

Each is text of our own that behaves like its kind, with `{% generation %}` around answers;
`bare(template)` is the same without.
"""

import re
from functools import cache

import pytest

from megapack.conversation.chat_template import ChatTemplatePrompt
from megapack.conversation.config import TokenizeConfig
from megapack.conversation.rejection import RejectedError
from megapack.conversation.switches import switched
from megapack.conversation.tokenized import tokenize_renders
from tests.support.toy_tokenizers import bytes_tokenizer, encoder_of

CHATML = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}
    {%- generation %}{{- m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}{{- m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

HEADERS = """{{- bos_token }}
{%- macro head(role) %}<|start_header_id|>{{ role }}<|end_header_id|>

{% endmacro %}
{%- for m in messages %}
    {{- head('ipython' if m.role == 'tool' else m.role) }}
    {%- if m.role == 'assistant' %}
        {%- generation %}{{- m.content | trim + '<|eot_id|>' }}{% endgeneration %}
    {%- else %}{{- m.content | trim + '<|eot_id|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}"""

INST = """{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% set ns.system = ns.system + m.content + '\\n\\n' %}
    {%- elif m.role == 'user' %}
        {{- '[INST] ' + ns.system + m.content + '[/INST]' }}{% set ns.system = '' %}
    {%- elif m.role == 'assistant' %}
        {%- generation %}{{- ' ' + m.content + '</s>' }}{% endgeneration %}
    {%- else %}{{- raise_exception('no tool turns') }}{% endif %}
{%- endfor %}"""

THINKER = """{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{% endif %}
    {%- for tool in tools or [] %}{{- '\\n' + tool | tojson }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(query=messages | length - 1, open=true) %}
{%- for m in messages[::-1] %}
    {%- if ns.open and m.role == 'user' %}
        {%- set ns.open = false %}{% set ns.query = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}
        {%- set thought = m.reasoning_content if m.reasoning_content is string else '' %}
        {%- set words = m.content %}
        {%- if not thought and '</think>' in words %}
            {%- set thought = words.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set words = words.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
            {%- if loop.index0 > ns.query and (loop.last or thought) %}
                {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
                {%- set words = words.lstrip('\\n') %}
            {%- endif %}
            {{- words }}
            {%- for call in m.tool_calls or [] %}
                {%- if words or not loop.first %}{{- '\\n' }}{% endif %}
                {%- set call = call.function or call %}
                {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
                {%- if call.arguments is string %}{{- call.arguments }}
                {%- else %}{{- call.arguments | tojson }}{% endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

CALLER = """{{- bos_token }}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}
    {%- elif m.role == 'system' %}{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}
    {%- elif m.role == 'tool' %}
        {%- set before = messages[loop.index0 - 1] %}
        {%- if not before.tool_calls and before.role != 'tool' %}
            {{- raise_exception('a result without a call') }}
        {%- endif %}
        {{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
    {%- else %}
        {%- generation %}
            {%- if m.reasoning_content %}{{- '[THINK]' + m.reasoning_content + '[/THINK]' }}
            {%- endif %}
            {{- m.content }}
            {%- for call in m.tool_calls or [] %}
                {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}
                {{- call.function.arguments if call.function.arguments is string else
                    call.function.arguments | tojson }}
            {%- endfor %}
            {{- '</s>' }}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}"""

STYLES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "inst": INST,
    "thinker": THINKER,
    "caller": CALLER,
}
CONTROLS = (
    *("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[ARGS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[THINK]", "[/THINK]"),
)
_MARKS = re.compile(r"\{%-? (?:end)?generation -?%\}")


def bare(template):
    """The template without its marks."""
    return _MARKS.sub("", template.replace("{%- generation %}", "{#--#}"))


def tokenized(conversation, *, encoder, template=None, piece=0, **config):
    """Tokens and mask of a conversation, its switches applied as the tokenize step does."""
    settings = TokenizeConfig(long_documents="drop", chat_template=template, **config)
    chosen = switched(conversation, config=settings)
    render = _prompt(encoder, settings.model_dump_json()).render(chosen, piece=piece)
    return tokenize_renders([render], encoder=encoder)[0]


@cache
def _prompt(encoder, settings):
    """Compiling a template takes longer than most renders."""
    return ChatTemplatePrompt(encoder=encoder, config=TokenizeConfig.model_validate_json(settings))


@cache
def byte_encoder():
    """An engine of bytes with the control tokens of all styles."""
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    return encoder_of(bytes_tokenizer(specials=CONTROLS), special_tokens=named)


def rejected(conversation, **kwargs):
    """Why a conversation is rejected."""
    with pytest.raises(RejectedError) as caught:
        tokenized(conversation, **kwargs)
    return caught.value


def learnt(conversation, *, encoder, **kwargs):
    """Supervised runs as texts."""
    found = tokenized(conversation, encoder=encoder, **kwargs)
    runs, previous = [], False
    for token, supervised in zip(found.tokens.tolist(), found.mask.tolist(), strict=True):
        if supervised and not previous:
            runs.append([])
        if supervised:
            runs[-1].append(token)
        previous = supervised
    return [encoder.decode(run) for run in runs]
