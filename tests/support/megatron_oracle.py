"""What Megatron-core's own SFT tokenizer makes of raw records, read here by other code than ours.

Nothing of `megapack` is imported: what is compared with this must not share a line with it.
"""

import json
from pathlib import Path

_SHAREGPT = {"human": "user", "gpt": "assistant"}


def raw_chats(path):
    """Chats of a file as Megatron's data set reads them: a new one begins at a system message."""
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    records = json.loads(text) if path.suffix == ".json" else map(json.loads, text.splitlines())
    chats = []
    for record in records:
        turns = record.get("messages") or [
            {"role": _SHAREGPT[turn["from"]], "content": turn["value"]}
            for turn in record["conversations"]
        ]
        if path.suffix != ".packed":
            chats.append(turns)
            continue
        for turn in turns:
            if turn["role"] == "system" or not chats:
                chats.append([])
            chats[-1].append(turn)
    return chats


def megatron_tokens(tokenizer, chat, *, ignore_index):
    """Ids and mask of a chat, None where Megatron fails on it."""
    try:
        ids, targets = tokenizer.tokenize_conversation(
            [{"role": turn["role"], "content": turn["content"]} for turn in chat],
            return_target=True,
            add_generation_prompt=False,
        )
    except Exception:  # noqa: BLE001 - asserts, type errors of its templates, ValueError
        return None
    return ids.tolist(), (targets != ignore_index).tolist()
