"""Fail when `megapack/` changed after the last entry in `CHANGELOG.md`.

Looks at the commits since the one that last touched the changelog, and at the working tree. A
checkout without history has nothing to compare and passes.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = "CHANGELOG.md"


def changed_without_entry(root: Path) -> list[str]:
    """Files under `megapack/` that changed since the changelog did, none when it changed too."""
    if _git(root, "status", "--porcelain", "--", CHANGELOG):
        return []
    entry = _git(root, "log", "-1", "--format=%H", "--", CHANGELOG)
    if not entry:
        return []
    return _git(root, "diff", "--name-only", entry[0], "--", "megapack")


def main() -> int:
    """Print one line when an entry is missing; return the exit code."""
    changed = changed_without_entry(ROOT)
    if changed:
        sys.stderr.write(
            f"changelog: {len(changed)} files under megapack/ changed since its last entry "
            f"({changed[0]}, ...). Say what changed in {CHANGELOG} under [Unreleased].\n"
        )
        return 1
    return 0


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines() if done.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main())
