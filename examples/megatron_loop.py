"""A plain megatron-core loop over packed rows.

    python -m examples.megatron_loop
    torchrun --nproc-per-node 2 -m examples.megatron_loop s3://bucket/datasets/chats

The loss of a row is that of its documents alone: `packed_seq_params` keeps them apart, and
`loss_mask` says which labels count. Dividing the summed gradients by the number of labels that
count over all ranks gives the token mean, however rows are dealt out.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import megapack
from examples.tiny import start_world, tiny_dataset, tiny_gpt


def train(uri: str, model: Any, optimizer: Any, rank: int, world: int) -> Iterator[float]:
    """Yield the token-mean loss of every step; a step is a row on each rank."""
    import torch
    import torch.distributed as dist
    from megatron.core.packed_seq_params import PackedSeqParams

    def tensor(value: Any) -> Any:
        return torch.from_numpy(value) if hasattr(value, "dtype") else value

    # The ten lines: what a loop does with a row.
    for row in megapack.open(uri).thd(rank, world):
        tokens, labels, mask, positions = (
            tensor(field)[None]
            for field in (row.tokens, row.labels, row.loss_mask, row.position_ids)
        )
        params = PackedSeqParams(**{k: tensor(v) for k, v in row.packed_seq_params().items()})
        losses = model(tokens, positions, None, labels=labels, packed_seq_params=params)
        total = torch.stack([(losses * mask).sum(), mask.sum()])
        total[0].backward()
        total = total.detach()
        dist.all_reduce(total)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= total[1].item()
        optimizer.step()
        optimizer.zero_grad()
        yield float(total[0] / total[1])


def main() -> None:
    """Train on the dataset that is named, or on a tiny one."""
    rank, world = start_world()
    import torch

    with tempfile.TemporaryDirectory() as folder:
        uri = sys.argv[1] if len(sys.argv) > 1 else tiny_dataset(Path(folder))
        model = tiny_gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step, loss in enumerate(train(uri, model, optimizer, rank, world)):
            sys.stdout.write(f"step={step} loss={loss:.4f}\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
