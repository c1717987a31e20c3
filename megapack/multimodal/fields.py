"""Values of a record as texts and images, whatever form they have."""

import json
from collections.abc import Mapping, Sequence

from megapack.multimodal.rejected import RejectedError, shown
from megapack.records.rejects import RejectReason


def image_data(value: object, *, field: str) -> bytes:
    """Content of an image file: bytes, or an object with `bytes`.

    Args:
        value: what the record holds.
        field: its name, for messages.

    Raises:
        RejectedError: there is none.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if value is None:
        raise RejectedError(
            RejectReason.MISSING_IMAGE,
            f"{field}: expected the bytes of an image, found null. Write the image's file itself "
            "into the column.",
        )
    if not isinstance(value, bytes):
        raise RejectedError(
            RejectReason.UNREADABLE_RECORD,
            f"{field}: expected the bytes of an image, found {shown(value)}.",
        )
    return value


def image_list(value: object, *, field: str) -> list[bytes]:
    """Contents of several image files.

    Raises:
        RejectedError: it is no list, or one of them is no image.
    """
    if value is None:
        raise RejectedError(
            RejectReason.MISSING_FIELD, f"{field}: expected a list of images, found null."
        )
    if not isinstance(value, list):
        raise RejectedError(
            RejectReason.UNREADABLE_RECORD,
            f"{field}: expected a list of images, found {shown(value)}.",
        )
    return [image_data(one, field=f"{field}[{at}]") for at, one in enumerate(value)]


def texts(value: object, *, field: str) -> list[str]:
    """Texts that are not blank, in their order; possibly none.

    Args:
        value: a text, a list of texts, an object or map with texts as values, or any of these as
            JSON in a text. Null stands for no text.
        field: its name, for messages.

    Raises:
        RejectedError: it is something else.
    """
    if isinstance(value, str):
        value = _from_json(value, field=field)
    if isinstance(value, Mapping):
        found: Sequence[object] = list(value.values())
    elif isinstance(value, list):
        # pyarrow gives a map as a list of pairs.
        found = [one[1] if isinstance(one, tuple) else one for one in value]
    else:
        found = [value]
    for one in found:
        if not (one is None or isinstance(one, str)):
            raise RejectedError(
                RejectReason.UNREADABLE_RECORD, f"{field}: expected texts, found {shown(one)}."
            )
    return [one for one in found if isinstance(one, str) and one.strip()]


def _from_json(text: str, *, field: str) -> object:
    """The object or list that a text holds as JSON, or the text itself.

    A text that begins as an object of names or a list of texts, and is none, was cut: it is no
    caption.
    """
    start = "".join(text[:64].split())[:2]
    if start[:1] not in ("{", "["):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if start not in ('{"', '["'):
            return text
        raise RejectedError(
            RejectReason.UNREADABLE_RECORD,
            f"{field}: expected text or JSON, found JSON that cannot be read: {error}.",
        ) from error
    return value if isinstance(value, dict | list) else text
