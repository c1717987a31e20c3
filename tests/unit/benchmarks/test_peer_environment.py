"""The layer of peers over our own environment."""

import subprocess
import sys

import pytest

from benchmarks import peer_environment
from benchmarks.peer_environment import make, peer_python, peer_site

UV = """#!{python}
import pathlib, sys
pathlib.Path({log!r}).open("a").write(" ".join(sys.argv[1:]) + "\\n")
sys.exit(int({failing!r} in sys.argv[-1]))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty project with pins; gives a maker of an installer that fails on one list."""
    pins = (tmp_path / "bench.txt", tmp_path / "bench-alone.txt")
    for path in pins:
        path.write_text(f"{path.stem}==1\n")
    monkeypatch.setattr(peer_environment, "_LAYER", tmp_path / "peers")
    monkeypatch.setattr(peer_environment, "_PINS", pins)

    def installer(failing: str = "nothing"):
        uv = tmp_path / "uv"
        log = str(tmp_path / "log")
        uv.write_text(UV.format(python=sys.executable, log=log, failing=failing))
        uv.chmod(0o755)
        return uv

    return installer


def test_without_a_layer_benchmarks_run_in_our_environment(place):
    assert str(peer_python()) == sys.executable
    assert peer_site() is None


def test_layer_is_made_once_and_sees_our_packages(place, tmp_path):
    assert make(uv=place())
    assert make(uv=place())
    assert len((tmp_path / "log").read_text().splitlines()) == 2
    code = "import sys, numpy; print(numpy.__file__)"
    found = subprocess.run(
        [peer_python(), "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "numpy" in found
    assert peer_site() == tmp_path / "peers" / "lib" / peer_site().parent.name / "site-packages"


def test_layer_is_made_anew_when_a_pin_changes(place, tmp_path):
    assert make(uv=place())
    (tmp_path / "bench.txt").write_text("bench==2\n")
    assert make(uv=place())
    assert len((tmp_path / "log").read_text().splitlines()) == 4


def test_failed_install_is_said_and_tried_again(place, tmp_path, capfd):
    assert not make(uv=place("bench-alone"))
    assert (
        "bench-alone.txt: not installed, so these peers will be MISSING" in capfd.readouterr().err
    )
    assert make(uv=place())
    assert len((tmp_path / "log").read_text().splitlines()) == 4
