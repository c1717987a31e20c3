"""A last stage with MTP and tied embeddings cannot be saved. See tied_mtp_head.md."""

import sys

from megapack.layout.granularity import ParallelSizes
from megapack.parallel.context import ParallelContext
from megapack.parallel.runtime import install_cpu_runtime, start_process_group


def fault_is_present() -> bool:
    """Whether such a stage has an output weight that it does not use and does not save."""
    from megatron.core.models.gpt import GPTModel

    from megapack.jobs.model import ModelJob
    from megapack.model.build import transformer_config
    from megapack.model.spec import BackendName, mtp_spec, portable_block

    context = ParallelContext.initialize(ParallelSizes(), seed=0)
    job = ModelJob(
        num_layers=1,
        hidden_size=8,
        ffn_hidden_size=8,
        num_attention_heads=1,
        num_query_groups=1,
        mtp_num_layers=1,
    )
    config = transformer_config(job, context=context)
    model = GPTModel(
        config,
        portable_block(config),
        16,
        8,
        pre_process=False,
        share_embeddings_and_output_weights=True,
        mtp_block_spec=mtp_spec(config, BackendName.PORTABLE),
        pg_collection=context.collection,
    )
    try:
        model.sharded_state_dict(metadata={"dp_cp_group": context.dp_cp_group})
    except AssertionError as error:
        return "output_layer.weight" in str(error)
    finally:
        context.destroy()
    return False


if __name__ == "__main__":
    start_process_group(rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    install_cpu_runtime()
    sys.stdout.write(f"fault present: {fault_is_present()}\n")
