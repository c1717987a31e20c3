import http.server
import io
import json
import threading

import pytest

from megapack.cli import deployments as run_module
from megapack.cli import main as cli
from megapack.cli.settings import merged, parse_setting, read_json
from megapack.errors import ConfigError


def test_run_without_a_server_says_what_to_start(monkeypatch, capsys):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert cli.main(["run", "pack-and-train"]) == 2
    assert "make up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("api", "flow"),
    [
        ("not a url", "train"),
        ("127.0.0.1:9", "train"),
        ("http://[::1/api", "train"),
        ("http://127.0.0.1:port/api", "train"),
        ("http://127.0.0.1:9/a b", "train"),
        ("http://127.0.0.1:9/api", "train now\n\u00fc?#"),
        ("http://127.0.0.1:9/api", "\udcff"),
    ],
)
def test_run_with_odd_address_or_name_is_one_line(monkeypatch, capsys, api, flow):
    monkeypatch.setenv("PREFECT_API_URL", api)
    assert cli.main(["run", flow]) == 2
    error = capsys.readouterr().err
    assert error.startswith(("megapack: expected a Prefect API", "megapack: expected the name"))
    assert error.count("\n") == 1


def test_run_with_an_empty_address_asks_the_default_one(monkeypatch, capsys):
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setattr(run_module, "DEFAULT_API", "http://127.0.0.1:9/api")
    assert cli.main(["run", "train"]) == 2
    assert "expected a Prefect API at http://127.0.0.1:9/api" in capsys.readouterr().err


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
def test_run_when_something_else_answers_is_one_line(monkeypatch, capsys, body):
    monkeypatch.setattr(run_module.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(body))
    assert cli.main(["run", "train"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("megapack: expected a Prefect API at")
    assert error.count("\n") == 1


JOB = {
    "sources": [{"uri": "x.jsonl"}],
    "tokenizer": "tok",
    "tokenize": {"long_documents": "drop"},
    "pack": {"row_length": 64},
    "store": "s3://bucket",
}


class FakeServer:
    """Answers of a Prefect server by path; notes what was posted."""

    def __init__(self, *, parameters, states=("COMPLETED",), busy=0):
        self.parameters = parameters
        self.states = list(states)
        self.busy = busy
        self.created = []
        self.log = [
            {"level": 20, "message": "split file=x"},
            {"level": 20, "message": "[rank 0] y"},
        ]

    def answer(self, path, body):
        if self.busy:
            self.busy -= 1
            return 503, {}
        if path == "deployments/name/pack-and-train/local":
            return 200, {"id": "d", "parameters": self.parameters}
        if path == "deployments/d/create_flow_run":
            self.created.append(body["parameters"])
            return 201, {"id": "r", "name": "odd-name"}
        if path == "flow_runs/r":
            kind = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            state = {"message": "why it ended"}
            return 200, {
                "id": "r",
                "name": "odd-name",
                "state_type": kind,
                "state_name": kind.title(),
                "state": state,
            }
        lists = {
            "logs/filter": self.log[(body or {}).get("offset", 0) :],
            "flows/filter": [{"id": "f", "name": "pack-and-train"}],
            "deployments/filter": [{"flow_id": "f", "name": "local"}],
        }
        return (200, lists[path]) if path in lists else (404, {"detail": "not found"})


@pytest.fixture
def serve(monkeypatch):
    """Start a server for a test; returns a function that takes the answers."""
    monkeypatch.setattr(run_module, "_POLL_S", 0.01)
    started = []

    def start(fake):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.reply(None)

            def do_POST(self):
                self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def reply(self, body):
                status, content = fake.answer(self.path.removeprefix("/api/"), body)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(content).encode())

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        started.append((server, thread))
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.server_port}/api")

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


def test_run_lays_settings_over_the_deployments_parameters(serve, tmp_path, capsys):
    fake = FakeServer(
        parameters={"prepare": JOB, "extract": {"payload": {"hidden": "bf16"}}}, busy=2
    )
    serve(fake)
    changes = tmp_path / "p.json"
    changes.write_text('{"prepare": {"pack": {"seed": 3}}}')
    settings = ["--set", "prepare.pack.row_length=128", "--set", "extract=null"]
    assert cli.main(["run", "pack-and-train", "--params", str(changes), *settings]) == 0
    (sent,) = fake.created
    assert sent == {
        "prepare": {**JOB, "pack": {"row_length": 128, "seed": 3}},
        "extract": None,
    }
    printed = capsys.readouterr().out
    assert "split file=x" in printed
    assert "[rank 0]" not in printed
    assert "/runs/flow-run/r" in printed


def test_run_with_a_wrong_value_is_refused_before_it_is_created(serve, capsys):
    fake = FakeServer(parameters={"prepare": JOB})
    serve(fake)
    changes = ["--set", "prepare.pack.row_length=66"]
    changes += ["--set", "prepare.pack_for.context_parallel_size=2"]
    assert cli.main(["run", "pack-and-train", *changes]) == 2
    error = capsys.readouterr().err
    assert "66 is not a multiple of row granularity 4" in error
    assert "tokenizer" not in error
    assert fake.created == []


def test_run_that_fails_says_why_and_where_to_look(serve, capsys):
    serve(FakeServer(parameters={"prepare": JOB}, states=("SCHEDULED", "RUNNING", "FAILED")))
    assert cli.main(["run", "pack-and-train"]) == 1
    printed = capsys.readouterr().out
    assert "waiting for a worker" in printed
    assert "run odd-name ended as Failed: why it ended" in printed
    assert printed.count("split file=x") == 1


def test_run_interrupted_says_that_the_run_goes_on(serve, capsys, monkeypatch):
    serve(FakeServer(parameters={"prepare": JOB}, states=("RUNNING",)))

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module.time, "sleep", interrupt)
    assert cli.main(["run", "pack-and-train"]) == 1
    assert "the run goes on" in capsys.readouterr().out


def test_run_of_an_unknown_deployment_names_it(serve, capsys):
    serve(FakeServer(parameters={}))
    assert cli.main(["run", "no-such"]) == 2
    error = capsys.readouterr().err
    assert "expected a deployment no-such/local" in error
    assert "found: pack-and-train/local. Name one of them" in error


def test_run_of_an_unknown_deployment_on_a_server_without_any_says_what_to_start(serve, capsys):
    class Empty(FakeServer):
        def answer(self, path, body):
            return 404, {"detail": "not found"}

    serve(Empty(parameters={}))
    assert cli.main(["run", "no-such"]) == 2
    assert "not found. Start the local stack with `make up`" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["row_length", "=3"])
def test_setting_without_path_or_value_is_refused(setting):
    with pytest.raises(ConfigError, match="expected --set PATH=VALUE"):
        parse_setting(setting)


def test_a_setting_reaches_into_a_list_and_refuses_what_is_not_there(tmp_path):
    job = {"sources": [{"uri": "a"}, {"uri": "b"}]}
    changed = merged(job, parse_setting("sources.1.weight=0.3"))
    assert changed == {"sources": [{"uri": "a"}, {"uri": "b", "weight": 0.3}]}
    for wrong in ("2", "-1", "x"):
        with pytest.raises(ConfigError, match=f"sources.{wrong}: expected an entry of a list of 2"):
            merged(job, parse_setting(f"sources.{wrong}.weight=1"))


def test_a_file_that_is_not_there_is_called_so(tmp_path):
    with pytest.raises(ConfigError, match=r"none.json: no such file\.$"):
        read_json(tmp_path / "none.json")
