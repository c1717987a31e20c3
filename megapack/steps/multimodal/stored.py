"""`open_multimodal`: packed rows of text and images of one committed version, ready to assemble.

Opening reads the manifest and nothing else. A row is read by itself and its images are decoded by
the code that decoded them when it was packed, so it assembles to the row that the stream gave.
"""

from dataclasses import replace

from pydantic import ValidationError

from megapack.errors import StoreError
from megapack.multimodal.assemble import assemble
from megapack.multimodal.config import WritingRules
from megapack.multimodal.pixels import with_pixels
from megapack.packing.row_limits import RowLimits
from megapack.records.multimodal_row import MultimodalRow
from megapack.records.multimodal_sample import LaidSample
from megapack.records.refs import MultimodalRef
from megapack.store.committed import Committed
from megapack.store.dataset_address import read_named
from megapack.store.multimodal_reader import MultimodalReader
from megapack.store.order import RowOrder
from megapack.store.part_reader import Verify


class StoredRows:
    """Packed rows of one version. May be pickled and forked.

    Attributes:
        ref: the version.
        rules: how samples are written.
        limits: budgets of a row.
        vocab_size: ids lie in [0, vocab_size).
        tokenizer_digest: digest of the tokenizer's files.
    """

    def __init__(self, version: Committed, *, verify: Verify = Verify.SIZE) -> None:
        """Name a version; no row is read.

        Raises:
            ConfigError: it holds no multimodal rows.
            StoreError: its rules are not those of this version of megapack.
        """
        info = version.manifest.multimodal_info()
        try:
            self.rules = WritingRules.model_validate(info.rules)
            self.limits = RowLimits.model_validate(info.limits)
        except ValidationError as error:
            raise StoreError(
                f"{version.uri} version {version.version}: expected rules and limits that this "
                f"version of megapack knows, found others: {error}. Pack the data again."
            ) from error
        self.reader = MultimodalReader(version, verify=verify)
        self.ref: MultimodalRef = version.multimodal_ref()
        self.vocab_size = info.vocab_size
        self.tokenizer_digest = info.tokenizer_digest

    @property
    def num_rows(self) -> int:
        """Rows of all epochs."""
        return self.reader.num_rows

    def laid(self, number: int) -> tuple[LaidSample, ...]:
        """Samples of a row with their pixels, in order.

        Raises:
            ConfigError: there is no such row.
            StoreError: the part is missing, or the store failed.
            DataError: the part or an image is damaged.
        """
        return tuple(
            replace(one, sample=with_pixels(one.sample)) for one in self.reader.row(number).laid
        )

    def row(self, number: int) -> MultimodalRow:
        """A row as models take it. Raises as `laid` does."""
        return assemble(self.laid(number), self.rules)

    def order(self, *, seed: int) -> RowOrder:
        """The endless seeded order: parts shuffled, rows shuffled inside them.

        Raises:
            ConfigError: there are no rows.
        """
        return RowOrder(
            group_sizes=tuple(part.num_records for part in self.reader.parts), seed=seed
        )

    def close(self) -> None:
        """Close the files."""
        self.reader.close()


def open_multimodal(uri: str, version: int | None = None) -> StoredRows:
    """Open packed rows of text and images.

    Args:
        uri: dataset folder or `s3://` prefix, or the store of a job that made one dataset.
        version: number, the newest one when None.

    Raises:
        ConfigError: there is no such version, or it holds other rows.
        StoreError: the store failed.
    """
    return StoredRows(read_named(uri, version))
