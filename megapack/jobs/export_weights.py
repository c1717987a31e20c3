"""The weights export job: a checkpoint to a Hugging Face folder."""

from pydantic import Field

from megapack.jobs.base import Job
from megapack.jobs.model import ModelJob
from megapack.records.refs import CheckpointRef


class ExportWeightsJob(Job):
    """What the export worker reads.

    Attributes:
        checkpoint: committed checkpoint.
        model: its shape; vocab_size is known.
        config: content of the config.json to write.
        output: local folder to make; nothing may stand there.
        file_bytes: a file of weights is closed before it grows beyond this.
    """

    checkpoint: CheckpointRef
    model: ModelJob
    config: dict[str, object]
    output: str = Field(min_length=1)
    file_bytes: int = Field(default=4 << 30, ge=1)
