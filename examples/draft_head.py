"""A draft trained beside a tiny policy, and what it saves: speculative decoding on held-out chats.

    python -m examples.draft_head [--steps 150] [--seed 0]

The demo's chats are packed, a policy of two layers and its draft learn from them in one run, and
then both answer held-out prompts: the draft proposes tokens one after the other from its own hidden
states, and the policy checks all of them in one forward. What comes out is the policy's own greedy
answer, token for token; what counts is how many proposals it accepts at a time.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infra.demo.build import build_demo
from megapack.jobs.draft import DraftJob
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import PackLayout
from megapack.records.packed_row import PackedRow
from megapack.steps.launch.protocol import RunFiles
from megapack.steps.prepare import prepare
from megapack.store.manifest import Split

PROPOSED = 4
ANSWER = 32
MODEL = {
    "num_layers": 2,
    "hidden_size": 96,
    "ffn_hidden_size": 256,
    "num_attention_heads": 4,
    "num_query_groups": 2,
}


def chats(folder: Path, *, size: int) -> Any:
    """Pack the demo's plain chats; returns the dataset's reference."""
    demo = build_demo(folder / "demo", size=size, vocabulary_size=1024).folder
    files = ("messages-000.jsonl", "messages-001.jsonl", "sharegpt.json")
    job = PrepareJob.model_validate(
        {
            "sources": [{"uri": str(demo / "data" / name)} for name in files],
            "tokenizer": str(demo / "tokenizer"),
            "tokenize": {"long_documents": "split", "max_document_tokens": 256},
            "pack": {"row_length": 256},
            "validation_fraction": 0.1,
            "store": str(folder / "store"),
        }
    )
    return prepare(job).dataset


def training(dataset: Any, folder: Path, *, steps: int, seed: int) -> TrainJob:
    """The run: policy and draft beside it."""
    settings = TrainSettings.model_validate(
        {
            "model": MODEL,
            "draft": {"lr": 3e-3},
            "optimizer": {"lr": 3e-3, "min_lr": 3e-4, "warmup_steps": 5},
            "steps": steps,
            "global_batch_rows": 8,
            "evaluate_every": steps,
            "checkpoint_every": steps,
            "seed": seed,
        }
    )
    return TrainJob(dataset=dataset, settings=settings, output=str(folder / f"run-{seed}"))


@dataclass(frozen=True, kw_only=True)
class Answerer:
    """A policy with its draft, in one process."""

    chunk: Any
    context: Any

    def greedy(self, prompt: Sequence[int]) -> list[int]:
        """The policy's own answer, one forward a token."""
        tokens = list(prompt)
        for _ in range(ANSWER):
            tokens.append(int(self._policy(tokens)[1][-1]))
        return tokens[len(prompt) :]

    def speculative(self, prompt: Sequence[int]) -> tuple[list[int], list[int]]:
        """The answer with a draft, and how many proposals each forward of the policy accepted."""
        tokens, accepted = list(prompt), []
        hidden, choices = self._policy(tokens)
        tokens.append(int(choices[-1]))
        while len(tokens) - len(prompt) < ANSWER:
            known = len(tokens)
            proposed = self._propose(hidden, tokens)
            hidden, choices = self._policy(tokens + proposed)
            own = choices[known - 1 :].tolist()
            agreed = next((i for i, token in enumerate(proposed) if token != own[i]), PROPOSED)
            tokens += own[: agreed + 1]
            # Hidden states of what was refused are of no use.
            hidden = hidden[: known + agreed]
            accepted.append(agreed)
        return tokens[len(prompt) :][:ANSWER], accepted

    def _policy(self, tokens: Sequence[int]) -> tuple[Any, Any]:
        """Hidden states [n, H] before the LM head, and the likeliest next tokens."""
        from megapack.model.forward import ForwardRequest, Need, forward

        needs = Need.HIDDEN | Need.LOGITS
        output: Any = forward(
            self.chunk, ForwardRequest(microbatch=self._microbatch(tokens), needs=needs)
        )
        return output.hidden, output.logits[:, : output.vocab_size].argmax(dim=-1)

    def _propose(self, hidden: Any, tokens: list[int]) -> list[int]:
        """The draft's guesses behind `tokens`; `hidden` are the policy's of all but the last."""
        import torch

        from megapack.model.draft import DraftCall
        from megapack.model.keywords import model_keywords

        ahead = list(tokens)
        for _ in range(PROPOSED):
            # Position t reads the token at t + 1: there is one position less than tokens.
            keywords = model_keywords(self.chunk, self._microbatch(ahead[:-1]))
            call = DraftCall.of(self.chunk, keywords, {})
            guess = call.guess(hidden[:, None], torch.tensor([ahead[1:]]))[-1]
            logits = torch.nn.functional.linear(guess, self.chunk.output_layer.weight)
            ahead.append(int(logits[0, : self.chunk.real_vocab_size].argmax()))
            hidden = torch.cat((hidden, guess))
        return ahead[len(tokens) :]

    def _microbatch(self, tokens: Sequence[int]) -> Any:
        from megapack.batch.thd import to_microbatch

        layout = PackLayout(
            row_length=len(tokens),
            lengths=np.array([len(tokens)], np.int32),
            granularity=Granularity(segment=1, row=1),
        )
        row = PackedRow(
            tokens=np.array(tokens, np.int32),
            target_runs=np.zeros(0, np.int32),
            layout=layout,
            document_ids=("0" * 32,),
        )
        return to_microbatch(row, self.context)


