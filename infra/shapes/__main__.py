"""`python -m infra.shapes OUTDIR`: write the shapes into OUTDIR."""

import argparse
import sys
from pathlib import Path

from infra.shapes.build import build_shapes


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m infra.shapes", description=__doc__)
    parser.add_argument("outdir", type=Path)
    folder = parser.parse_args().outdir
    sys.stdout.write(f"shapes {build_shapes(folder).value}: {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
