"""Models and rows that the tests of tests/gpu share."""

from tests.support.rows import make_row

ROWS = (make_row([5, 17, 3, 23], seed=6), make_row([31, 7, 11], seed=7))
MODELS = {
    "dense": {"qk_layernorm": True},
    "tied": {"tie_embeddings": True},
    "experts": {
        "moe": {
            "num_experts": 4,
            "experts_per_token": 2,
            "expert_ffn_hidden_size": 24,
            "aux_loss_coefficient": 0.02,
        }
    },
}