def prompts(rows: Sequence[PackedRow], *, number: int) -> Iterator[list[int]]:
    """What stands before the first answer of documents."""
    found = 0
    for row in rows:
        mask = row.loss_mask()
        for start, length in zip(row.layout.slot_starts, row.layout.lengths, strict=True):
            supervised = np.flatnonzero(mask[start : start + length])
            if found < number and supervised.size:
                found += 1
                # The label of a position is the token behind it.
                yield row.tokens[start : start + supervised[0] + 1].tolist()


def accepted_length(answerer: Answerer, questions: Sequence[list[int]]) -> float:
    """Mean number of proposals that a forward of the policy accepts, at most PROPOSED.

    Raises:
        RuntimeError: an answer with the draft is not the policy's own.
    """
    import torch

    accepted: list[int] = []
    with torch.no_grad():
        for prompt in questions:
            answer, counts = answerer.speculative(prompt)
            if answer != answerer.greedy(prompt):
                raise RuntimeError(f"the draft changed the answer to {prompt}: {answer}")
            accepted += counts
    return sum(accepted) / len(accepted)


def measure(dataset: Any, folder: Path, *, steps: int, seed: int, questions: int) -> list[float]:
    """Accepted length of the trained policy with a random draft, and with the trained one."""
    from megapack.engine.checkpoint import load_weights
    from megapack.engine.rows import RowSource
    from megapack.engine.train import run_training
    from megapack.jobs.model import ModelJob
    from megapack.layout.granularity import ParallelSizes
    from megapack.model.build import build_model
    from megapack.model.draft import attach_draft
    from megapack.parallel.context import ParallelContext
    from megapack.store.location import open_location
    from megapack.store.versions import latest_version, read_version

    job = training(dataset, folder, steps=steps, seed=seed)
    context = ParallelContext.initialize(ParallelSizes(), seed=seed)
    scratch = folder / f"scratch-{seed}"
    RunFiles(scratch=scratch).folder.mkdir(parents=True)
    run_training(job, context, scratch)
    checkpoint = read_version(job.output, latest_version(open_location(job.output)))
    source = RowSource.open(dataset)
    model, draft = ModelJob.model_validate(MODEL), job.settings.draft or DraftJob()
    chunks = build_model(model, context=context, vocab_size=source.vocab_size)
    attach_draft(chunks, draft, model=model, context=context, seed=seed)
    fresh = {
        name: value.clone()
        for name, value in chunks[0].draft.state_dict().items()
        if value is not None
    }
    load_weights(checkpoint.checkpoint_ref(), chunks, context, scratch / "checkpoint")
    trained = {
        name: value.clone()
        for name, value in chunks[0].draft.state_dict().items()
        if value is not None
    }
    held_out = source.read(Split.VALIDATION, source.numbers(Split.VALIDATION))
    source.close()
    asked = list(prompts(held_out, number=questions))
    lengths = []
    for weights in (fresh, trained):
        chunks[0].draft.load_state_dict(weights, strict=False)
        lengths.append(accepted_length(Answerer(chunk=chunks[0], context=context), asked))
    context.destroy()
    return lengths


def main() -> None:
    """Train and measure once for each seed."""
    parser = argparse.ArgumentParser(prog="python -m examples.draft_head")
    parser.add_argument("--steps", type=int, default=150, help="optimizer updates")
    parser.add_argument("--chats", type=int, default=1500, help="conversations of the demo")
    parser.add_argument("--questions", type=int, default=12, help="held-out prompts")
    parser.add_argument("--seeds", type=int, default=1, help="runs, of seeds 0, 1, ...")
    options = parser.parse_args()
    from megapack.parallel.runtime import install_runtime, start_process_group

    install_runtime()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start_process_group(rank=0, world_size=1, init_method=f"file://{folder / 'world'}")
        dataset = chats(folder, size=options.chats)
        for seed in range(options.seeds):
            before, after = measure(
                dataset, folder, steps=options.steps, seed=seed, questions=options.questions
            )
            sys.stdout.write(
                f"seed={seed} accepted of {PROPOSED}: random draft {before:.2f}, "
                f"trained {after:.2f}; tokens a forward of the policy: {1 + before:.2f}, "
                f"{1 + after:.2f}\n"
            )


if __name__ == "__main__":
    main()
