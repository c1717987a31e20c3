"""The token-to-id map of a tokenizer, added tokens included: what makes two vocabularies equal."""

from megapack.conversation.hugging_face import HuggingFaceEncoder
from megapack.conversation.tokenizer_files import TokenizerFiles


def token_ids(files: TokenizerFiles) -> dict[str, int]:
    """Id by token.

    Raises:
        ConfigError: `tokenizer.json` cannot be loaded.
    """
    return HuggingFaceEncoder(files).vocabulary
