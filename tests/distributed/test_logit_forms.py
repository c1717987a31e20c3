"""In which dtype a bf16 model's logits exist: its own, float32 when asked for, or not at all."""

from typing import Any

from megapack.layout.granularity import ParallelSizes
from tests.support.ranks import RankServer
from tests.support.rows import make_row


def outputs_of_bf16() -> dict[str, Any]:
    """Run on ranks: dtype of the logits in each form, and whether they are the model's own."""
    import torch

    from megapack.batch.thd import to_microbatch
    from megapack.jobs.outputs import LogitsForm
    from megapack.model.forward import ForwardRequest, forward
    from megapack.outputs.source import LogitReading
    from tests.support.tiny_training import start

    context, chunks, _ = start(ParallelSizes(), dtype=torch.bfloat16)
    batch = to_microbatch(make_row([5, 17, 3], seed=0), context)
    with torch.no_grad():
        found = {
            form: forward(
                chunks[0],
                ForwardRequest(microbatch=batch, needs=LogitReading(form=form).needs),
            )
            for form in LogitsForm
        }
    own, wide, chunked = (
        found[form] for form in (LogitsForm.MODEL_DTYPE, LogitsForm.FP32, LogitsForm.BY_CHUNKS)
    )
    context.destroy()
    return {
        "own": str(own.logits.dtype),
        "wide": str(wide.logits.dtype),
        "same": bool(torch.equal(wide.logits, own.logits.float())),
        "chunked": (chunked.logits is None, str(chunked.lm_head.hidden.dtype)),
        "unasked": (own.lm_head, own.hidden, wide.lm_head),
    }


def test_logits_are_widened_as_a_whole_only_when_asked_for(ranks: RankServer) -> None:
    assert ranks.run(outputs_of_bf16)[0] == {
        "own": "torch.bfloat16",
        "wide": "torch.float32",
        "same": True,
        "chunked": (True, "torch.bfloat16"),
        "unasked": (None, None, None),
    }
