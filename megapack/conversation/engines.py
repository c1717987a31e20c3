"""Which engines turn texts into tokens, for one tokenizer and one choice of the job.

The engine decides speed alone: documents are the same whichever ran, so it enters no address.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from megapack.conversation.byte_places import ByteLengths
from megapack.conversation.checked_encoder import CheckedEncoder
from megapack.conversation.config import Engine
from megapack.conversation.distinct_segments import DistinctSegments
from megapack.conversation.fast_engine import FAST, fast_engine
from megapack.conversation.hugging_face import HuggingFaceEncoder, tokenizer_state
from megapack.conversation.placed_engine import PlacedEngine
from megapack.conversation.text_engine import EngineUnusableError, TextEngine
from megapack.conversation.tokenizer_files import TokenizerFiles
from megapack.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Engines:
    """The engines of one tokenizer; loading a large one takes seconds.

    Attributes:
        reference: `tokenizers` on whole texts.
        quicker: engines to try before it, in order.
        unusable: why each of the others cannot be used, by name.
        required: name of the engine that may not be given up.
    """

    reference: HuggingFaceEncoder
    quicker: tuple[TextEngine, ...]
    unusable: dict[str, str]
    required: str | None

    @classmethod
    def load(cls, files: TokenizerFiles, *, choice: Engine) -> "Engines":
        """Load them.

        Raises:
            ConfigError: `tokenizer.json` cannot be loaded, or the job asks for the fast engine and
                it cannot be used.
        """
        reference = HuggingFaceEncoder(files)
        state = tokenizer_state(files) | {"post_processor": None}
        makers: dict[str, Callable[[], TextEngine]] = {}
        if choice is not Engine.REFERENCE:
            makers[FAST] = lambda: fast_engine(state, reference=reference)
        if choice is not Engine.FAST:
            makers[DistinctSegments.name] = lambda: DistinctSegments(
                state, engine=_placed(state, reference)
            )
        quicker, unusable = [], {}
        for name, make in makers.items():
            try:
                quicker.append(make())
            except EngineUnusableError as error:
                unusable[name] = str(error)
        if choice is Engine.FAST and unusable:
            raise ConfigError(
                f"tokenize.engine = fast: expected an engine that takes the tokenizer {files.uri}; "
                f"{unusable[FAST]}. Use engine = auto or reference."
            )
        required = FAST if choice is Engine.FAST else None
        return cls(
            reference=reference, quicker=tuple(quicker), unusable=unusable, required=required
        )

    def checked(self) -> CheckedEncoder:
        """A new encoder, which checks the engines on the texts that it is given."""
        return CheckedEncoder(self.reference, engines=self.quicker, required=self.required)

    @property
    def reasons(self) -> str:
        """Why engines cannot be used, for the log."""
        return "; ".join(f"no {name} engine: {why}" for name, why in self.unusable.items())


def _placed(state: Mapping[str, Any], reference: HuggingFaceEncoder) -> TextEngine:
    """The reference, with places by lengths where that can be."""
    try:
        lengths = ByteLengths.of(state)
    except EngineUnusableError:
        return reference
    return PlacedEngine(reference.flat, name="lengths", lengths=lengths, reference=reference)
