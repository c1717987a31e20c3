"""A draft trained beside a tiny policy, and what it saves: speculative decoding on held-out chats.

    python -m examples.draft_head [--steps 120] [--seeds 1]

The demo's chats are packed, a policy of two layers and its draft learn from them in one run, and
then both answer held-out prompts: the draft proposes tokens one after the other from its own hidden
states, and the policy checks all of them in one forward. What comes out is the policy's own greedy
answer, token for token; what counts is how many proposals it accepts at a time.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
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
from megapack.records.refs import DatasetRef
from megapack.steps.launch.protocol import RunFiles
from megapack.steps.prepare import prepare
from megapack.store.location import open_location
from megapack.store.manifest import Split
from megapack.store.versions import latest_version, read_version

PROPOSED = 4
ANSWER = 32
MODEL = {
    "num_layers": 2,
    "hidden_size": 96,
    "ffn_hidden_size": 256,
    "num_attention_heads": 4,
    "num_query_groups": 2,
}


def chats(folder: Path, *, size: int) -> DatasetRef:
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


def training(dataset: DatasetRef, folder: Path, *, steps: int, seed: int) -> TrainJob:
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


def prompts(dataset: DatasetRef, *, number: int) -> list[list[int]]:
    """What stands before the first answer of held-out documents."""
    from megapack.engine.rows import RowSource

    source = RowSource.open(dataset)
    rows = source.read(Split.VALIDATION, source.numbers(Split.VALIDATION))
    source.close()
    found: list[list[int]] = []
    for row in rows:
        mask = row.loss_mask()
        for start, length in zip(row.layout.slot_starts, row.layout.lengths, strict=True):
            supervised = np.flatnonzero(mask[start : start + length])
            if supervised.size:
                # The label of a position is the token behind it.
                found.append(row.tokens[start : start + supervised[0] + 1].tolist())
    return found[:number]


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


def measure(job: TrainJob, questions: Sequence[list[int]], scratch: Path) -> tuple[float, float]:
    """Train; accepted length of the policy with a random draft, and with the one it trained."""
    from megapack.engine.checkpoint import load_weights
    from megapack.engine.train import run_training
    from megapack.model.build import build_model
    from megapack.model.draft import attach_draft
    from megapack.parallel.context import ParallelContext

    settings = job.settings
    context = ParallelContext.initialize(settings.parallel.sizes(), seed=settings.seed)
    RunFiles(scratch=scratch).folder.mkdir(parents=True)
    run_training(job, context, scratch)
    trained = read_version(job.output, latest_version(open_location(job.output))).checkpoint_ref()
    data = read_version(job.dataset.uri, job.dataset.version).manifest.packed_info()

    def answerer() -> Answerer:
        chunks = build_model(settings.model, context=context, vocab_size=data.vocab_size)
        attach_draft(
            chunks,
            settings.draft or DraftJob(),
            model=settings.model,
            context=context,
            seed=settings.seed,
        )
        return Answerer(chunk=chunks[0], context=context)

    begun, after = answerer(), answerer()
    load_weights(trained, [after.chunk], context, scratch / "files")
    # The trained policy, with the draft as it was.
    begun.chunk.load_state_dict(
        {**after.chunk.state_dict(), **begun.chunk.draft.state_dict(prefix="draft.")}
    )
    lengths = accepted_length(begun, questions), accepted_length(after, questions)
    context.destroy()
    return lengths


def main() -> None:
    """Train and measure once for each seed."""
    parser = argparse.ArgumentParser(prog="python -m examples.draft_head")
    parser.add_argument("--steps", type=int, default=120, help="optimizer updates")
    parser.add_argument("--chats", type=int, default=1200, help="conversations of the demo")
    parser.add_argument("--questions", type=int, default=8, help="held-out prompts")
    parser.add_argument("--seeds", type=int, default=1, help="runs, of seeds 0, 1, ...")
    options = parser.parse_args()
    from megapack.parallel.runtime import install_runtime, start_process_group

    install_runtime()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start_process_group(rank=0, world_size=1, init_method=f"file://{folder / 'world'}")
        dataset = chats(folder, size=options.chats)
        questions = prompts(dataset, number=options.questions)
        for seed in range(options.seeds):
            job = training(dataset, folder, steps=options.steps, seed=seed)
            before, after = measure(job, questions, folder / f"scratch-{seed}")
            sys.stdout.write(
                f"seed={seed} accepted of {PROPOSED}: random draft {before:.2f}, "
                f"trained {after:.2f}; tokens a forward of the policy: {1 + before:.2f}, "
                f"{1 + after:.2f}\n"
            )


if __name__ == "__main__":
    main()
