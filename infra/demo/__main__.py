"""`python -m infra.demo OUTDIR`: write the demo's data and tokenizer into OUTDIR."""

import argparse
import sys
from pathlib import Path

from infra.demo.build import DEFAULT_SIZE, DEFAULT_VOCABULARY_SIZE, build_demo
from infra.demo.topics import DemoError


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m infra.demo", description=__doc__)
    parser.add_argument("outdir", type=Path, help="folder for data/, tokenizer/ and demo.json")
    parser.add_argument("--size", type=int, default=DEFAULT_SIZE, help="good conversations")
    parser.add_argument("--vocabulary-size", type=int, default=DEFAULT_VOCABULARY_SIZE)
    arguments = parser.parse_args()
    try:
        demo = build_demo(
            arguments.outdir,
            size=arguments.size,
            vocabulary_size=arguments.vocabulary_size,
        )
    except DemoError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    counts = demo.manifest["counts"].values()
    good = sum(count["good_conversations"] for count in counts)
    flawed = sum(sum(count["flawed"].values()) for count in counts)
    sys.stdout.write(
        f"demo {demo.outcome.value}: folder={demo.folder} conversations={good} flawed={flawed} "
        f"files={len(demo.manifest['files'])}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
