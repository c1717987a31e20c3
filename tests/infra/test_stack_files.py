"""State, credentials, ports and environment of the local stack."""

import dataclasses
import json
import socket
import stat

import pytest

from infra import addresses, environment, ports, s3_credentials, state, waiting
from infra.failures import PrerequisiteError, StackError
from infra.processes import ProcessRecord

S3_PORTS = ports.S3Ports(
    s3=11001,
    s3_grpc=11002,
    master=11003,
    master_grpc=11004,
    volume=11005,
    volume_grpc=11006,
    filer=11007,
    filer_grpc=11008,
    admin=11009,
)
STATE = state.StackState(
    stack_id="abc",
    prefect_port=11000,
    s3_ports=S3_PORTS,
    processes={"s3": ProcessRecord(pid=7, identity="boot:42", log="s3.log")},
    deployed="ff",
)


@pytest.fixture
def layout(tmp_path):
    made = state.Layout(root=tmp_path)
    made.create()
    return made


@pytest.fixture
def taken():
    with socket.socket() as listener:
        listener.bind((ports.LOOPBACK, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_state_round_trip(layout):
    state.save(STATE, layout=layout)
    assert state.load(layout) == STATE


def test_load_of_absent_state_is_none(layout):
    assert state.load(layout) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 99}', '{"version": 1}'])
def test_load_of_damaged_state_says_what_to_do(layout, text):
    layout.state_file.write_text(text)
    with pytest.raises(StackError, match=r"state file of version 1; found .* remove the file"):
        state.load(layout)


def test_exclusive_refuses_second_command(layout):
    with (
        state.exclusive(layout),
        pytest.raises(StackError, match=r"Only one command .* pid \d+ is at work"),
        state.exclusive(layout),
    ):
        pytest.fail("two commands held the lock")
    with state.exclusive(layout):
        pass


def test_create_of_blocked_folder_is_prerequisite_error(tmp_path):
    (tmp_path / ".local").write_text("a file where the folder should be")
    with pytest.raises(PrerequisiteError, match=r"must be able to write .*\.local; File exists"):
        state.Layout(root=tmp_path).create()


def test_credentials_are_private_stable_and_hidden_in_repr(layout):
    path = layout.s3_home / "credentials.json"
    made = s3_credentials.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert s3_credentials.load_or_create(path) == made
    assert made.secret_key not in repr(made)
    assert made.internal_key not in repr(made)
    assert len(made.secret_key) >= 32


def test_damaged_credentials_say_what_to_do(layout):
    path = layout.s3_home / "credentials.json"
    path.write_text('{"access_key": "a"}')
    with pytest.raises(StackError, match="Restore it, or remove it"):
        s3_credentials.load_or_create(path)


def test_chosen_ports_are_distinct_free_and_kept():
    chosen = ports.choose_s3_ports(wanted=None, last=None, avoid=[])
    assert len(set(chosen.all())) == len(chosen.all()) == 10
    assert chosen.admin_grpc == chosen.admin + 10_000
    assert all(map(ports.is_free, chosen.all()))
    assert ports.choose_s3_ports(wanted=None, last=chosen, avoid=[]) == chosen


def test_last_port_in_use_is_replaced(taken):
    assert ports.choose_server_port(wanted=None, last=taken, avoid=[]) != taken
    moved = dataclasses.replace(S3_PORTS, filer=taken)
    assert taken not in ports.choose_s3_ports(wanted=None, last=moved, avoid=[]).all()


def test_requested_port_in_use_is_refused(taken):
    with pytest.raises(PrerequisiteError, match=f"MEGAPACK_PREFECT_PORT={taken} asks for a port"):
        ports.choose_server_port(wanted=taken, last=None, avoid=[])
    with pytest.raises(PrerequisiteError, match=f"MEGAPACK_S3_PORT={taken} asks for a port"):
        ports.choose_s3_ports(wanted=taken, last=None, avoid=[])


@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "80.5"])
def test_requested_port_that_is_none_is_refused(text):
    with pytest.raises(PrerequisiteError, match="must be a port number from 1 to 65535; found"):
        ports.requested("MEGAPACK_S3_PORT", environ={"MEGAPACK_S3_PORT": text})


def test_requested_port_unset_is_none():
    assert ports.requested("MEGAPACK_S3_PORT", environ={"MEGAPACK_S3_PORT": " "}) is None


def test_request_to_move_running_part_is_refused(monkeypatch):
    monkeypatch.delenv(addresses.S3_VARIABLE, raising=False)
    monkeypatch.setenv(addresses.PREFECT_VARIABLE, "11999")
    with pytest.raises(PrerequisiteError, match=r"differs from port 11000 .* down` first"):
        addresses.choose(STATE, running={"server", "s3"}, server="server", s3="s3")


def test_ports_of_running_parts_stay(monkeypatch):
    monkeypatch.delenv(addresses.S3_VARIABLE, raising=False)
    monkeypatch.setenv(addresses.PREFECT_VARIABLE, "11000")
    kept = addresses.choose(STATE, running={"server", "s3"}, server="server", s3="s3")
    assert kept == STATE


def test_inherited_environment_drops_foreign_accounts():
    given = {
        "HOME": "/h",
        "PREFECT_API_KEY": "k",
        "PREFECT_API_URL": "https://elsewhere",
        "AWS_PROFILE": "prod",
        "AWS_SESSION_TOKEN": "t",
        "AWS_CA_BUNDLE": "/ca",
        "WEED_LEVELDB2_ENABLED": "true",
        "PYTHONDONTWRITEBYTECODE": "1",
        "no_proxy": "intra.example",
    }
    proxies = "intra.example,127.0.0.1,localhost"
    assert environment.inherited(given) == {
        "HOME": "/h",
        "AWS_CA_BUNDLE": "/ca",
        "NO_PROXY": proxies,
        "no_proxy": proxies,
    }


def test_last_line_skips_frames_and_blanks(tmp_path):
    log = tmp_path / "x.log"
    assert waiting.last_line(log).startswith("log unreadable")
    log.write_text("first\n│ boom: no pool │\n╰────╯\n\n")
    assert waiting.last_line(log) == "last log line: │ boom: no pool │"


def test_state_file_is_plain_json(layout):
    state.save(STATE, layout=layout)
    assert json.loads(layout.state_file.read_text())["processes"]["s3"]["pid"] == 7
    assert stat.S_IMODE(layout.state_file.stat().st_mode) == 0o600
