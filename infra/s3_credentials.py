"""The store's secrets: made once per stack, kept in a file that only its owner may read."""

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.failures import StackError
from infra.state import write_private

_KEY_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Keys of the store; never printed except by the `env` command.

    Attributes:
        access_key: S3 access key id.
        secret_key: S3 secret key.
        internal_key: signs the calls between SeaweedFS's own servers. With it, its filer and
            volume ports, which know nothing of S3 keys, refuse strangers too.
    """

    access_key: str
    secret_key: str
    internal_key: str

    def __repr__(self) -> str:
        """Keep the secrets out of logs and tracebacks."""
        return f"Credentials(access_key={self.access_key!r}, secret_key=..., internal_key=...)"


def load_or_create(path: Path) -> Credentials:
    """Read the credentials; make them at the first start.

    Args:
        path: the JSON file.

    Raises:
        StackError: the file exists but does not hold credentials.
    """
    if not path.exists():
        made = Credentials(
            access_key=f"MEGAPACK{secrets.token_hex(6).upper()}",
            secret_key=secrets.token_urlsafe(_KEY_BYTES),
            internal_key=secrets.token_urlsafe(_KEY_BYTES),
        )
        write_private(path, text=json.dumps(asdict(made), indent=2) + "\n")
        return made
    try:
        return Credentials(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise StackError(
            f"{path} must hold the store's credentials; {type(error).__name__}: {error}. "
            "Restore it, or remove it to have new credentials made (the stored data stays)."
        ) from error
