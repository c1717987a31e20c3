"""One clear line for what an S3 store answers, or does not answer."""

from botocore import exceptions  # type: ignore[import-untyped]

_ADVICE = {
    "SignatureDoesNotMatch": "the secret key is wrong. Check AWS_SECRET_ACCESS_KEY",
    "InvalidAccessKeyId": "the access key is not known there. Check AWS_ACCESS_KEY_ID",
    "AccessDenied": "the key may not do this. Check the bucket's policy and the AWS_* variables",
    "403": "the keys are wrong or may not do this. Check AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY and the bucket's policy",
    "NoSuchBucket": "there is no such bucket. Create it, or check the uri and AWS_ENDPOINT_URL",
    "ExpiredToken": "the session token has expired. Renew the credentials",
    "RequestTimeTooSkewed": "the clocks differ too much. Set this machine's clock",
    "PreconditionFailed": "an object is there already",
}

_UNANSWERED = (exceptions.ConnectionError, exceptions.HTTPClientError, TimeoutError)


def code_of(error: BaseException) -> str:
    """The S3 error code, or the HTTP status when the answer had no body; "" for other errors."""
    if isinstance(error, exceptions.ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return ""


def explain(error: BaseException, *, action: str, key: str, uri: str) -> str:
    """What was tried, where, what came back, and what to change, in one line.

    Args:
        error: what botocore or s3fs raised.
        action: verb.
        key: the key it was about.
        uri: the location.
    """
    where = f"{uri}: could not {action} {key}: "
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return where + (
            "expected S3 credentials, found none. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if isinstance(error, _UNANSWERED):
        return where + (
            f"the endpoint does not answer ({_one_line(error)}). Check AWS_ENDPOINT_URL and that "
            "the store runs."
        )
    code = code_of(error)
    if code in _ADVICE:
        return f"{where}{_ADVICE[code]} (the store answered {code})."
    checked = "the store and the AWS_* variables"
    if not uri.startswith("s3://"):
        checked = "the path, its permissions and the disk"
    return f"{where}{_one_line(error)}. Check {checked}."


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
