"""Toy tokenizers of which every id can be counted by hand."""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.tokenizer_files import TokenizerFiles

SPECIALS = {
    "<pad>": 0,
    "</s>": 2,
    "<u>": 3,
    "<a>": 4,
    "<eot>": 5,
    "<sys>": 6,
    "<tool>": 7,
}
PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ {'system': '<sys>', 'user': '<u>', 'assistant': '<a>', "
    "'tool': '<tool>'}[m.role] + ' ' + m.content + ' <eot> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a> ' }}{% endif %}"
)
MARKED_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}<a> {% generation %}{{ m.content + ' <eot>' }}"
    "{% endgeneration %} {% else %}"
    "{{ {'system': '<sys>', 'user': '<u>', 'tool': '<tool>'}[m.role] + ' ' + m.content "
    "+ ' <eot> ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a> ' }}{% endif %}"
)


def word_ids(words):
    """Vocabulary: `<unk>` 1, the specials of `SPECIALS`, then the words from 8 on."""
    numbered = dict(SPECIALS, **{"<unk>": 1})
    for word in words:
        numbered.setdefault(word, len(numbered))
    return numbered


def words_tokenizer(text, *, specials=tuple(SPECIALS)):
    """TW: one id a white-space word."""
    tokenizer = Tokenizer(models.WordLevel(word_ids(text.split()), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def marked_words_tokenizer(text, *, specials=tuple(SPECIALS)):
    """TM: a word mark at the very start of a text; two newlines are one id."""
    words = [f"▁{w}" for w in text.split()] + text.split() + ["\n\n", "\n"]
    tokenizer = Tokenizer(models.WordLevel(word_ids(words), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n\n|\n"), behavior="isolated"),
            pre_tokenizers.Metaspace(prepend_scheme="first"),
        ]
    )
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def bytes_tokenizer(*, specials=tuple(SPECIALS), merges=()):
    """TB: one id a byte; its post-processor trims offsets, as saved byte-level tokenizers do."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = word_ids([*alphabet, *(a + b for a, b in merges)])
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens([*specials, "<unk>"])
    return tokenizer


def with_bos(tokenizer, *, token="</s>"):
    """The same tokenizer with a post-processor that puts a token in front of every text."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, tokenizer.token_to_id(token))]
    )
    return tokenizer


def lower_case(tokenizer):
    """The same tokenizer behind a normalizer."""
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def encoder_of(tokenizer, *, template=None, special_tokens=None):
    """An engine on a toy tokenizer."""
    return HuggingFaceEncoder(
        TokenizerFiles(
            uri="memory",
            tokenizer=tokenizer.to_str().encode(),
            special_tokens=special_tokens or {},
            chat_templates={} if template is None else {"default": template},
            digest=f"{hash((tokenizer.to_str(), template)) & (2**64 - 1):064x}",
        )
    )


def save_tokenizer(tokenizer, folder, *, template=None, side_templates=None, **special_tokens):
    """Write a tokenizer folder that megapack and transformers both read."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    for name, text in (side_templates or {}).items():
        side = folder / "additional_chat_templates"
        side.mkdir(exist_ok=True)
        (side / f"{name}.jinja").write_text(text, encoding="utf-8")
    return str(folder)
