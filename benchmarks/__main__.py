"""Run every benchmark: `python -m benchmarks [name ...]`."""

import importlib
import pkgutil
import sys

import benchmarks


def main() -> None:
    """Import and run the chosen benchmark files, all by default."""
    chosen = sys.argv[1:]
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name.startswith("bench_") and (not chosen or module.name in chosen):
            importlib.import_module(f"benchmarks.{module.name}").main()


main()
