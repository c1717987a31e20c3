"""What tells that the data of a group has changed, without reading it again."""

import hashlib

from megapack.jobs.multimodal import GroupKind, SampleGroup
from megapack.records.digest import canonical_json
from megapack.steps.multimodal.block_reader import images_folder
from megapack.steps.multimodal.catalogue import Catalogue
from megapack.store.source_files import source_file
from megapack.store.source_listing import find_files


def identity_of(group: SampleGroup, catalogue: Catalogue) -> list[list[object]]:
    """JSON that is the same as long as files and, for conversations, images are.

    A file is known by its size and time of change, or by its ETag. Where it stands does not count.

    Raises:
        StoreError: the store failed.
    """
    files: list[list[object]] = [
        [
            one.source.name,
            one.file.name,
            one.file.stored.size,
            one.file.stored.fingerprint,
            one.blocks.num_records,
        ]
        for one in catalogue.files
    ]
    if group.kind is not GroupKind.UNDERSTANDING:
        return files
    folders = sorted({(one.source.name, images_folder(one)) for one in catalogue.files})
    return files + [[source, _folder_digest(uri)] for source, uri in folders]


def _folder_digest(uri: str) -> str:
    """SHA-256 over names, sizes and fingerprints of all files of a folder, hex."""
    listing, digest = find_files(uri), hashlib.sha256()
    for name, info in listing.files.items():
        file = source_file(listing.filesystem, listing.uri_of(name), info)
        entry = [listing.relative(name), file.size, file.fingerprint]
        digest.update(canonical_json(entry))
    return digest.hexdigest()
