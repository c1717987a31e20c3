"""From the arguments of a command to the dataset version that they name."""

import argparse
from collections.abc import Callable

from megapack.errors import ConfigError
from megapack.records.refs import DatasetRef, MultimodalRef
from megapack.steps.resolve import resolve_dataset
from megapack.store.dataset_address import read_named


def dataset_of(options: argparse.Namespace) -> DatasetRef:
    """The dataset version that the arguments of `add_dataset` name.

    Raises:
        ConfigError: there is none; the message holds the address as it was typed.
        StoreError: the store failed.
    """
    return _with_address(options, lambda: resolve_dataset(options.uri, version=options.version))


def multimodal_of(options: argparse.Namespace) -> MultimodalRef | None:
    """The version that the arguments name, when it holds rows of text and images; else None.

    Raises:
        ConfigError: there is no such version.
        StoreError: the store failed.
    """
    found = _with_address(options, lambda: read_named(options.uri, options.version))
    return None if found.manifest.multimodal is None else found.multimodal_ref()


def _with_address[Found](options: argparse.Namespace, find: Callable[[], Found]) -> Found:
    """Find something; a message about it holds the address as it was typed."""
    try:
        return find()
    except ConfigError as error:
        if options.uri in str(error):
            raise
        raise ConfigError(f"{options.uri}: {error}") from error
