"""A folder that passes for a remote store and counts the files that are fetched from it."""

import time
from pathlib import Path

from megapack.store.location import open_location


class Fetches:
    """Everything of a local folder, with a `get_file` that takes a while and is counted."""

    def __init__(self, folder: Path) -> None:
        self._folder = open_location(folder)
        self.keys: list[str] = []

    def __getattr__(self, name: str):
        return getattr(self._folder, name)

    def get_file(self, key: str, path: Path) -> None:
        self.keys.append(key)
        time.sleep(0.05)
        self._folder.get_file(key, path)
