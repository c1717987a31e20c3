"""Pins: a version that a run reads is not retired under it.

A pin is an object `pins/<version>/<owner>`. A run that ends well removes its pin; the pin of a run
that was killed expires, by the store's clock, two days after it was last renewed, so that nobody
has to clean up. A store that the run may only read gets no pin: that is logged, and the run goes
on.

Retiring marks a version, looks for pins, and only then retires it; a run pins a version, looks for
the mark, and only then reads it. So one of them sees the other, whoever is first.
"""

import logging
import secrets
import time

from megapack.errors import ConfigError, StoreError
from megapack.store.location import Location, open_location

PIN_PREFIX = "pins/"
_RETIRING_PREFIX = "retiring/"
PIN_EXPIRES_S = 48 * 3600.0
RENEW_AFTER_S = 3600.0

_logger = logging.getLogger(__name__)


def pin(store: str | Location, version: int, *, owner: str) -> None:
    """Keep a version while a run uses it; again to renew.

    Args:
        store: the store.
        version: its number.
        owner: name of the run, a single path component; the same name unpins.

    Raises:
        ConfigError: the owner is no path component.
        StoreError: the store failed.
    """
    _opened(store).put(_key(version, owner), b"")


def unpin(store: str | Location, version: int, *, owner: str) -> None:
    """End a `pin`. Raises StoreError."""
    _opened(store).delete(_key(version, owner))


def pinned_versions(store: str | Location) -> set[int]:
    """Numbers of the versions with a pin that has not expired. Raises StoreError."""
    return {
        int(one.key.removeprefix(PIN_PREFIX).partition("/")[0])
        for one in _opened(store).list_keys(PIN_PREFIX)
        if one.age_s < PIN_EXPIRES_S
    }


class HeldPin:
    """A pin of this process, under a name of its own."""

    def __init__(self, store: str | Location, version: int, *, run: str) -> None:
        """Pin.

        Args:
            store: the store.
            version: number of the version.
            run: what the run is, for people who look into the store.

        Raises:
            ConfigError: the version is being retired.
            StoreError: the store failed after it took the pin.
        """
        self._location = _opened(store)
        self._version = version
        self._owner = f"{run}-{secrets.token_hex(6)}"
        self._held = self._put()
        if self._held is not None:
            self._refuse_retiring()

    def renew(self) -> None:
        """Renew when an hour has passed; to be called as the run goes on."""
        if self._held is not None and time.monotonic() - self._held > RENEW_AFTER_S:
            self._held = self._put() or self._held

    def close(self) -> None:
        """Unpin. A failure is logged: the pin expires by itself."""
        if self._held is None:
            return
        self._held = None
        try:
            unpin(self._location, self._version, owner=self._owner)
        except StoreError as error:
            _logger.warning("pin not removed version=%d error=%s", self._version, error)

    def _refuse_retiring(self) -> None:
        try:
            retiring = self._location.size(retiring_key(self._version)) is not None
        except StoreError:
            self.close()
            raise
        if retiring:
            self.close()
            raise ConfigError(
                f"{self._location.uri}: expected version {self._version} to stay, found that it "
                "is being retired. Read a newer version."
            )

    def _put(self) -> float | None:
        """When it was put, None when it could not be."""
        try:
            pin(self._location, self._version, owner=self._owner)
        except StoreError as error:
            _logger.warning("version not pinned version=%d error=%s", self._version, error)
            return None
        return time.monotonic()


def retiring_key(version: int) -> str:
    """Key of the mark of a version that is being retired."""
    return f"{_RETIRING_PREFIX}{version:08d}"


def _key(version: int, owner: str) -> str:
    if not owner or "/" in owner:
        raise ConfigError(f"pin: expected an owner without '/', found {owner!r}.")
    return f"{PIN_PREFIX}{version:08d}/{owner}"


def _opened(store: str | Location) -> Location:
    return store if isinstance(store, Location) else open_location(store)
