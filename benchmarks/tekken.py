"""A large byte-level tokenizer, converted once from the data of the package mistral-common.

131,072 tokens, of which 1,000 are special: `<unk> <s> </s> [INST] ... <SPECIAL_10> ...`, so the
Megatron formats can be used with it. Merges are made anew from the ranks, which gives the ids of
the original. Kept in `.local/bench/tekken`; making it takes about 5 CPU seconds.
"""

import base64
import json
from importlib import resources
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from benchmarks.runner import ROOT

_FILE = "tekken_240911.json"
_NAMED = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]")
_MORE_NAMED = ("[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]")

# `<SPECIAL_14>` opens a turn and `<SPECIAL_12>` ends it.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<SPECIAL_14>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<SPECIAL_12>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<SPECIAL_12>' }}{% endif %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<SPECIAL_14>assistant\\n' }}{% endif %}"
)
_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "<SPECIAL_12>",
    "unk_token": "<unk>",
    "pad_token": "<SPECIAL_233>",
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def tekken_folder() -> Path:
    """A folder that `transformers` and megapack load: the tokenizer and a chat template.

    Raises:
        ImportError: mistral-common is not installed.
    """
    folder = ROOT / ".local" / "bench" / "tekken"
    if not (folder / "tokenizer_config.json").exists():
        source = resources.files("mistral_common").joinpath("data", _FILE)
        tokenizer = convert(json.loads(source.read_text(encoding="utf-8")))
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        config = json.dumps(_CONFIG, indent=1)
        (folder / "tokenizer_config.json").write_text(config, encoding="utf-8")
    return folder


def convert(tekken: dict[str, Any]) -> Tokenizer:
    """The same tokenizer in the form of the `tokenizers` library.

    Args:
        tekken: the content of a tekken file: pattern, ranks of byte strings, sizes.
    """
    specials = tekken["config"]["default_num_special_tokens"]
    kept = tekken["vocab"][: tekken["config"]["default_vocab_size"] - specials]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in kept}
    names = [*_NAMED, *_MORE_NAMED]
    names += [f"<SPECIAL_{number}>" for number in range(len(names), specials)]
    letters = _byte_letters()

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocabulary = {name: index for index, name in enumerate(names)}
    vocabulary |= {spell(token): rank + specials for token, rank in ranks.items()}
    merges = [(spell(left), spell(right)) for left, right in _merges(ranks)]
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(tekken["config"]["pattern"]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names]
    )
    return tokenizer


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """All pairs of tokens that make a token, in the order in which a merge may happen."""
    found = []
    for token, rank in ranks.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        found += [(rank, left, right) for left, right in known]
    found.sort(key=lambda merge: merge[0])
    return [(left, right) for _, left, right in found]


def _byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each byte."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
