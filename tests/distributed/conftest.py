"""One warm rank server for all distributed tests."""

from collections.abc import Iterator

import pytest

from tests.support.ranks import RankServer


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankServer]:
    with RankServer() as server:
        yield server
