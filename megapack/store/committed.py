"""`Committed`: a version that stands in a store, and the references that steps return for it."""

from dataclasses import dataclass
from typing import Any

from megapack.errors import StoreError
from megapack.records.refs import (
    CheckpointRef,
    DatasetRef,
    MultimodalRef,
    PayloadRef,
    Ref,
    TableRef,
)
from megapack.store.manifest import Manifest, PartKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A version that stands in a store.

    Attributes:
        uri: the store.
        version: counted from 1.
        manifest: what it is made of.
    """

    uri: str
    version: int
    manifest: Manifest

    def table_ref(self, *, reused: bool = False) -> TableRef:
        """Reference to an intermediate table."""
        tables = (PartKind.CONVERSATIONS, PartKind.DOCUMENTS)
        parts = [part for part in self.manifest.parts if part.kind in tables]
        return TableRef(
            **self._base(reused=reused),
            num_records=sum(part.num_records for part in parts),
            num_parts=len(parts),
            num_dropped=self.manifest.drop_ledger().total,
        )

    def dataset_ref(self, *, reused: bool = False) -> DatasetRef:
        """Reference to a packed dataset."""
        count = self.manifest.count
        return DatasetRef(
            **self._base(reused=reused),
            num_rows=count("num_rows"),
            num_real_tokens=count("num_real_tokens"),
            num_target_tokens=count("num_target_tokens"),
        )

    def multimodal_ref(self, *, reused: bool = False) -> MultimodalRef:
        """Reference to packed multimodal rows."""
        count = self.manifest.count
        return MultimodalRef(
            **self._base(reused=reused),
            num_rows=count("num_rows"),
            num_samples=count("num_samples"),
            num_tokens=count("num_tokens"),
        )

    def checkpoint_ref(self, *, reused: bool = False) -> CheckpointRef:
        """Reference to a checkpoint."""
        count = self.manifest.count
        return CheckpointRef(
            **self._base(reused=reused),
            step=count("step"),
            consumed_rows=count("consumed_rows"),
        )

    def payload_ref(self, *, reused: bool = False) -> PayloadRef:
        """Reference to a teacher payload."""
        count = self.manifest.count
        return PayloadRef(
            **self._base(reused=reused),
            num_documents=count("num_documents"),
            num_positions=count("num_positions"),
        )

    def check_ref(self, ref: Ref) -> None:
        """Refuse a version whose content is not what a reference names.

        Raises:
            StoreError: the digests differ.
        """
        if ref.digest != self.manifest.digest:
            raise StoreError(
                f"{self.uri} version {self.version}: expected content {ref.digest}, found "
                f"{self.manifest.digest}. The store was replaced after the reference was made; "
                "run the step that made it again."
            )

    def _base(self, *, reused: bool) -> dict[str, Any]:
        return {
            "uri": self.uri,
            "version": self.version,
            "digest": self.manifest.digest,
            "reused": reused,
        }
