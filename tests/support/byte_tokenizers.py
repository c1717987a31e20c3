"""Byte-level tokenizers with merges inside and across characters, and texts hard on them."""

from functools import cache

import numpy as np
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from megapack.conversation.tokenizer_files import TokenizerFiles

CONTROL = ("<|im_start|>", "<|im_end|>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<unk>")
TAG = "<think>"
NASTY = (
    *("é", "e\u0301", "a\u0323\u0307", "a\u0307\u0323", "🙂", "👩\u200d💻", "🏳️\u200d🌈"),
    *("\u202f", "\u00a0", "\u3000", "\u200d", "\ufeff", "\U0010ffff", "\ufffd"),
    *("数据打包", "한국어", "\u1100\u1161\u11a8", "กำ", "\ufb01", "İ", "ß"),
    *("\x00", "\x07", "\x1b[0m", "\r\n", "\n\n", "\n", "\t", " " * 40, "\n" * 17),
    *("don't", "I'LL", "3.14159", "...?!", "assistant", "x" * 30),
    *("<|im_", "_end|>", "<", "|>", "<think>"),
)
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def nasty_texts(*, with_control=True, max_size=12):
    """Texts of hard pieces and any characters, with control tokens between."""
    pieces = st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    if with_control:
        pieces |= st.sampled_from(CONTROL)
    return st.lists(pieces, max_size=max_size).map("".join)


@cache
def trained_tokenizer(*, vocabulary=700):
    """A byte-level BPE with a pattern like that of today's models, trained on the hard pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in CONTROL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [a + b for a in NASTY for b in NASTY]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(TAG, special=False, normalized=True)])
    return tokenizer


def changed(tokenizer, **parts):
    """A copy of a tokenizer with other components."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    for name, part in parts.items():
        setattr(copy, name, part)
    return copy


def files_of(tokenizer, *, template=None, **special_tokens):
    """The files of a tokenizer, in memory."""
    text = tokenizer.to_str()
    return TokenizerFiles(
        uri="memory",
        tokenizer=text.encode(),
        special_tokens=special_tokens,
        chat_templates={} if template is None else {"default": template},
        digest=f"{hash((text, template)) & (2**64 - 1):064x}",
    )


def same_encoding(found, want):
    """Whether two encoded batches have the same ids at the same places."""
    return all(
        np.array_equal(getattr(found, name), getattr(want, name))
        for name in ("ids", "starts", "ends", "tokens", "characters")
    )
