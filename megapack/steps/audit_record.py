"""That a version was found sound, so that a rerun with nothing to do reads no data again.

A record stands under the version's digest and the rules of the audit. It speaks of what was read
then: a rerun checks that every part still stands with its size, `megapack audit` reads all again.
"""

from megapack.errors import StoreError
from megapack.records.refs import Ref
from megapack.steps.tables import committed, is_whole
from megapack.store.location import open_location

AUDIT_SEMANTICS = 1


def record_sound(ref: Ref) -> None:
    """Record that an audit found no violation. Raises StoreError."""
    open_location(ref.uri).put(_key(ref), b"")


def found_sound(ref: Ref) -> bool:
    """Whether an audit found this version sound and all of its parts stand.

    Raises:
        ConfigError: there is no such version.
        StoreError: the store failed.
    """
    location = open_location(ref.uri)
    try:
        recorded = location.size(_key(ref)) is not None
    except StoreError:
        return False
    return recorded and is_whole(location, committed(ref))


def _key(ref: Ref) -> str:
    return f"audits/{AUDIT_SEMANTICS}/{ref.digest}"
