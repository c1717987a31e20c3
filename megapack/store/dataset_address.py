"""From what a person types to a dataset: its own address, or the store that holds it.

Costs one listing of versions, and one of the store's datasets when there are none.
"""

from megapack.errors import ConfigError
from megapack.store.location import open_location
from megapack.store.versions import latest_version

_DATASETS = "datasets/"


def dataset_address(uri: str) -> str:
    """The address itself when versions stand there, else that of the store's only dataset.

    Raises:
        ConfigError: the store holds several datasets.
        StoreError: the store failed.
    """
    location = open_location(uri)
    if latest_version(location):
        return uri
    keys = (found.key for found in location.list_keys(_DATASETS))
    names = sorted({key.removeprefix(_DATASETS).split("/")[0] for key in keys})
    if len(names) > 1:
        raise ConfigError(
            f"{uri}: expected one dataset, found {len(names)} under {_DATASETS}. Name one: "
            + ", ".join(f"{uri.rstrip('/')}/{_DATASETS}{name}" for name in names)
        )
    return f"{uri.rstrip('/')}/{_DATASETS}{names[0]}" if names else uri
