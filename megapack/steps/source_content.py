"""What a source file holds, told by the digest of its bytes, without reading it every night.

A file is read once for its digest. The digest is kept in the store under the file's uri and
fingerprint (ETag, or size and time), so that it is read again only when that hint changes; whether
the content is another one, the digest alone decides.
"""

import json

from megapack.errors import StoreError
from megapack.records.digest import digest_of
from megapack.store.location import Location, MissingKeyError
from megapack.store.source_files import SourceFile, current_fingerprint, file_digest

HINT_PREFIX = "steps/files/"


def content_of(file: SourceFile, *, store: Location) -> str:
    """SHA-256 of a file's bytes, hex.

    Args:
        file: as it was listed.
        store: the job's store, where digests are kept.

    Raises:
        StoreError: the store failed, or the file changed after it was listed.
    """
    key = HINT_PREFIX + digest_of([file.uri, file.fingerprint])
    try:
        known = json.loads(store.get(key))
        if known["uri"] == file.uri:
            return str(known["sha256"])
    except (MissingKeyError, ValueError, TypeError, KeyError):
        pass  # nothing is known of it yet
    digest = file_digest(file.uri)
    check_unchanged(file)
    store.put(key, json.dumps({"uri": file.uri, "sha256": digest}).encode())
    return digest


def check_unchanged(file: SourceFile) -> None:
    """Refuse a file that is no longer what was listed.

    Raises:
        StoreError: it changed or is gone.
    """
    now = current_fingerprint(file.uri)
    if now != file.fingerprint:
        raise StoreError(
            f"source file {file.uri}: expected fingerprint {file.fingerprint}, as it was listed, "
            f"found {now or 'no file'}: the file changed while it was read, and nothing was kept. "
            "Run again when it is complete."
        )
