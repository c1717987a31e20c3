"""Short ways to write conversations."""

from megapack.conversation.messages import Conversation, Message, Role, document_id
from megapack.records.stored_conversation import StoredConversation

ROLES = {"u": Role.USER, "a": Role.ASSISTANT, "s": Role.SYSTEM, "t": Role.TOOL}


def chat(*turns, **fields):
    """A conversation from ("u", "text") pairs; a third item holds further fields of a message."""
    messages = tuple(
        Message(role=ROLES[turn[0]], content=turn[1], **(turn[2] if len(turn) > 2 else {}))
        for turn in turns
    )
    return Conversation(messages=messages, **fields)


def stored(conversation, *, form="chat_template", line=0):
    """As the split step leaves it."""
    text = conversation.dumps()
    return StoredConversation(
        document_id=document_id(text),
        conversation=text,
        format=form,
        source="toy",
        uri="toy.jsonl",
        line=line,
    )


def call(name="find", arguments='{"a":1}'):
    """A tool call in OpenAI words."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}
