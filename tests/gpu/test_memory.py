"""Do log-probs by chunks keep the logits of all tokens out of device memory?"""

from collections.abc import Callable

from megapack.layout.granularity import Granularity
from tests.support.device_run import Answer, Ask
from tests.support.rows import make_row, worst_error

VOCAB = 131_072
TOKENS = 16_384
LOGITS = TOKENS * VOCAB * 2
ROW = make_row(
    [4001, 77, 9000, 3000], seed=1, row_length=TOKENS, granularity=Granularity(segment=8, row=16)
)


def test_logits_by_chunks_take_a_fraction_of_the_memory_and_give_the_same_numbers(
    answers: Callable[[Ask], Answer],
) -> None:
    whole, chunked = (
        answers(
            Ask(
                device="cuda",
                dtype="bfloat16",
                rows=(ROW,),
                vocab_size=VOCAB,
                outputs={"logits": form, "tokens_per_chunk": 512},
            )
        )
        for form in ("model_dtype", "by_chunks")
    )
    assert whole.peak_bytes > LOGITS
    assert chunked.peak_bytes < LOGITS / 2
    assert abs(chunked.loss_sum - whole.loss_sum) < 1e-3 * whole.loss_sum
    assert worst_error(chunked.gradients, whole.gradients) < 2e-2
