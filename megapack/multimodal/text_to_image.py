"""A record of an image and its captions: one caption is drawn, and the image is predicted.

The published loader trains on a blank caption where there is none; here such a record is left out.
A list of images is a video: its frames are predicted together.
"""

import numpy as np

from megapack.multimodal.draft import DraftedSample, SampleDraft, SampleMaking
from megapack.multimodal.fields import image_data, image_list, texts
from megapack.multimodal.frames import frame_indices
from megapack.multimodal.rejected import RejectedError
from megapack.records.rejects import RejectReason


def text_to_image(
    image: object, captions: object, making: SampleMaking, generator: np.random.Generator
) -> DraftedSample:
    """The caption, which may be dropped, then the image, which is predicted.

    Args:
        image: bytes of an image file, an object with `bytes`, or a list of either: frames.
        captions: as `fields.texts` takes them.
        making: `vae` is needed; `frames` says which frames of a video are taken.
        generator: draws the caption, then the frames.

    Raises:
        RejectedError: the record cannot be used.
    """
    found = texts(captions, field="captions")
    if not found:
        raise RejectedError(
            RejectReason.NO_TEXT,
            "captions: expected at least one that is not blank, found none. Caption the image, or "
            "leave it out.",
        )
    draft = SampleDraft(making)
    draft.condition(found[int(generator.integers(len(found)))])
    if isinstance(image, list):
        _add_frames(draft, image, making, generator)
    else:
        draft.target(draft.image(image_data(image, field="image")))
    return draft.finish()


def _add_frames(
    draft: SampleDraft, frames: list[object], making: SampleMaking, generator: np.random.Generator
) -> None:
    if not frames:
        raise RejectedError(
            RejectReason.TOO_FEW_IMAGES, "image: expected at least one frame, found an empty list."
        )
    chosen = list(range(len(frames)))
    if making.frames is not None:
        chosen = frame_indices(len(frames), making.frames, generator)
    data = image_list([frames[at] for at in chosen], field="image")
    draft.target_frames([draft.image(one) for one in data], chosen)
