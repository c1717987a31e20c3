"""How fast a teacher is: as it was measured, as a person says, or as its operations say.

Operations of a forward: 2 * matmul_parameters * tokens + 4 * layers * heads * head_dim * pairs;
parameters and pairs as in `megapack.engine.throughput`.
"""

from dataclasses import dataclass

from pydantic import ValidationError

from megapack.jobs.base import Job
from megapack.jobs.extract import ExtractJob
from megapack.jobs.model import ModelJob
from megapack.steps.extraction.chosen_rows import ChosenRows
from megapack.steps.extraction.earlier_payloads import layout_of
from megapack.store.manifest import Manifest


class MeasuredRun(Job):
    """What an extraction measured, as its manifest keeps it beside the job.

    Attributes:
        ranks: processes.
        tokens: real tokens that passed the teacher.
        compute_s: seconds of reading and forwards, of the rank that computed longest.
        write_wait_s: seconds that forwards waited for the store, of the rank that waited longest.
        seconds: of both and all between.
    """

    ranks: int
    tokens: int
    compute_s: float
    write_wait_s: float
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Real tokens a second, over all ranks."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast a teacher is.

    Attributes:
        tokens_per_s: real tokens a second, over all ranks.
        basis: what that rests on.
    """

    tokens_per_s: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a person says about speed.

    Attributes:
        tokens_per_s: real tokens a second over all ranks, None when not said.
        device_flops: operations a second that one device sustains, None when not said.
    """

    tokens_per_s: float | None = None
    device_flops: float | None = None


def rate_of(
    job: ExtractJob,
    chosen: ChosenRows,
    told: Told,
    *,
    vocab_size: int,
    earlier: tuple[Manifest, ...],
) -> Rate | None:
    """The best that is known: a person's word, then a measurement, then operations.

    Args:
        job: the extraction.
        chosen: its rows.
        told: a person's word.
        vocab_size: the teacher's real vocabulary.
        earlier: payloads of this teacher, the most telling first.

    Returns:
        None when nothing is known.
    """
    if told.tokens_per_s is not None:
        return Rate(tokens_per_s=told.tokens_per_s, basis="the rate that was given")
    measured = _measured(job, earlier)
    if measured is not None:
        return measured
    if told.device_flops is None or not chosen.tokens_run:
        return None
    ranks = job.settings.parallel.sizes().world_size
    flops = forward_flops(
        job.model, vocab_size=vocab_size, tokens=chosen.tokens_run, pairs=chosen.pairs_run
    )
    return Rate(
        tokens_per_s=chosen.tokens_run / flops * told.device_flops * ranks,
        basis=(
            f"{flops / chosen.tokens_run:.3g} operations a token, {told.device_flops:.3g} a second "
            f"on each of {ranks} ranks"
        ),
    )


def forward_flops(model: ModelJob, *, vocab_size: int, tokens: int, pairs: int) -> float:
    """Floating point operations of a forward over documents.

    Args:
        model: its shape.
        vocab_size: rows of its LM head.
        tokens: real tokens.
        pairs: query-key pairs of causal attention.
    """
    width = model.num_attention_heads * model.head_dim
    keys = 2 * model.num_query_groups * model.head_dim
    attention = model.hidden_size * (2 * width + keys)
    parameters = model.num_layers * attention + _mlp_parameters(model)
    parameters += vocab_size * model.hidden_size
    return 2.0 * parameters * tokens + 4.0 * model.num_layers * width * pairs


def _mlp_parameters(model: ModelJob) -> int:
    """Of all layers: gate, up and down; of experts only those that a token is sent to."""
    dense = 3 * model.hidden_size * model.ffn_hidden_size
    if model.moe is None:
        return model.num_layers * dense
    moe = model.moe
    width = moe.experts_per_token * moe.expert_ffn_hidden_size
    width += moe.shared_expert_ffn_hidden_size or 0
    sparse = 3 * model.hidden_size * width + model.hidden_size * moe.num_experts
    return moe.num_dense_layers * dense + (model.num_layers - moe.num_dense_layers) * sparse


def _measured(job: ExtractJob, earlier: tuple[Manifest, ...]) -> Rate | None:
    """The most telling extraction with this teacher that says how fast it was."""
    layout = job.settings.parallel.model_dump(mode="json")
    ranks = job.settings.parallel.sizes().world_size
    for manifest in earlier:
        run = measured_run(manifest)
        if run is None or not run.tokens_per_s:
            continue
        basis = f"an extraction with this teacher on {manifest.created_at[:10]}"
        if layout_of(manifest) != layout:
            basis += f" at another layout of {run.ranks} ranks, as fast for each rank"
        return Rate(tokens_per_s=run.tokens_per_s / run.ranks * ranks, basis=basis)
    return None


def measured_run(manifest: Manifest) -> MeasuredRun | None:
    """What the run that committed a payload measured, None when it says nothing."""
    try:
        return MeasuredRun.model_validate(manifest.settings.get("run"))
    except ValidationError:
        return None
