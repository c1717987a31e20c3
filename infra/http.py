"""One small HTTP call on loopback.

Costs no third-party import, so that `up` on a running stack answers quickly. Proxies in the
environment are ignored: everything called here is on this machine.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from infra.failures import StackError

OK = 200
FORBIDDEN = 403
NOT_FOUND = 404

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class UnreachableError(StackError):
    """Nobody answered, or the connection broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An HTTP answer, whatever its status."""

    status: int
    body: bytes

    def json(self) -> object:
        """Decode the body as JSON.

        Raises:
            ValueError: the body is not JSON.
        """
        return json.loads(self.body)


def call(
    url: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 10.0,
) -> Response:
    """Send one request and return the answer, also for 4xx and 5xx.

    Args:
        url: absolute http address on loopback.
        method: HTTP verb.
        body: request body, or None.
        headers: extra headers.
        timeout: seconds until the call gives up.

    Raises:
        UnreachableError: no answer within `timeout`.
    """
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}), method=method)
    try:
        with _OPENER.open(request, timeout=timeout) as answer:
            return Response(status=answer.status, body=answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Response(status=error.code, body=error.read())
    except (OSError, TimeoutError) as error:
        raise UnreachableError(f"{method} {url}: {error}") from error
