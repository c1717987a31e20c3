"""The tokenize step on toy words, in one call."""

from megapack.conversation.config import TokenizeConfig
from megapack.conversation.tokenize import ConversationTokenizer
from megapack.layout.runs import mask_of_runs
from tests.support.chats import stored
from tests.support.toy_tokenizers import MARKED_TEMPLATE, encoder_of, words_tokenizer

WORDS = " ".join(f"w{i}" for i in range(40))
TW = encoder_of(words_tokenizer(WORDS), template=MARKED_TEMPLATE)


def run(conversations, *, encoder=TW, limit=1000, policy="split", form="chat_template", **config):
    """Outcome of conversations."""
    tokenizer = ConversationTokenizer(
        encoder=encoder, config=TokenizeConfig(long_documents=policy, **config), limit=limit
    )
    items = [stored(c, form=form, line=i) for i, c in enumerate(conversations)]
    return tokenizer.tokenize(items)


def words(count, start=0):
    """Text of consecutive toy words."""
    return " ".join(f"w{start + i}" for i in range(count))


def supervised(outcome):
    """Supervised ids of each document."""
    return [
        document.tokens[mask_of_runs(document.target_runs, document.num_tokens)].tolist()
        for document in outcome.documents
    ]
