"""Whether the parts that a version is to name stand in the store, and will stay."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from megapack.errors import StoreError
from megapack.store.location import Location
from megapack.store.manifest import Part
from megapack.store.writer import REFRESH_AFTER_S

_CHECK_THREADS = 8


def check_parts(location: Location, parts: tuple[Part, ...]) -> None:
    """Check that every part stands in the store with its size.

    Raises:
        StoreError: one does not.
    """
    unique = {part.key: part for part in parts}
    for part, size in zip(unique.values(), _ask(location.size, unique), strict=True):
        _refuse_other(location, part, size)


def secure_parts(location: Location, parts: tuple[Part, ...], *, kept: frozenset[str]) -> None:
    """Check parts, and make young what garbage collection might take before they are committed.

    Args:
        location: the store.
        parts: to check.
        kept: keys that the newest version names, which no collection takes.

    Raises:
        StoreError: one does not stand there, or has another size.
    """
    unique = {part.key: part for part in parts}
    for part, one in zip(unique.values(), _ask(location.stat, unique), strict=True):
        _refuse_other(location, part, None if one is None else one.size)
        if one is not None and one.age_s > REFRESH_AFTER_S and part.key not in kept:
            location.touch(part.key)


def _ask[Answer](question: Callable[[str], Answer], keys: Iterable[str]) -> list[Answer]:
    """Answers for all keys, several at a time."""
    with ThreadPoolExecutor(max_workers=_CHECK_THREADS) as pool:
        return list(pool.map(question, keys))


def _refuse_other(location: Location, part: Part, size: int | None) -> None:
    if size != part.size:
        found = "nothing" if size is None else f"{size} bytes"
        raise StoreError(
            f"{location.uri}/{part.key}: expected a part of {part.size} bytes, found {found}. "
            "Run the step that writes it again."
        )
