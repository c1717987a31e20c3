"""One life of the local stack: up, up again, a killed store and worker, a broken flow, down."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import s3fs

from infra import processes
from megapack.cli.deployments import PrefectServer

pytestmark = [pytest.mark.flow, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2]
FLOW = """
    import os
    import time

    import s3fs
    from prefect import flow


    @flow
    def tiny(seconds: float = 0.0) -> str:
        store = s3fs.S3FileSystem()
        target = os.environ["MEGAPACK_STORE"] + "/tiny/" + ("slow" if seconds else "fast")
        store.pipe(target, os.getcwd().encode())
        time.sleep(seconds)
        return target
"""
DEPLOYMENTS = """
    pull:
      - prefect.deployments.steps.set_working_directory:
          directory: "{{ $MEGAPACK_ROOT }}"
    deployments:
      - name: local
        entrypoint: flows.tiny.tiny
        work_pool: {name: megapack-local}
        concurrency_limit: {limit: 1, collision_strategy: ENQUEUE}
"""


class Project:
    """A scratch project and its stack."""

    def __init__(self, root):
        self.root = root
        self.known = None
        (root / "flows").mkdir()
        (root / "flows" / "__init__.py").touch()
        (root / "flows" / "tiny.py").write_text(textwrap.dedent(FLOW))
        (root / "prefect.yaml").write_text(textwrap.dedent(DEPLOYMENTS))

    def command(self, *words, **variables):
        ports = ("MEGAPACK_PREFECT_PORT", "MEGAPACK_S3_PORT")
        environ = {key: value for key, value in os.environ.items() if key not in ports}
        return subprocess.run(
            [sys.executable, "-m", "infra.local", *words, "--root", str(self.root)],
            cwd=PROJECT,
            env={**environ, **variables},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def up(self):
        done = self.command("up")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def state(self):
        return json.loads((self.root / ".local" / "state.json").read_text())

    def pids(self):
        return {name: one["pid"] for name, one in self.state()["processes"].items()}

    def leftovers(self):
        stack = self.state()["stack_id"]
        names = ("s3", "server", "worker", "deploy")
        return [one.pid for name in names for one in processes.marked(f"{stack}:{name}")]

    def variables(self):
        lines = self.command("env").stdout.splitlines()
        return dict(line.removeprefix("export ").split("=", 1) for line in lines)

    def api(self, path, body=None):
        server = PrefectServer(api=f"http://127.0.0.1:{self.state()['prefect_port']}/api")
        return server.call(path, body)

    def run(self, **parameters):
        deployment = self.api("deployments/name/tiny/local")
        path = f"deployments/{deployment['id']}/create_flow_run"
        return self.api(path, {"parameters": parameters})["id"]

    def wait_state(self, run, *names, seconds=150):
        deadline = time.monotonic() + seconds
        while True:
            found = self.api(f"flow_runs/{run}")["state"]
            if found["type"] in names:
                return found
            assert time.monotonic() < deadline, f"{found} after {seconds} s, wanted {names}"
            time.sleep(0.5)

    def wait_object(self, path, seconds=150):
        store = self.store()
        deadline = time.monotonic() + seconds
        while not store.exists(path):
            assert time.monotonic() < deadline, f"{path} was not written within {seconds} s"
            time.sleep(0.2)
            store.invalidate_cache()

    def store(self, **changed):
        if self.known is None:
            self.known = self.variables()
        known = self.known
        keys = {"key": known["AWS_ACCESS_KEY_ID"], "secret": known["AWS_SECRET_ACCESS_KEY"]}
        return s3fs.S3FileSystem(
            endpoint_url=known["AWS_ENDPOINT_URL"],
            skip_instance_cache=True,
            **({"anon": True} if changed.get("anon") else {**keys, **changed}),
        )


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    yield made
    done = made.command("down")
    assert done.returncode == 0, done.stdout + done.stderr


def test_stack_life_from_up_to_down(project):
    """Steps of one test, because a start costs 15 to 50 s on two busy cores."""
    assert "applying prefect.yaml" in project.up()
    pids = project.pids()
    assert set(pids) == {"s3", "server", "worker"}
    check_strangers_are_refused(project)

    second = project.up()
    assert "starting" not in second
    assert "applying" not in second
    assert project.pids() == pids

    check_repair(project, pids)
    check_broken_flow_is_refused_and_running_parts_stay(project)

    assert project.command("down").stdout.endswith("stopped\n")
    assert project.pids() == {}
    assert project.leftovers() == []
    assert project.command("status").returncode == 1


def check_strangers_are_refused(project):
    for stranger in ({"secret": "wrong"}, {"key": "nobody"}, {"anon": True}):
        with pytest.raises(PermissionError):
            project.store(**stranger).ls("megapack")
    assert project.store().ls("megapack") == []


def check_repair(project, pids):
    """The store and the worker are killed amid a run: data survive, the run's slot is freed."""
    slow = project.run(seconds=600)
    project.wait_object("megapack/tiny/slow")
    os.kill(pids["s3"], signal.SIGKILL)
    os.kill(pids["worker"], signal.SIGKILL)
    assert project.command("status").returncode == 1
    repaired = project.up().splitlines()
    starts = [line for line in repaired if line.startswith("starting")]
    assert starts == ["starting s3", "starting worker"]
    assert project.pids()["server"] == pids["server"]
    assert project.store().cat("megapack/tiny/slow") == str(project.root).encode()
    assert project.api(f"flow_runs/{slow}")["state"]["type"] == "CRASHED"
    fast = project.run()
    state = project.wait_state(fast, "COMPLETED", "CRASHED", "FAILED")
    assert state["type"] == "COMPLETED", state
    assert project.command("status").returncode == 0


def check_broken_flow_is_refused_and_running_parts_stay(project):
    pids = project.pids()
    (project.root / "flows" / "tiny.py").write_text("raise RuntimeError('broken flow')\n")
    done = project.command("up")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "deploy.log" in done.stderr
    assert "broken flow" in (project.root / ".local" / "logs" / "deploy.log").read_text()
    assert project.pids() == pids


def test_interrupted_up_leaves_nothing(project):
    with subprocess.Popen(
        [sys.executable, "-m", "infra.local", "up", "--root", str(project.root)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout.readline() == "starting s3\n"
        assert command.stdout.readline() == "starting server\n"
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=120)
    assert command.returncode == 130
    assert errors.startswith("infra.local: stopped by SIGINT")
    assert "Traceback" not in errors
    assert project.leftovers() == []


def test_up_without_prefect_yaml_is_one_line_and_writes_nothing(project):
    (project.root / "prefect.yaml").unlink()
    done = project.command("up")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "must hold prefect.yaml" in done.stderr
    assert not (project.root / ".local").exists()
