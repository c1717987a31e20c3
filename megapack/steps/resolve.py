"""From an address a person types to a reference."""

from megapack.records.refs import DatasetRef
from megapack.store.dataset_address import read_named


def resolve_dataset(uri: str, *, version: int | None = None) -> DatasetRef:
    """Reference to a dataset version, the newest one by default.

    Raises:
        ConfigError: there is no such version, or it is no packed dataset.
        StoreError: the store failed.
    """
    found = read_named(uri, version)
    found.manifest.packed_info()
    return found.dataset_ref()
