"""Chats of real text for benchmarks: the standard library's sources, cut into turns."""

import sysconfig
import unicodedata
from itertools import cycle
from pathlib import Path

import numpy as np

_ASIAN = (
    "数据打包之前请先检查每个文档的长度。標準ライブラリの説明です。토큰의 경계를 확인하십시오。"
)
_EMOJI = " 🙂👩‍💻 naïve café — “quoted” …"
_SYSTEMS = (
    "You are a careful programmer. Answer with code and say what it costs.",
    "Explain what the code does before changing it.\nNever leave out error handling.",
)
_ASIAN_SHARE, _EMOJI_SHARE = 0.1, 0.1


def chats(count: int, *, seed: int = 0) -> list[list[dict[str, str]]]:
    """Chats of 2 to 8 turns, 1.5 to 4 kB each, all text different, a tenth of it not English.

    Args:
        count: how many.
        seed: of lengths and kinds.

    Returns:
        OpenAI messages. Texts neither begin nor end in white space, and hold no control token, so
        that every template and tool under comparison can express them.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    text = cycle(_paragraphs())
    made = []
    for number in range(count):
        messages = []
        if rng.random() < 1 / 2:
            messages.append({"role": "system", "content": _SYSTEMS[number % len(_SYSTEMS)]})
        for _ in range(int(rng.integers(1, 5))):
            messages.append({"role": "user", "content": next(text)[:400].strip()})
            size = int(np.clip(rng.lognormal(np.log(700), 0.7), 80, 6000))
            answer = next(text)
            while len(answer) < size:
                answer += "\n\n" + next(text)
            kind = rng.random()
            if kind < _ASIAN_SHARE:
                answer = _ASIAN * (size // len(_ASIAN)) + answer[: size // 4]
            elif kind < _ASIAN_SHARE + _EMOJI_SHARE:
                answer = answer[:size] + _EMOJI
            messages.append({"role": "assistant", "content": answer[:size].strip()})
        made.append(messages)
    return made


def _paragraphs() -> list[str]:
    """Pieces of the standard library between blank lines, in order of file name."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("*/*.py")):
        if "site-packages" in path.parts:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        # Words that some formats take for switches or control tokens.
        clean = (
            text.replace("<|", "< |").replace("/think", "/ think").replace("<SPECIAL", "SPECIAL")
        )
        parts = (unicodedata.normalize("NFC", part).strip() for part in clean.split("\n\n"))
        found += [part for part in parts if len(part) >= 20]
    return found
