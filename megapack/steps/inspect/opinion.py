"""What a teacher says of one token of a document: of position t it is told at token t + 1."""

from dataclasses import dataclass

import numpy as np

from megapack.records.payload import TeacherPayload

MOST_ALTERNATIVES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """A teacher's distribution where a token stands.

    Attributes:
        probability: of the token itself; None where it is neither a label that counts nor among
            the top-k.
        alternatives: id and probability of the likeliest tokens, at most five.
        rest: probability of all tokens beside these.
    """

    probability: float | None
    alternatives: tuple[tuple[int, float], ...]
    rest: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeacherView:
    """A document's payload of kind topk, asked by token."""

    payload: TeacherPayload

    def of(self, token: int, identity: int) -> Opinion | None:
        """What the teacher expects where a token stands, None for a document's first token.

        Args:
            token: its number in the document.
            identity: its id.
        """
        at = token - 1
        indices, tails = self.payload.indices, self.payload.tail_logprobs
        if not 0 <= at < self.payload.num_positions or indices is None or tails is None:
            return None
        probabilities = np.exp(self.payload.values[at].astype(np.float64))
        target = float(self.payload.target_logprobs[at])
        among = np.flatnonzero(indices[at] == identity)
        if not np.isnan(target):
            own: float | None = float(np.exp(target))
        else:
            own = float(probabilities[among[0]]) if among.size else None
        shown = probabilities[:MOST_ALTERNATIVES]
        rest = float(probabilities[MOST_ALTERNATIVES:].sum() + np.exp(np.float64(tails[at])))
        pairs = zip(indices[at].tolist(), shown.tolist(), strict=False)
        return Opinion(probability=own, alternatives=tuple(pairs), rest=rest)
