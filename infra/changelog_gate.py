"""Fail when the last change touched `megapack/` and left `CHANGELOG.md` alone.

Compares the working tree with the merge base of the main branch where there is one, else with the
parent commit. A checkout without history has nothing to compare and passes.
"""

import subprocess
import sys


def _git(*arguments: str) -> list[str] | None:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else None


def main() -> int:
    """Print one line when an entry is missing; return the exit code."""
    base = _git("merge-base", "HEAD", "origin/main")
    head = _git("rev-parse", "HEAD")
    if base is None or base == head:
        base = _git("rev-parse", "HEAD~1")
    if base is None:
        return 0
    changed = _git("diff", "--name-only", base[0]) or []
    touched = [path for path in changed if path.startswith("megapack/")]
    if touched and "CHANGELOG.md" not in changed:
        sys.stderr.write(
            f"changelog: {len(touched)} files under megapack/ changed ({touched[0]}, ...), "
            "expected an entry in CHANGELOG.md. Add one under [Unreleased].\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
