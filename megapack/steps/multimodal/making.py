"""From a record of a group to a sample, by the kind of the group."""

from collections.abc import Callable, Mapping

import numpy as np

from megapack.jobs.multimodal import GroupKind, SampleGroup
from megapack.multimodal.draft import DraftedSample, ImageFiles, SampleMaking
from megapack.multimodal.editing import editing
from megapack.multimodal.text_to_image import text_to_image
from megapack.multimodal.understanding import understanding
from megapack.records.multimodal_sample import Int32
from megapack.steps.multimodal.catalogue import columns_of

Record = Mapping[str, object]
Converter = Callable[[Record, ImageFiles, np.random.Generator], DraftedSample]


_TOKEN_CHARACTERS = 64
_LEAST_CHARACTERS = 1 << 20


def most_characters(max_sample_tokens: int) -> int:
    """Characters of a text that may still be of so many tokens; no shorter one is refused."""
    return max(_LEAST_CHARACTERS, _TOKEN_CHARACTERS * max_sample_tokens)


def converter_of(
    group: SampleGroup, encode: Callable[[str], Int32], *, most_characters: int | None = None
) -> Converter:
    """What turns a record into items; it raises RejectedError for a record that is unfit."""
    making = SampleMaking(
        encode=encode,
        vae=group.vae,
        vit=group.vit,
        frames=group.frames,
        most_characters=most_characters,
    )
    image, text = columns_of(group)

    def of_conversation(
        record: Record, files: ImageFiles, generator: np.random.Generator
    ) -> DraftedSample:
        return understanding(record, files, making, generator)

    def of_columns(
        record: Record, files: ImageFiles, generator: np.random.Generator
    ) -> DraftedSample:
        del files
        convert = editing if group.kind is GroupKind.EDITING else text_to_image
        return convert(record[image], record[text], making, generator)

    return of_conversation if group.kind is GroupKind.UNDERSTANDING else of_columns
