"""Environment variables: what the components get, and what a user's shell needs.

The components get a cleaned copy of the caller's environment. Variables of Prefect, AWS and
SeaweedFS that point elsewhere (an API key, a profile, a session token, another database) must not
reach them, or a run would write to somebody's real account.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from infra.ports import LOOPBACK
from infra.s3_credentials import Credentials
from infra.state import Layout

BUCKET = "megapack"
REGION = "us-east-1"  # SeaweedFS ignores it, but polars' S3 client insists on one

_DROPPED_PREFIXES = ("PREFECT_", "AWS_", "WEED_", "S3_", "MEGAPACK_")
_KEPT = ("AWS_CA_BUNDLE", "PREFECT_LOGGING_LEVEL", "PREFECT_LOGGING_SERVER_LEVEL")
# Without bytecode files each Prefect process compiles the whole package again: about 6 s.
_DROPPED = ("PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH", "VIRTUAL_ENV_PROMPT")


def inherited(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without what would lead the components astray."""
    source = os.environ if environ is None else environ
    kept = {
        name: value
        for name, value in source.items()
        if name in _KEPT or not (name.startswith(_DROPPED_PREFIXES) or name in _DROPPED)
    }
    return {**kept, **no_proxy(source)}


def no_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """NO_PROXY in both spellings, with loopback added to what is there."""
    present = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    hosts = [host for host in present.split(",") if host]
    hosts += [host for host in (LOOPBACK, "localhost") if host not in hosts]
    return dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(hosts))


def store_endpoint(port: int) -> str:
    """Address of the S3 endpoint."""
    return f"http://{LOOPBACK}:{port}"


def prefect_api(port: int) -> str:
    """Address of the Prefect API."""
    return f"http://{LOOPBACK}:{port}/api"


def store_variables(credentials: Credentials, *, s3_port: int) -> dict[str, str]:
    """What s3fs, boto3 and polars read to reach the store, and where megapack keeps its data."""
    return {
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_ENDPOINT_URL": store_endpoint(s3_port),
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ALLOW_HTTP": "true",  # polars refuses plain http without it
        "AWS_EC2_METADATA_DISABLED": "true",
        "MEGAPACK_STORE": f"s3://{BUCKET}",
    }


def client_variables(layout: Layout, *, prefect_port: int) -> dict[str, str]:
    """What a Prefect client of this stack needs: the API, its own home, no telemetry."""
    return {
        "PREFECT_API_URL": prefect_api(prefect_port),
        "PREFECT_HOME": str(layout.prefect_home),
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MEGAPACK_ROOT": str(layout.root),
    }


def code_variables(layout: Layout, environ: Mapping[str, str]) -> dict[str, str]:
    """Make the project's packages and the virtual environment's programs reachable."""
    paths = [str(layout.root), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    programs = str(Path(sys.executable).parent)
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PATH": os.pathsep.join((programs, environ.get("PATH", os.defpath))),
    }
