"""The pages that promise tests name tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = sorted(
    set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/design.md").read_text()))
)


def test_every_law_names_a_test():
    rows = re.findall(r"^\| (\d+) [^|]+\|([^|]+)\|$", (ROOT / "docs/design.md").read_text(), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 11))
    assert all("tests/" in tests for _, tests in rows)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_named_test_exists(file, name):
    tree = ast.parse((ROOT / file).read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not name or name in functions
