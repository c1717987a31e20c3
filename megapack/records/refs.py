"""References: what steps and tasks return instead of data.

A reference names a committed version in a store and carries the counts a person wants to see. It
is a frozen pydantic model, so that Prefect can pass it and a job file can hold it.
"""

from pydantic import BaseModel, ConfigDict


class Ref(BaseModel):
    """A committed version of something in a store.

    Attributes:
        uri: folder or prefix that holds `parts/` and `versions/`.
        version: version number, counted from 1.
        digest: digest of the version's content (not of when or where it was made).
        reused: True when the version was there already and nothing was computed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str
    version: int
    digest: str
    reused: bool = False


class TableRef(Ref):
    """An intermediate table: conversations or documents.

    Attributes:
        num_records: records in it.
        num_parts: parts it is stored in; a part is the unit of the next step's fan-out.
        num_dropped: records left out on the way, each with a reason in the manifest.
        origin: file that a table of conversations stands for now; the table itself names the file
            in which the same content was first seen.
    """

    num_records: int
    num_parts: int
    num_dropped: int = 0
    origin: str = ""


class DatasetRef(Ref):
    """A packed dataset.

    Attributes:
        num_rows: rows of all splits.
        num_real_tokens: real positions.
        num_target_tokens: positions whose label counts.
    """

    num_rows: int
    num_real_tokens: int
    num_target_tokens: int


class MultimodalRef(Ref):
    """Packed multimodal rows.

    Attributes:
        num_rows: rows of all epochs.
        num_samples: samples in them.
        num_tokens: positions written, those of text and of images.
    """

    num_rows: int
    num_samples: int
    num_tokens: int


class CheckpointRef(Ref):
    """A training checkpoint.

    Attributes:
        step: optimizer updates done.
        consumed_rows: rows of the training split consumed, over all epochs.
    """

    step: int
    consumed_rows: int


class PayloadRef(Ref):
    """A teacher payload.

    Attributes:
        num_documents: documents with a payload.
        num_positions: positions of all documents.
    """

    num_documents: int
    num_positions: int


class FolderRef(BaseModel):
    """A folder of model weights that was not made here: known by its content, without a version.

    Attributes:
        uri: the folder.
        digest: of its configuration and weight files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str
    digest: str
