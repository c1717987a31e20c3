"""An encoder that uses a quicker engine as long as it equals the reference on the job's own texts.

Of the ASCII texts and of the others each, the first four are encoded by both engines, then the
16th, 64th, 256th and so on. An engine that differs in one id or place is given up for good, and the
next one is tried. Results that it gave before, unchecked, are then in doubt: `in_doubt` says so,
and who holds them must make them again. Typed control tokens always go to the reference. The
checks take about as long as the quick engine takes for 500 texts.
"""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from megapack.conversation.control import ControlTokens
from megapack.conversation.encoder import Encoded, EncodedBatch
from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.text_engine import TextEngine
from megapack.errors import ConfigError
from megapack.layout.runs import Int32

_logger = logging.getLogger(__name__)
_FIRST = 4


class CheckedEncoder:
    """An `Encoder` that gives the reference's tokens, by the first engine that does."""

    def __init__(
        self,
        reference: HuggingFaceEncoder,
        *,
        engines: Sequence[TextEngine],
        required: str | None = None,
    ) -> None:
        """Begin with the first engine.

        Args:
            reference: what the others are compared with, and the last resort.
            engines: to be tried in order.
            required: name of the one engine that may not be given up.
        """
        self._reference = reference
        self._engines = list(engines)
        self._required = required
        self.restart()

    @property
    def engine(self) -> str:
        """Name of the engine in use."""
        return self._current.name

    @property
    def in_doubt(self) -> bool:
        """Whether results were given unchecked by an engine that later differed."""
        return self._in_doubt

    def restart(self) -> None:
        """Begin to count texts anew, with the engine in use; nothing given before counts."""
        self._seen = {True: 0, False: 0}
        self._unchecked = 0
        self._in_doubt = False

    @property
    def _current(self) -> TextEngine:
        return self._engines[0] if self._engines else self._reference

    def encode(self, texts: Sequence[str]) -> EncodedBatch:
        """Encode texts.

        Raises:
            ConfigError: the required engine differs from the reference.
        """
        if not self._engines:
            return self._reference.encode(texts)
        found = self._current.encode(texts)
        chosen = [at for at, text in enumerate(texts) if self._is_due(text)]
        expected = self._reference.encode([texts[at] for at in chosen])
        for at, want in zip(chosen, expected, strict=True):
            difference = _difference(found[at], want)
            if difference is not None:
                self._give_up(f"text {at} of a batch of {len(texts)}: {difference}")
                return self.encode(texts)
        self._unchecked += len(texts) - len(chosen)
        return found

    def _is_due(self, text: str) -> bool:
        """Count a text; True when it is to be checked."""
        kind = text.isascii()
        number = self._seen[kind]
        self._seen[kind] = number + 1
        # Powers of four have one bit set, in an even place.
        power = number.bit_count() == 1 and number.bit_length() % 2 == 1
        return number < _FIRST or power

    def _give_up(self, why: str) -> None:
        name, unchecked = self._engines.pop(0).name, self._unchecked
        if name == self._required:
            raise ConfigError(
                f"tokenize.engine = {name}: expected the tokens of `tokenizers`, found others in "
                f"{why}. Use engine = auto or reference."
            )
        _logger.warning("tokenize engine=%s given up: %s; now %s", name, why, self.engine)
        self.restart()
        self._in_doubt = unchecked > 0

    @property
    def digest(self) -> str:
        """SHA-256 over the tokenizer's files."""
        return self._reference.digest

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""
        return self._reference.vocabulary_size

    @property
    def bos_ids(self) -> Int32:
        """int32 [0 or more]: what the tokenizer's post-processor puts in front."""
        return self._reference.bos_ids

    @property
    def control(self) -> ControlTokens:
        """Added tokens marked special."""
        return self._reference.control

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Named special tokens."""
        return self._reference.special_tokens

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Jinja texts by name."""
        return self._reference.chat_templates

    def token_id(self, token: str) -> int | None:
        """Id of a token's text, None when there is none."""
        return self._reference.token_id(token)

    def encode_protected(self, texts: Sequence[str]) -> EncodedBatch:
        """Encode texts of `ControlTokens.protect`, by the reference."""
        return self._reference.encode_protected(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""
        return self._reference.decode(ids)


def _difference(found: Encoded, want: Encoded) -> str | None:
    """Where two encodings of a text first differ; None when they are equal."""
    columns = (
        np.stack((one.ids, one.starts, one.ends), axis=1, dtype=np.int64) for one in (found, want)
    )
    ours, theirs = columns
    size = min(len(ours), len(theirs))
    differ = np.flatnonzero((ours[:size] != theirs[:size]).any(axis=1))
    if not differ.size and len(ours) == len(theirs):
        return None
    at = int(differ[0]) if differ.size else size
    return f"token {at} is {_shown(ours, at)}, not {_shown(theirs, at)}"


def _shown(columns: np.ndarray, at: int) -> str:
    if at >= len(columns):
        return "missing"
    index, start, end = columns[at].tolist()
    return f"{index} at characters {start} to {end}"
