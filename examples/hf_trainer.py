"""The Hugging Face Trainer over packed rows, without padding.

    python -m examples.hf_trainer [DATASET]

Rows stand in a seeded order already, so they are read one after another. No `attention_mask` is
handed over: boundaries come from `position_ids` (sdpa, eager, flex) or from `cu_seq_lens_q` and
its kin (flash-attention), and labels are not shifted, because the model shifts them. A loop of
your own must call the model with `use_cache=False`: with a cache, positions do not part documents.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import megapack
from examples.tiny import tiny_dataset, tiny_llama


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows as one flat batch of tensors."""
    import torch

    flat = megapack.flatten(rows)
    return {k: torch.as_tensor(v) if hasattr(v, "dtype") else v for k, v in flat.items()}


def train(uri: str, model: Any, output: str) -> Any:
    """The ten lines: train one epoch; returns the Trainer."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=output,
        num_train_epochs=1,
        per_device_train_batch_size=2,
        dataloader_pin_memory=False,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
    )
    data = megapack.open(uri).hf()
    trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=collate)
    trainer.train()
    return trainer


def main() -> None:
    """Train on the dataset that is named, or on a tiny one."""
    with tempfile.TemporaryDirectory() as folder:
        uri = sys.argv[1] if len(sys.argv) > 1 else tiny_dataset(Path(folder))
        trainer = train(uri, tiny_llama(), str(Path(folder) / "output"))
        for entry in trainer.state.log_history:
            sys.stdout.write(f"{entry}\n")


if __name__ == "__main__":
    main()
