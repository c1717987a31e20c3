"""Faults that are worked round must still be there; when one is gone, remove its workaround."""

from pathlib import Path

import pytest

from tests.support.ranks import RankServer

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "upstream"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


def run_script(*, path: str) -> bool:
    import importlib.util

    spec = importlib.util.spec_from_file_location("upstream_fault", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fault_is_present()


@pytest.mark.parametrize("name", SCRIPTS)
def test_fault_is_still_present(ranks: RankServer, name: str) -> None:
    present = ranks.run(run_script, path=str(FOLDER / f"{name}.py"))[0]
    assert present, f"fixed upstream: remove what docs/upstream/{name}.md says megapack does"


def test_every_fault_has_page_script_and_line_in_the_table() -> None:
    pages = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
    table = (FOLDER / "README.md").read_text()
    assert pages == SCRIPTS
    assert all(f"({name}.md)" in table for name in pages)
