"""A record of images and the instructions between them: later images of a stretch are predicted.

A stretch begins at any image but the last and ends one or two images later. One over two
instructions is, with probability one half, written as one edit with both instructions. The
published loader then stops one image early when the stretch ends at the record's last image, so
that the last image is never reached by a joined edit; here the drawn end stays.
"""

from collections.abc import Sequence

import numpy as np

from megapack.multimodal.draft import DraftedSample, SampleDraft, SampleMaking
from megapack.multimodal.fields import image_list, texts
from megapack.multimodal.rejected import RejectedError, shown
from megapack.records.rejects import RejectReason

MOST_STEPS = 2
_JOINED = 0.5
_FEWEST_IMAGES = 2
_SENTENCE_ENDS = (".", "!", "?", "。")


def editing(
    images: object, instructions: object, making: SampleMaking, generator: np.random.Generator
) -> DraftedSample:
    """The first image as conditions, then instructions, as conditions, and the images they lead to.

    An image in the middle is predicted and then stands, clean, as conditions of the next step.

    Args:
        images: list of N image files.
        instructions: list of N-1; the k-th says how image k becomes image k+1, in words of which
            one is drawn. A plain text is one.
        making: `vae` and `vit` are needed.
        generator: draws the start, the end, the joining, then each instruction.

    Raises:
        RejectedError: the record cannot be used.
    """
    found = image_list(images, field="image_list")
    steps = _steps(instructions, num_images=len(found))
    start = int(generator.integers(len(found) - 1))
    end = int(generator.integers(start + 1, min(start + MOST_STEPS, len(found) - 1) + 1))
    joined = end - start > 1 and generator.random() < _JOINED
    said = [_drawn(choices, generator) for choices in steps[start:end]]
    draft = SampleDraft(making)
    draft.conditions(draft.image(found[start]))
    if joined:
        draft.condition(_as_one(said))
        draft.target(draft.image(found[end]))
        return draft.finish()
    for at, instruction in enumerate(said, start=start + 1):
        draft.condition(instruction)
        image = draft.image(found[at])
        draft.target(image)
        if at < end:
            draft.conditions(image)
    return draft.finish()


def _steps(instructions: object, *, num_images: int) -> list[list[str]]:
    if num_images < _FEWEST_IMAGES:
        raise RejectedError(
            RejectReason.TOO_FEW_IMAGES,
            f"image_list: expected at least {_FEWEST_IMAGES} images, found {num_images}.",
        )
    if instructions is None:
        raise RejectedError(
            RejectReason.MISSING_FIELD, "instruction_list: expected a list, found null."
        )
    if not isinstance(instructions, list):
        raise RejectedError(
            RejectReason.UNREADABLE_RECORD,
            f"instruction_list: expected a list, found {shown(instructions)}.",
        )
    if len(instructions) != num_images - 1:
        raise RejectedError(
            RejectReason.IMAGE_COUNT,
            f"instruction_list: expected {num_images - 1} entries, one between each two of "
            f"{num_images} images, found {len(instructions)}.",
        )
    steps = [texts(one, field=f"instruction_list[{at}]") for at, one in enumerate(instructions)]
    for at, step in enumerate(steps):
        if not step:
            raise RejectedError(
                RejectReason.NO_TEXT,
                f"instruction_list[{at}]: expected an instruction that is not blank, found none.",
            )
    return steps


def _drawn(choices: Sequence[str], generator: np.random.Generator) -> str:
    return choices[int(generator.integers(len(choices)))]


def _as_one(said: Sequence[str]) -> str:
    """Instructions as sentences of one text."""
    sentences = (text.strip() for text in said)
    return " ".join(text if text.endswith(_SENTENCE_ENDS) else f"{text}." for text in sentences)
