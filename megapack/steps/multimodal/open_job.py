"""A multimodal job with its tokenizer and groups open: what all workers of all ranks agree on."""

from collections.abc import Mapping
from dataclasses import dataclass

from megapack.jobs.multimodal import MultimodalJob
from megapack.records.shard import Shard
from megapack.steps.multimodal.groups import OpenGroup, open_group
from megapack.steps.multimodal.record_order import stretch
from megapack.steps.multimodal.stream_state import job_digest
from megapack.steps.multimodal.tokenizer import MultimodalTokenizer, open_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenJob:
    """What a job reads.

    Attributes:
        tokenizer: of its texts.
        groups: by name.
        digest: of all that decides what is drawn.
    """

    tokenizer: MultimodalTokenizer
    groups: Mapping[str, OpenGroup]
    digest: str

    def check_shares(self, shard: Shard) -> None:
        """Check that each group has a record for each worker of each rank.

        Raises:
            ConfigError: one has fewer.
        """
        for name, group in self.groups.items():
            stretch(group.num_samples, shard, group=name)


def open_job(job: MultimodalJob) -> OpenJob:
    """Open what a job names.

    Raises:
        ConfigError: the tokenizer or a source is wrong.
        DataError: a file as a whole is wrong.
        StoreError: the store failed.
    """
    tokenizer = open_tokenizer(job)
    groups = {group.name: open_group(group, job, tokenizer) for group in job.groups}
    records = {name: group.digest for name, group in groups.items()}
    return OpenJob(
        tokenizer=tokenizer,
        groups=groups,
        digest=job_digest(job, tokenizer.digest, records),
    )
