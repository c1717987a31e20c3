import re

import pytest

from megapack.errors import ConfigError
from megapack.jobs.model import BackendName
from megapack.steps.launch import backend
from megapack.steps.launch.backend import check_backend
from megapack.steps.train import train
from tests.support.tiny_dataset import make_dataset, make_rows, train_job

TE = (BackendName.TE, BackendName.TE_EXACT, BackendName.TE_SLOTS)
QUIET = {"on_line": lambda *_: None, "on_metric": lambda _: None}


@pytest.fixture
def installed(monkeypatch):
    """Packages that are found."""
    names = {"transformer_engine"}
    monkeypatch.setattr(backend, "find_spec", lambda name: name if name in names else None)
    return names


@pytest.mark.parametrize("name", TE)
def test_check_refuses_te_where_there_is_no_device_file_or_no_package(tmp_path, installed, name):
    with pytest.raises(ConfigError, match=f"backend = {name.value}: expected a CUDA device, found"):
        check_backend(name, devices=tmp_path)
    installed.clear()
    both = "a CUDA device and the package transformer_engine, found none here"
    with pytest.raises(ConfigError, match=both):
        check_backend(name, devices=tmp_path)
    (tmp_path / "nvidia0").touch()
    with pytest.raises(ConfigError, match="expected the package transformer_engine, found none"):
        check_backend(name, devices=tmp_path)


@pytest.mark.parametrize("device", ["nvidiactl", "nvhost-gpu", "nvmap", "dxg"])
def test_check_leaves_a_machine_with_a_device_file_to_its_ranks(tmp_path, installed, device):
    (tmp_path / device).touch()
    for name in BackendName:
        check_backend(name, devices=tmp_path)


def test_check_takes_what_runs_anywhere(tmp_path, installed):
    installed.clear()
    check_backend(BackendName.AUTO, devices=tmp_path)
    check_backend(BackendName.PORTABLE, devices=tmp_path)


def test_train_refuses_te_before_it_starts_ranks_here_and_leaves_other_launchers_alone(
    tmp_path, installed
):
    installed.clear()
    data = make_dataset(tmp_path / "data", make_rows(3, seed=1))
    job = train_job(data, tmp_path / "out", backend=BackendName.TE)
    with pytest.raises(ConfigError, match=re.compile(r"^backend = te: expected")):
        train(job, **QUIET)

    def elsewhere(command, **_):
        raise RuntimeError("started")

    with pytest.raises(RuntimeError, match="started"):
        train(job, **QUIET, launcher=elsewhere)
