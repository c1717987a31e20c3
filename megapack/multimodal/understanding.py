"""A record of a conversation about images or a video: the assistant's texts are predicted.

Each mark takes the next image, so marks and images must agree in number: the published loader lets
images vanish, or shifts them, where they do not. A video is a list of frames or a folder of them;
its mark may stand in any turn (published: the first), and its chosen frames are images like others.
Roles besides user and assistant are not skipped: what the system says is read, others are refused.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import numpy as np

from megapack.errors import DataError
from megapack.multimodal.conversation_turns import Mark, Role, Turn, read_turns
from megapack.multimodal.draft import DraftedSample, ImageFiles, SampleDraft, SampleMaking
from megapack.multimodal.frames import frame_indices
from megapack.multimodal.rejected import RejectedError, shown
from megapack.records.rejects import RejectReason

_IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


def understanding(
    record: Mapping[str, object],
    files: ImageFiles,
    making: SampleMaking,
    generator: np.random.Generator,
) -> DraftedSample:
    """The turns in order: texts, images where their marks stand, answers predicted.

    Args:
        record: with turns, see `conversation_turns`; `image` or `images`, a path or a list of
            paths; `video`, a list of paths or a folder.
        files: where the paths lead.
        making: `vit` is needed; `frames` says which frames of a video are taken.
        generator: draws the frames.

    Raises:
        RejectedError: the record cannot be used.
    """
    paths = _image_paths(record)
    video = record.get("video")
    marks = frozenset({Mark.IMAGE} if video is None else Mark)
    turns = read_turns(record, marks)
    if not turns:
        raise RejectedError(
            RejectReason.NOTHING_SUPERVISED, "expected turns with an answer, found an empty list."
        )
    _check_marks(turns, num_images=len(paths), num_videos=int(video is not None))
    frames = [] if video is None else _frames(video, files, making, generator)
    draft = _written(turns, paths, frames, making=making, files=files)
    if not draft.is_supervised:
        raise RejectedError(
            RejectReason.NOTHING_SUPERVISED,
            "expected a text of the assistant, found none that is not blank.",
        )
    return draft.finish()


def _written(
    turns: Sequence[Turn],
    paths: Sequence[str],
    frames: Sequence[str],
    *,
    making: SampleMaking,
    files: ImageFiles,
) -> SampleDraft:
    draft, waiting = SampleDraft(making), iter(paths)
    for turn in turns:
        for piece in turn.pieces:
            if isinstance(piece, Mark):
                for path in [next(waiting)] if piece is Mark.IMAGE else frames:
                    draft.vit(draft.image(_content(path, files)))
            elif turn.role is Role.ASSISTANT:
                draft.answer(piece)
            else:
                draft.text(piece)
    return draft


def _content(path: str, files: ImageFiles) -> bytes:
    try:
        return files.read(path)
    except DataError as error:
        raise RejectedError(RejectReason.MISSING_IMAGE, str(error)) from error


def _image_paths(record: Mapping[str, object]) -> list[str]:
    field = "image" if record.get("image") is not None else "images"
    value = record.get(field)
    if value is None:
        return []
    return _paths(value if isinstance(value, list) else [value], field=field)


def _paths(values: Sequence[object], *, field: str) -> list[str]:
    paths = []
    for at, value in enumerate(values):
        if not isinstance(value, str):
            raise RejectedError(
                RejectReason.UNREADABLE_RECORD,
                f"{field}[{at}]: expected a path, found {shown(value)}.",
            )
        paths.append(value)
    return paths


def _check_marks(turns: Sequence[Turn], *, num_images: int, num_videos: int) -> None:
    """As many marks as there are images and videos, none of them in what is predicted."""
    advice = (
        f"`video` needs one {Mark.VIDEO} mark, where its frames stand."
        if num_videos
        else "Correct the marks or the paths."
    )
    for mark, count in ((Mark.IMAGE, num_images), (Mark.VIDEO, num_videos)):
        asked = _count(turns, Role.PROMPT, mark)
        said = _count(turns, Role.ASSISTANT, mark)
        if asked != count or said:
            raise RejectedError(
                RejectReason.IMAGE_COUNT,
                f"expected {count} marks {mark} in the user's turns, one for each, and none in the "
                f"assistant's, found {asked} and {said}. {advice}",
            )


def _count(turns: Sequence[Turn], role: Role, mark: Mark) -> int:
    return sum(turn.pieces.count(mark) for turn in turns if turn.role is role)


def _frames(
    video: object, files: ImageFiles, making: SampleMaking, generator: np.random.Generator
) -> list[str]:
    if isinstance(video, str):
        paths = _folder(video, files)
    elif isinstance(video, list):
        paths = _paths(video, field="video")
    else:
        raise RejectedError(
            RejectReason.UNREADABLE_RECORD,
            f"video: expected a folder of frames or a list of paths, found {shown(video)}.",
        )
    if not paths:
        raise RejectedError(
            RejectReason.TOO_FEW_IMAGES, "video: expected at least one frame, found none."
        )
    if making.frames is None:
        return paths
    return [paths[at] for at in frame_indices(len(paths), making.frames, generator)]


def _folder(folder: str, files: ImageFiles) -> list[str]:
    """Frames of a folder by the numbers in their names; other files are no frames."""
    try:
        names = files.names(folder)
    except DataError as error:
        raise RejectedError(
            RejectReason.MISSING_IMAGE,
            f"video: {error} A video is a folder of its frames, not a film: extract them.",
        ) from error
    images = [name for name in names if PurePosixPath(name).suffix.lower() in _IMAGE_SUFFIXES]
    return [f"{folder.rstrip('/')}/{name}" for name in sorted(images, key=_by_numbers)]


def _by_numbers(name: str) -> tuple[list[int], str]:
    """Numbers of a name without its suffix, then the name, so that frame 10 follows frame 9.

    >>> sorted(["f_10.jpg", "f_9.jpg"], key=_by_numbers)
    ['f_9.jpg', 'f_10.jpg']
    """
    stem = PurePosixPath(name).stem
    return [int(digits) for digits in re.findall(r"[0-9]{1,18}", stem)], name
