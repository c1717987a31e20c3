"""From the store of a pipeline to the only thing of a kind that it holds."""

from megapack.errors import ConfigError
from megapack.store.location import open_location
from megapack.store.versions import latest_version


def only_one(uri: str, folder: str, what: str) -> str:
    """The address itself when versions stand there, else that of the only one below a folder.

    Costs one listing of versions, and one of the folder when there are none.

    Args:
        uri: what a person typed.
        folder: inside a store, such as `datasets`.
        what: a thing in it, for the message.

    Returns:
        The address; the uri where nothing is found.

    Raises:
        ConfigError: the folder holds several.
        StoreError: the store failed.
    """
    location, prefix = open_location(uri), f"{folder.strip('/')}/"
    if latest_version(location):
        return uri
    keys = (found.key for found in location.list_keys(prefix))
    names = sorted({key.removeprefix(prefix).split("/")[0] for key in keys})
    if len(names) > 1:
        raise ConfigError(
            f"{uri}: expected one {what}, found {len(names)} under {prefix}. Name one: "
            + ", ".join(f"{uri.rstrip('/')}/{prefix}{name}" for name in names)
        )
    return f"{uri.rstrip('/')}/{prefix}{names[0]}" if names else uri
