"""What documentation pages name: tests, files, and names of code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TestName = tuple[str, str, str]
"""File, function and, where brackets follow it, the check that it runs; empty for none."""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def named_tests(text: str) -> list[TestName]:
    """Each `tests/.../test_x.py`, with `::function` and `[check]` where they follow."""
    return sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?(?:\[(\w+)\])?`", text)))


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def missing_of(test: TestName) -> list[str]:
    """What a test name promises and its file does not have."""
    file, function, check = test
    return [name for name in (function, check) if name and name not in functions(file)]


@cache
def members() -> dict[str, frozenset[str]]:
    """Class name to fields, members of enums, methods and properties, own and inherited here."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for file in sorted((ROOT / "megapack").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                own[node.name] = set(_names(node))
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]

    def every(name: str) -> set[str]:
        inherited = [every(base) for base in bases.get(name, ())]
        return own.get(name, set()).union(*inherited)

    return {name: frozenset(every(name)) for name in own}


def defined(file: str) -> frozenset[str]:
    """Names at the top of a file."""
    return frozenset(_names(ast.parse((ROOT / file).read_text(encoding="utf-8"))))


def _names(node: ast.ClassDef | ast.Module) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            yield statement.name
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.Assign):
            yield from (t.id for t in statement.targets if isinstance(t, ast.Name))
