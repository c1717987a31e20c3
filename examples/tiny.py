"""What the examples need beside their ten lines: a tiny dataset, a tiny model, a process group."""

import json
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from megapack.jobs.prepare import PrepareJob
from megapack.steps.pack import pack
from megapack.steps.split import list_sources, split_source
from megapack.steps.tokenize import tokenize_part

WORDS = [f"w{i}" for i in range(60)]
SPECIALS = ["<pad>", "<unk>", "<user>", "<assistant>", "<end>"]
VOCABULARY = len(SPECIALS) + len(WORDS)
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<assistant> {% generation %}"
    "{{ m.content + ' <end>' }}{% endgeneration %} {% else %}<user> {{ m.content }} {% endif %}"
    "{% endfor %}"
)


def tiny_dataset(folder: Path, *, chats: int = 24) -> str:
    """Prepare chats of odd lengths, in rows of 64 positions; returns the dataset's address."""
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(parents=True)
    ids = {token: number for number, token in enumerate([*SPECIALS, *WORDS])}
    words = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(SPECIALS)
    words.save(str(tokenizer / "tokenizer.json"))
    (tokenizer / "tokenizer_config.json").write_text('{"pad_token": "<pad>"}')
    (tokenizer / "chat_template.jinja").write_text(TEMPLATE)
    lines = [
        {
            "messages": [
                {"role": "user", "content": " ".join(WORDS[i % 7 : i % 7 + 1 + i % 5])},
                {"role": "assistant", "content": " ".join(WORDS[i : i + 1 + 2 * (i % 6)])},
            ]
        }
        for i in range(chats)
    ]
    source = folder / "chats.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    job = PrepareJob.model_validate(
        {
            "sources": [{"uri": str(source)}],
            "tokenizer": str(tokenizer),
            "tokenize": {"long_documents": "drop"},
            "pack": {"row_length": 64},
            "validation_fraction": 0.0,
            "store": str(folder / "store"),
        }
    )
    tables = [split_source(job, shard) for shard in list_sources(job)]
    documents = [tokenize_part(job, one, part) for one in tables for part in range(one.num_parts)]
    return pack(job, conversations=tables, documents=documents).uri


def tiny_llama() -> Any:
    """A Hugging Face Llama of two layers with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


def tiny_gpt(spec: Any = None) -> Any:
    """A megatron-core GPTModel of two layers; its attention is megapack's portable one.

    On GPUs with Transformer Engine, `get_gpt_layer_with_transformer_engine_spec()` stands in its
    place: both take the same `PackedSeqParams`.
    """
    import torch
    import torch.nn.functional as F  # noqa: N812 - torch's own habit
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    from megapack.model.spec import portable_block

    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        ffn_hidden_size=48,
        num_attention_heads=4,
        num_query_groups=2,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )
    torch.manual_seed(7)
    layers = portable_block(config) if spec is None else spec
    return GPTModel(config, layers, 128, 512, position_embedding_type="rope")


def start_world() -> tuple[int, int]:
    """Join torchrun's world, or make one of a single process, unless this one is in a world.

    Returns:
        Data parallel rank and size.
    """
    import os

    import torch

    from megapack.parallel import runtime

    runtime.install_cpu_runtime()
    from megatron.core import parallel_state  # noqa: TID251 - a trainer that is not megapack's
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    if torch.distributed.is_initialized():
        pass
    elif "RANK" in os.environ:
        runtime.start_process_group()
    else:
        place = Path(tempfile.mkdtemp()) / "world"
        runtime.start_process_group(rank=0, world_size=1, init_method=f"file://{place}")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(7)
    return (
        parallel_state.get_data_parallel_rank(),
        parallel_state.get_data_parallel_world_size(),
    )
