"""Model folders made of numpy arrays: no torch, so the test process may import it."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from megapack.steps.hugging_face.config import model_of_config
from megapack.steps.hugging_face.names import tensor_shapes

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 107,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, kw_only=True)
class HfOutcome:
    """Logits [n, V] of each document and the sum of the losses."""

    logits: list[np.ndarray]
    loss_sum: float


def write_folder(folder: Path, *, seed: int = 0, **changes) -> Path:
    """A model folder with random float32 weights in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors(config, seed=seed), folder / "model.safetensors")
    return folder


def tensors(config: dict, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights of a configuration."""
    draw = np.random.default_rng(seed)
    shapes = tensor_shapes(model_of_config(config, where="config.json"))
    return {
        name: (draw.normal(size=shape) * 0.2 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }
