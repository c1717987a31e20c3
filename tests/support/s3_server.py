"""A real S3 server for tests: SeaweedFS on loopback, on ports that were free a moment ago."""

import contextlib
import os
import random
import secrets
import signal
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

BUCKET = "megapack"
_HOST = "127.0.0.1"
_START_S = 40.0
# The admin server's gRPC is looked for at its HTTP port plus this (seaweedfs 4.48, observed).
_ADMIN_GRPC_OFFSET = 10_000
_PORT_OPTIONS = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
)


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run a server with one bucket; yields the AWS variables that reach it.

    Args:
        folder: where it keeps data and log.
    """
    program = Path(sysconfig.get_path("scripts")) / "weed"
    if not program.is_file():
        pytest.fail(f"no S3 server: {program} is missing (install the `local` extra)")
    for name in ("data", "home"):
        (folder / name).mkdir(parents=True)
    ports = _free_ports()
    secret = secrets.token_hex(16)
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "WEED_", "S3_"))
    } | {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": secret,
        "HOME": str(folder / "home"),
    }
    options = ports | {
        "dir": folder / "data",
        "ip": _HOST,
        "ip.bind": _HOST,
        "bucket": BUCKET,
        "master.telemetry": "false",
        "admin.ui": "false",
        "webdav": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
    }
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [str(program), "mini", *(f"-{name}={value}" for name, value in options.items())],
            env=environ,
            cwd=folder / "home",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    endpoint = f"http://{_HOST}:{ports['s3.port']}"
    try:
        deadline = time.monotonic() + _START_S
        while not (_answers(endpoint) and _has_bucket(endpoint, secret)):
            if time.monotonic() > deadline or server.poll() is not None:
                told = (folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the S3 server did not start: {told}")
            time.sleep(0.1)
        yield {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": _HOST,
            "no_proxy": _HOST,
        }
    finally:
        _stop(server)
        for port in ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def closed_port() -> int:
    """A loopback port on which nothing listens."""
    with socket.socket() as one:
        one.bind((_HOST, 0))
        return int(one.getsockname()[1])


def _free_ports() -> dict[str, int]:
    with contextlib.ExitStack() as held:

        def bind(port: int) -> int:
            one = held.enter_context(socket.socket())
            one.bind((_HOST, port))
            return int(one.getsockname()[1])

        ports = {name: bind(0) for name in _PORT_OPTIONS}
        # In any order: another test process may be choosing at the same moment.
        for candidate in random.sample(range(20_000, 30_000), 10_000):
            with contextlib.suppress(OSError):
                ports["admin.port"] = bind(candidate)
                ports["admin.port.grpc"] = bind(candidate + _ADMIN_GRPC_OFFSET)
                return ports
    raise RuntimeError("no free ports for the S3 server")


def _answers(endpoint: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"{endpoint}/{BUCKET}", timeout=2).close()
    except urllib.error.HTTPError as error:
        error.close()
        # Before its filer is up the server answers 5xx; a refusal means that it works.
        return error.code in (401, 403)
    except OSError:
        pass
    return False


def _has_bucket(endpoint: str, secret: str) -> bool:
    """It is made a moment after the server first answers."""
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key=secret,
        config=Config(proxies={}, s3={"addressing_style": "path"}),
    )
    try:
        client.head_bucket(Bucket=BUCKET)
    except (BotoCoreError, ClientError):
        return False
    finally:
        client.close()
    return True


def _stop(server: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait(timeout=20)
