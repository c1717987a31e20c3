import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from megapack.store.s3_failures import code_of, explain


def _answer(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "multi\n  line"}}, "GetObject")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_answer("NoSuchBucket"), "there is no such bucket. Create it"),
        (_answer("SignatureDoesNotMatch"), "Check AWS_SECRET_ACCESS_KEY"),
        (_answer("InvalidAccessKeyId"), "Check AWS_ACCESS_KEY_ID"),
        (_answer("403"), "the bucket's policy"),
        (_answer("SlowDown"), "(SlowDown) when calling the GetObject operation: multi line."),
        (NoCredentialsError(), "expected S3 credentials, found none"),
        (EndpointConnectionError(endpoint_url="http://h:1"), "the endpoint does not answer"),
        (TimeoutError(), "the endpoint does not answer (TimeoutError)"),
    ],
)
def test_explain_is_one_line_with_place_and_advice(error, expected):
    line = explain(error, action="read", key="latest.json", uri="s3://b/p")
    assert line.startswith("s3://b/p: could not read latest.json: ")
    assert expected in line
    assert "\n" not in line


def test_code_of_other_errors_is_empty():
    assert code_of(_answer("404")) == "404"
    assert code_of(TimeoutError()) == ""
