import http.server
import json
import threading

import pytest

from megapack import cli
from megapack.errors import ConfigError
from tests.unit.steps.test_pack import packed


def test_report_prints_counts_and_drops(tmp_path, capsys):
    _, _, ref = packed(tmp_path)
    assert cli.main(["report", ref.uri]) == 0
    printed = capsys.readouterr().out
    assert "documents in=12 placed=11 dropped=1" in printed
    assert "dropped reason=longer_than_row documents=1 tokens=34" in printed


def test_audit_exits_with_zero_when_sound(tmp_path, capsys):
    _, _, ref = packed(tmp_path)
    assert cli.main(["audit", ref.uri, "--version", "1"]) == 0
    assert "violations=0" in capsys.readouterr().out


def test_audit_exits_with_one_when_a_law_is_broken(tmp_path, capsys):
    from megapack.store.manifest import Contents
    from megapack.store.versions import commit, read_version

    _, _, ref = packed(tmp_path)
    old = read_version(ref.uri).manifest
    contents = Contents(
        schema_id=old.schema_id,
        kind=old.kind,
        parts=old.parts,
        counts={**old.counts, "num_rows": 99},
        drops=old.drop_ledger(),
        packed=old.packed_info(),
    )
    commit(ref.uri, contents.manifest())
    assert cli.main(["audit", ref.uri]) == 1
    assert "manifest num_rows: expected" in capsys.readouterr().out


def test_missing_dataset_is_one_line_and_exit_code_two(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("megapack: ")
    assert error.count("\n") == 1


def test_run_without_a_server_says_what_to_start(monkeypatch, capsys):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert cli.main(["run", "pack-and-train"]) == 2
    assert "make up" in capsys.readouterr().err


def test_run_lays_settings_over_the_deployments_parameters(monkeypatch, tmp_path):
    own = {"prepare": {"pack": {"row_length": 64}, "store": "a"}, "extract": {"max_rows": 1}}

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/api/deployments/name/pack-and-train/local"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"parameters": own}).encode())

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.server_port}/api")
    started = []

    class Done:
        returncode = 7

    monkeypatch.setattr(cli.subprocess, "run", lambda command, **_: started.append(command) or Done)
    changes = tmp_path / "p.json"
    changes.write_text('{"prepare": {"pack": {"seed": 3}}}')
    settings = ["--set", "prepare.pack.row_length=128", "--set", "extract=null"]
    assert cli.main(["run", "pack-and-train", "--params", str(changes), *settings]) == 7
    thread.join()
    server.server_close()
    (command,) = started
    assert command[2:7] == ["prefect", "--no-prompt", "deployment", "run", "pack-and-train/local"]
    assert json.loads(command[-1]) == {
        "prepare": {"pack": {"row_length": 128, "seed": 3}, "store": "a"},
        "extract": None,
    }


@pytest.mark.parametrize("setting", ["row_length", "=3"])
def test_setting_without_path_or_value_is_refused(setting):
    with pytest.raises(ConfigError, match="expected --set PATH=VALUE"):
        cli.parse_setting(setting)
