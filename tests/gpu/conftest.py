"""Tests for one CUDA device: skipped without one, and those of te without Transformer Engine.

Each request runs in a process of its own, once a session. When all tests of te have passed, the
session says how an installation declares it.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.device_run import Answer, Ask, ask

DEVICE = Path("/dev/nvidiactl")
TE_FILE = "test_te.py"


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.timeout(600))
        if not DEVICE.exists():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        elif item.path.name == TE_FILE and importlib.util.find_spec("transformer_engine") is None:
            item.add_marker(pytest.mark.skip(reason="no Transformer Engine"))


@pytest.fixture(scope="session")
def answers() -> Callable[[Ask], Answer]:
    """Answers to requests; equal requests are run once."""
    known: dict[str, Answer] = {}

    def find(request: Ask) -> Answer:
        key = repr((request, [row.document_ids for row in request.rows]))
        if key not in known:
            known[key] = ask(request)
        return known[key]

    return find


def pytest_terminal_summary(terminalreporter):
    reports = terminalreporter.stats

    def of_te(outcome):
        return [
            one
            for one in reports.get(outcome, [])
            if one.nodeid.endswith(f"gpu/{TE_FILE}") or f"gpu/{TE_FILE}::" in one.nodeid
        ]

    passed, others = of_te("passed"), [*of_te("failed"), *of_te("error"), *of_te("skipped")]
    if passed and not others:
        from megapack.model.backend import TESTED_VARIABLE, installation

        terminalreporter.write_line(f'te passed here: export {TESTED_VARIABLE}="{installation()}"')
