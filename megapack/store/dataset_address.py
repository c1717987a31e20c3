"""From what a person types to a dataset: its own address, or the store that holds it.

Costs one listing of versions, and one of the store's datasets when there are none.
"""

from megapack.errors import ConfigError
from megapack.store.committed import Committed
from megapack.store.location import open_location
from megapack.store.only_one import only_one
from megapack.store.versions import read_version

EXPORT_MARKER = "export.json"
"""File that an export ends with; no dataset of ours has it."""


def read_named(uri: str, version: int | None = None) -> Committed:
    """The version that a person names, the newest one by default.

    Args:
        uri: the address of a dataset, or of the store that holds only this one.
        version: its number.

    Raises:
        ConfigError: there is none; an export is called what it is.
        StoreError: the store failed.
    """
    try:
        return read_version(dataset_address(uri), version)
    except ConfigError as error:
        if open_location(uri).size(EXPORT_MARKER) is None:
            raise
        raise ConfigError(
            f"{uri}: expected a dataset, found an export ({EXPORT_MARKER}). Check it with megapack "
            "audit, or name the dataset that it was made from."
        ) from error


def dataset_address(uri: str) -> str:
    """The address itself when versions stand there, else that of the store's only dataset.

    Raises:
        ConfigError: the store holds several datasets.
        StoreError: the store failed.
    """
    return only_one(uri, "datasets", "dataset")
