import pytest
import torch

from megapack.engine.throughput import ModelCost, memory_bytes, peak_flops
from megapack.jobs.model import TrainPrecision


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
    ],
)
def test_peak_of_known_devices(name, tera):
    assert peak_flops(name, TrainPrecision.BF16) == tera * 1e12


@pytest.mark.parametrize("name", ["NVIDIA A10G", "NVIDIA GeForce RTX 4090", "AMD EPYC", ""])
def test_no_peak_is_made_up_for_an_unknown_device(name):
    assert peak_flops(name, TrainPrecision.BF16) is None


def test_fp32_has_a_peak_of_its_own():
    assert peak_flops("NVIDIA H200", TrainPrecision.FP32) == 67e12


def test_step_flops_count_matrices_by_token_and_attention_by_pair():
    cost = ModelCost(matmul_parameters=100, pair_width=8)
    assert cost.step_flops(num_real_tokens=10, pairs=55) == 6 * 100 * 10 + 12 * 8 * 55


def test_memory_of_a_cpu_rank_is_what_stands_in_memory():
    before = memory_bytes(torch.device("cpu"))
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    assert memory_bytes(torch.device("cpu")) - before > 32 << 20
