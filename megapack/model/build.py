"""`ModelJob` to megatron-core: configuration, model chunks, gradient buffers.

GPTModel is deprecated upstream in favour of HybridModel but is what its users still run; it is
named in this file and `megapack.model.mtp` alone.
"""

import logging
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from megapack.errors import ConfigError
from megapack.jobs.model import BackendName, ModelJob, Recompute, TrainPrecision
from megapack.jobs.model_layout import layout_faults
from megapack.model.backend import select_backend
from megapack.model.initialize import initialize_weights
from megapack.model.moe import expert_settings
from megapack.model.mtp import MtpModel
from megapack.model.offload import offload_settings
from megapack.model.spec import layer_spec, mtp_spec
from megapack.parallel.context import ParallelContext

_DTYPES = {TrainPrecision.FP32: torch.float32, TrainPrecision.BF16: torch.bfloat16}
_LONGEST_ROW = 1 << 20


def build_model(
    job: ModelJob,
    *,
    context: ParallelContext,
    vocab_size: int,
    backend: BackendName = BackendName.AUTO,
    seed: int = 0,
    params_dtype: torch.dtype | None = None,
) -> list[GPTModel]:
    """The model chunks of this rank, initialised alike at every layout.

    Args:
        job: shape and precision.
        context: an initialised context; groups are needed even for one process.
        vocab_size: real vocabulary; the model's is padded to `vocab_multiple` * tp.
        backend: which modules the layers are made of.
        seed: seed of the weights.
        params_dtype: overrides the job's precision; float64 serves as a reference.

    Returns:
        One GPTModel (no interleaving), on context.device.

    Raises:
        ConfigError: the layout does not divide the model, or the backend is not available.
    """
    config = transformer_config(job, context=context, params_dtype=params_dtype)
    # Says at each construction that GPTModel is deprecated; the module docstring says it once.
    logging.getLogger("megatron.core.models.gpt.gpt_model").setLevel(logging.ERROR)
    chosen = select_backend(backend)
    model = (MtpModel if config.mtp_num_layers else GPTModel)(
        config,
        layer_spec(config, chosen),
        padded_vocab_size(vocab_size, multiple=job.vocab_multiple, tp=context.sizes.tp),
        _LONGEST_ROW,
        pre_process=context.is_first_stage,
        post_process=context.is_last_stage,
        share_embeddings_and_output_weights=job.tie_embeddings,
        position_embedding_type="rope",
        rotary_base=job.rotary_base,
        mtp_block_spec=mtp_spec(config, chosen) if context.is_last_stage else None,
        pg_collection=context.collection,
    )
    # Read by megapack.model.forward: columns beyond it take no part in any output.
    model.real_vocab_size = vocab_size
    initialize_weights(model, job=job, context=context, vocab_size=vocab_size, seed=seed)
    return [model.to(context.device)]


def wrap_ddp(
    chunks: list[GPTModel], *, context: ParallelContext, distributed_optimizer: bool
) -> list[DistributedDataParallel]:
    """Give the chunks gradient buffers that are reduced over dp x cp.

    Gradients are summed in float32 (float64 for a float64 model) and divided once, by the global
    number of target tokens, in finalize_model_grads.

    Args:
        chunks: from `build_model`.
        context: this rank.
        distributed_optimizer: shard the buffers for the distributed optimizer.
    """
    config = chunks[0].config
    config.finalize_model_grads_func = finalize_model_grads
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=config.params_dtype != torch.float64,
        use_distributed_optimizer=distributed_optimizer,
    )
    return [
        DistributedDataParallel(config, ddp_config, chunk, pg_collection=context.collection)
        for chunk in chunks
    ]


def transformer_config(
    job: ModelJob, *, context: ParallelContext, params_dtype: torch.dtype | None = None
) -> TransformerConfig:
    """megatron-core's configuration of a job at a layout.

    Raises:
        ConfigError: the model cannot be trained at this layout; each fault has its sentence.
    """
    sizes = context.sizes
    faults = layout_faults(job, sizes)
    if faults:
        raise ConfigError(" ".join(faults))
    dtype = _DTYPES[job.precision] if params_dtype is None else params_dtype
    return TransformerConfig(
        num_layers=job.num_layers,
        hidden_size=job.hidden_size,
        ffn_hidden_size=job.ffn_hidden_size,
        num_attention_heads=job.num_attention_heads,
        num_query_groups=job.num_query_groups,
        kv_channels=job.hidden_size // job.num_attention_heads,
        normalization="RMSNorm",
        layernorm_epsilon=job.norm_epsilon,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        qk_layernorm=job.qk_layernorm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        tensor_model_parallel_size=sizes.tp,
        pipeline_model_parallel_size=sizes.pp,
        context_parallel_size=sizes.cp,
        expert_model_parallel_size=sizes.ep,
        expert_tensor_parallel_size=sizes.etp,
        sequence_parallel=sizes.sequence_parallel,
        calculate_per_token_loss=True,
        perform_initialization=False,
        use_cpu_initialization=context.device.type == "cpu",
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        **expert_settings(job.moe, num_layers=job.num_layers, dtype=dtype),
        **recompute_settings(job),
        **offload_settings(job.offload),
        mtp_num_layers=job.mtp_num_layers or None,
        mtp_loss_scaling_factor=job.mtp_loss_scale,
    )


def recompute_settings(job: ModelJob) -> dict[str, Any]:
    """Arguments of TransformerConfig that say which activations are computed again."""
    if job.recompute is Recompute.NONE:
        return {}
    if job.recompute is Recompute.FULL:
        return {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    modules = ["core_attn", "mlp", *(["moe"] if job.moe else [])]
    return {"recompute_granularity": "selective", "recompute_modules": modules}


def padded_vocab_size(vocab_size: int, *, multiple: int, tp: int) -> int:
    """The vocabulary rounded up to a multiple of `multiple` * tp.

    Args:
        vocab_size: real vocabulary.
        multiple: the job's vocab_multiple.
        tp: tensor parallel size.
    """
    step = multiple * tp
    return -(-vocab_size // step) * step
