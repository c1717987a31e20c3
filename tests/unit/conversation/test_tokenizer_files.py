"""Which files of a tokenizer folder count, and which templates they hold."""

from pathlib import Path

import pytest

from megapack.conversation.chat_template import ChatTemplatePrompt
from megapack.conversation.config import TokenizeConfig
from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.tokenizer_files import read_tokenizer_files
from megapack.errors import ConfigError
from tests.support.chats import chat
from tests.support.toy_tokenizers import save_tokenizer, words_tokenizer

MARKED = "{{% for m in messages %}}{{% generation %}}{0}{{% endgeneration %}}{{% endfor %}}"


def folder(tmp_path, *, configured=None, default=None, **named):
    """A folder with templates in its configuration, in the main file and in side files."""
    special = {} if configured is None else {"chat_template": configured}
    return save_tokenizer(
        words_tokenizer("hi one two"),
        tmp_path / "t",
        template=default,
        side_templates=named,
        **special,
    )


LIST = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]


@pytest.mark.parametrize(
    ("files", "templates"),
    [
        ({}, {}),
        ({"configured": "A"}, {"default": "A"}),
        ({"configured": LIST}, {"default": "A", "tool_use": "B"}),
        ({"configured": LIST, "default": "C"}, {"default": "C"}),
        ({"default": "C", "tool_use": "D"}, {"default": "C", "tool_use": "D"}),
        ({"configured": LIST, "rag": "E"}, {"rag": "E"}),
    ],
)
def test_files_win_over_the_configuration_as_a_whole(tmp_path, files, templates):
    path = folder(tmp_path, **files)
    assert dict(read_tokenizer_files(path).chat_templates) == templates


def test_side_templates_change_the_digest_and_broken_ones_are_named(tmp_path):
    path = folder(tmp_path, default="C", tool_use="D")
    before = read_tokenizer_files(path).digest
    side = Path(path, "additional_chat_templates", "tool_use.jinja")
    side.write_text("E")
    assert read_tokenizer_files(path).digest != before
    side.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"expected UTF-8 in .*chat_templates/tool_use.jinja"):
        read_tokenizer_files(path)


def test_conversation_with_tools_takes_the_template_for_tools(tmp_path):
    path = folder(tmp_path, default=MARKED.format("one"), tool_use=MARKED.format("two"))
    encoder = HuggingFaceEncoder(read_tokenizer_files(path))
    prompt = ChatTemplatePrompt(encoder=encoder, config=TokenizeConfig(long_documents="drop"))
    turns = (("u", "hi"), ("a", "hi"))
    assert prompt.render(chat(*turns)).text == "oneone"
    assert prompt.render(chat(*turns, tools=({"name": "f"},))).text == "twotwo"
