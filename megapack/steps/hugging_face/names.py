"""Which tensors of a Hugging Face model a megatron-core parameter is made of, and how.

The one table of names: import, export and the checks before a start go by it. Letters: H = hidden
size, d = width of a head, V = vocabulary.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from megapack.errors import ContractError
from megapack.jobs.model import ModelJob

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_FINAL_NORM = "model.norm.weight"
_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.(.+)$")


class Joined(Enum):
    """How several tensors are one parameter."""

    ALONE = auto()
    STACKED = auto()
    """One after the other, on every tensor parallel rank by itself: [gate; up]."""
    BY_GROUP = auto()
    """Per key/value head: its queries, its key, its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a parameter is made of.

    Attributes:
        tensors: Hugging Face names, in order.
        joined: how they become one.
    """

    tensors: tuple[str, ...]
    joined: Joined = Joined.ALONE


_OUTSIDE = {
    "embedding.word_embeddings.weight": EMBEDDING,
    "output_layer.weight": HEAD,
    "decoder.final_layernorm.weight": _FINAL_NORM,
}
_ALONE = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
_QKV = "self_attention.linear_qkv."
_GATE_UP = "mlp.linear_fc1.weight"


def origin(name: str) -> Origin:
    """What a parameter is made of.

    Args:
        name: of the parameter in the whole model (`global_parameters`).

    Raises:
        ContractError: no tensor of a Hugging Face model belongs there.
    """
    if name in _OUTSIDE:
        return Origin(tensors=(_OUTSIDE[name],))
    found = _LAYER.match(name)
    if found:
        prefix, inside = f"model.layers.{found[1]}.", found[2]
        if inside in _ALONE:
            return Origin(tensors=(prefix + _ALONE[inside],))
        if inside == _GATE_UP:
            parts = tuple(f"{prefix}mlp.{part}_proj.weight" for part in ("gate", "up"))
            return Origin(tensors=parts, joined=Joined.STACKED)
        if inside in (f"{_QKV}weight", f"{_QKV}bias"):
            kind = inside.removeprefix(_QKV)
            parts = tuple(f"{prefix}self_attn.{part}_proj.{kind}" for part in "qkv")
            return Origin(tensors=parts, joined=Joined.BY_GROUP)
    raise ContractError(f"parameter {name}: expected one that a Hugging Face model has.")


def tensor_shapes(job: ModelJob) -> dict[str, tuple[int, ...]]:
    """Every tensor that a folder of this model holds, with its shape.

    Args:
        job: shape of the model; its vocab_size is known.

    Raises:
        ContractError: the vocabulary is not known.
    """
    if job.vocab_size is None:
        raise ContractError("ModelJob.vocab_size: expected the model's vocabulary, found None.")
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (job.vocab_size, job.hidden_size)}
    for layer in range(job.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(job).items()}
    shapes[_FINAL_NORM] = (job.hidden_size,)
    if not job.tie_embeddings:
        shapes[HEAD] = shapes[EMBEDDING]
    return shapes


def _layer_shapes(job: ModelJob) -> Mapping[str, tuple[int, ...]]:
    hidden, ffn = job.hidden_size, job.ffn_hidden_size
    queries = job.num_attention_heads * job.head_dim
    keys = job.num_query_groups * job.head_dim
    widths = {"q": queries, "k": keys, "v": keys}
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    for part, width in widths.items():
        shapes[f"self_attn.{part}_proj.weight"] = (width, hidden)
        if job.qkv_bias:
            shapes[f"self_attn.{part}_proj.bias"] = (width,)
    if job.qk_layernorm:
        for part in "qk":
            shapes[f"self_attn.{part}_norm.weight"] = (job.head_dim,)
    return shapes
