"""Which assistant turns of a conversation are supervised: the job's choice and the data's.

Both only narrow. A turn trains when the job's `loss_turns` takes it and the data does not switch it
off; a switch that is on says no more than no switch. The last turn is the conversation's last
assistant message, chosen before any cut and whether or not its own switch is on: an earlier one
never takes its place.
"""

from megapack.conversation.config import LossOn, LossTurns, TokenizeConfig
from megapack.conversation.messages import Conversation, Role
from megapack.conversation.rejection import RejectedError
from megapack.records.drops import DropReason


def switched(conversation: Conversation, *, config: TokenizeConfig) -> Conversation:
    """The conversation with every turn switched off that does not train.

    Args:
        conversation: checked messages, whole: the last turn of a piece is not the last turn.
        config: the job's choice.

    Raises:
        RejectedError: MASK_UNKNOWN, when the job supervises everything and the data does not.
    """
    messages = conversation.messages
    if config.loss_on is LossOn.ALL:
        off = [index for index, message in enumerate(messages) if message.loss is False]
        if off:
            raise RejectedError(
                DropReason.MASK_UNKNOWN,
                f"loss_on = all supervises every token, but the loss of message {off[0]} is "
                "switched off in the data. Use loss_on = assistant, or take the switch out.",
            )
        return conversation
    if config.loss_turns is LossTurns.ALL:
        return conversation
    answers = [i for i, message in enumerate(messages) if message.role is Role.ASSISTANT]
    kept = answers[-1:] if config.loss_turns is LossTurns.LAST else []
    off = sorted(set(answers) - set(kept))
    return conversation.with_messages(
        tuple(m._replace(loss=False) if i in off else m for i, m in enumerate(messages))
    )


def trained_turns(conversation: Conversation) -> list[int]:
    """Indexes of the assistant messages that train."""
    return [
        index
        for index, message in enumerate(conversation.messages)
        if message.role is Role.ASSISTANT and message.loss is not False
    ]
