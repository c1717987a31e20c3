"""From the arguments of a command to the dataset version that they name."""

import argparse

from megapack.errors import ConfigError
from megapack.records.refs import DatasetRef
from megapack.steps.resolve import resolve_dataset


def dataset_of(options: argparse.Namespace) -> DatasetRef:
    """The dataset version that the arguments of `add_dataset` name.

    Raises:
        ConfigError: there is none; the message holds the address as it was typed.
        StoreError: the store failed.
    """
    uri: str = options.uri
    try:
        return resolve_dataset(uri, version=options.version)
    except ConfigError as error:
        if uri in str(error):
            raise
        raise ConfigError(f"{uri}: {error}") from error
