"""A real S3 server for the tests of one file, and a prefix of its own for each test."""

import os

import pytest

from tests.support.s3_server import BUCKET, s3_server


@pytest.fixture(scope="module")
def s3_environment(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as environment:
        yield environment


@pytest.fixture
def s3(s3_environment, monkeypatch, request):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{request.node.name.replace('[', '-').replace(']', '')}"
