"""Chats of real text: the standard library's sources, cut into turns."""

import unicodedata
from itertools import cycle

import numpy as np

from benchmarks.inputs import library_texts

Chat = list[dict[str, str]]
_ASIAN = (
    "数据打包之前请先检查每个文档的长度。標準ライブラリの説明です。토큰의 경계를 확인하십시오。"
)
_EMOJI = " 🙂👩‍💻 naïve café — “quoted” …"
_SYSTEMS = (
    "You are a careful programmer. Answer with code and say what it costs.",
    "Explain what the code does before changing it.\nNever leave out error handling.",
)
_ASIAN_SHARE, _EMOJI_SHARE = 0.1, 0.1


def chats(count: int, *, seed: int = 0) -> list[Chat]:
    """Chats of 2 to 9 turns and about 3 kB; nearly all text is different.

    Args:
        count: how many.
        seed: of lengths and kinds.

    Returns:
        OpenAI messages. A tenth of the answers is Chinese, Japanese and Korean, another tenth ends
        in emoji. Texts neither begin nor end in white space and hold no control token and no
        switch of a format, so that every tool under comparison can express them.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    text = cycle(_paragraphs())
    made = []
    for number in range(count):
        messages = []
        if rng.random() < 1 / 2:
            messages.append({"role": "system", "content": _SYSTEMS[number % len(_SYSTEMS)]})
        for _ in range(int(rng.integers(1, 5))):
            size = int(np.clip(rng.lognormal(np.log(700), 0.7), 80, 6000))
            messages.append({"role": "user", "content": next(text)[:400].strip()})
            answer = next(text)
            while len(answer) < size:
                answer += "\n\n" + next(text)
            kind = rng.random()
            if kind < _ASIAN_SHARE:
                answer = _ASIAN * (size // len(_ASIAN)) + answer[: size // 4]
            elif kind < _ASIAN_SHARE + _EMOJI_SHARE:
                answer = answer[:size].strip() + _EMOJI
            messages.append({"role": "assistant", "content": answer[: 2 * size].strip()})
        made.append(messages)
    return made


def _paragraphs() -> list[str]:
    """Pieces of the standard library between blank lines."""
    found = []
    for text in library_texts():
        clean = (
            text.replace("<|", "< |")
            .replace("/think", "/ think")
            .replace("<SPECIAL", "SPECIAL")
            .replace("<s>", "< s>")
            .replace("</s>", "< /s>")
            .replace("<unk", "< unk")
        )
        parts = (unicodedata.normalize("NFC", part).strip() for part in clean.split("\n\n"))
        found += [part for part in parts if len(part) >= 20]
    return found
