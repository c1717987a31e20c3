"""`Shard`: which part of the samples a data worker reads."""

from dataclasses import dataclass

from megapack.errors import ContractError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One worker of one rank.

    Attributes:
        rank: data-parallel rank.
        ranks: data-parallel ranks.
        worker: data worker of the rank.
        workers: data workers of a rank, at least 1: without any, the rank itself is one.
    """

    rank: int = 0
    ranks: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.ranks and 0 <= self.worker < self.workers):
            raise ContractError(
                f"Shard: expected rank in [0, ranks) and worker in [0, workers), found rank "
                f"{self.rank} of {self.ranks}, worker {self.worker} of {self.workers}."
            )

    @property
    def index(self) -> int:
        """Number among all workers of all ranks."""
        return self.rank * self.workers + self.worker

    @property
    def count(self) -> int:
        """Workers of all ranks."""
        return self.ranks * self.workers
