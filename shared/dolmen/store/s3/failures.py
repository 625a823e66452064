"""Translates S3's errors: what they mean for a conditional put (did it land?), and which dolmen error they are."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSOError,
    TokenRetrievalError,
)

from dolmen.errors import (
    AccessDeniedError,
    ClockError,
    Error,
    InputError,
    NotFoundError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
    without_credentials,
)

_NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError, SSOError)
_NOT_CONNECTED = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)

_SEND_AGAIN = {"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}
"""4xx codes of a request that was damaged in transit: refused as a whole, may be sent again.
docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html"""
_CREATES = {"PutObject", "CompleteMultipartUpload"}
"""Operations that create an object. MinIO denies them when a concurrent delete empties, and so removes, their folder. A
request without the right is denied every time."""
_IDENTITY = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"}
"""400 codes about the identity of the sender."""


class RangeEndedError(InputError):
    """The requested range begins after the object's end (416)."""


class PutVerdict(Enum):
    """The meaning of an error for a conditional put."""

    NOTHING_LANDED = auto()  # may be sent again
    PRECONDITION = auto()
    REFUSED = auto()  # for good: raise
    UNKNOWN = auto()


def status_and_code(error: ClientError) -> tuple[int, str]:
    response: Any = error.response
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0), response.get("Error", {}).get("Code", "")


def verdict(error: BotoCoreError | ClientError) -> PutVerdict:
    """Judges what ``error`` means for a conditional PutObject or CompleteMultipartUpload that was sent once.

    In doubt the verdict is UNKNOWN, which costs a read: a wrong verdict may cost a commit.
    """
    if not isinstance(error, ClientError):
        if isinstance(error, _NOT_CONNECTED):
            return PutVerdict.NOTHING_LANDED
        return PutVerdict.REFUSED if isinstance(error, (*_NO_CREDENTIALS, ParamValidationError)) else PutVerdict.UNKNOWN
    status, code = status_and_code(error)
    if status == 412 or (status == 404 and code in ("NoSuchKey", "404", "NotFound")):  # 404: If-Match on an absent key
        return PutVerdict.PRECONDITION
    if is_transient_denial(error):
        return PutVerdict.NOTHING_LANDED
    if status in (409, 429) or code in _SEND_AGAIN:  # 409: ConditionalRequestConflict, a race without a winner yet
        return PutVerdict.NOTHING_LANDED
    if status == 501 or (400 <= status < 500 and status != 408 and code != "RequestTimeout"):
        return PutVerdict.REFUSED
    return PutVerdict.UNKNOWN


def is_transient_denial(error: BotoCoreError | ClientError) -> bool:
    """Whether access may be denied for this moment only (see ``_CREATES``)."""
    if not isinstance(error, ClientError) or error.operation_name not in _CREATES:
        return False
    headers: Any = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return status_and_code(error) == (403, "AccessDenied") and headers.get("server", "").startswith("MinIO")


def has_upload_ended(error: BotoCoreError | ClientError) -> bool:
    """Whether a multipart upload is completed or aborted."""
    return isinstance(error, ClientError) and status_and_code(error)[1] == "NoSuchUpload"


def hide_credentials(error: BaseException | None) -> None:
    """Removes user names and passwords from URLs in a botocore error and its causes: tracebacks show them."""
    while error is not None:
        error.args = tuple(without_credentials(each) if isinstance(each, str) else each for each in error.args)
        kwargs = getattr(error, "kwargs", None)
        if isinstance(kwargs, dict):
            kwargs.update({name: without_credentials(each) for name, each in kwargs.items() if isinstance(each, str)})
        error = error.__cause__ or error.__context__


def describe(error: BotoCoreError | ClientError) -> str:
    hide_credentials(error)
    if isinstance(error, ClientError):
        status, code = status_and_code(error)
        message = error.response.get("Error", {}).get("Message", "")
        return f"{status} {code}: {message}" if message else f"{status} {code}"
    return str(error)


def translate(
    error: BotoCoreError | ClientError,
    bucket: str,
    key: str,
    *,
    is_conditional: bool = False,
    version: str | None = None,
) -> Error:
    """The exception to raise for a final error. ``is_conditional``: the request has an ETag as its condition."""
    text = describe(error)
    if not isinstance(error, ClientError):
        if isinstance(error, _NO_CREDENTIALS):
            return AccessDeniedError(
                f"no AWS credentials for bucket {bucket!r}: {text}. Run 'aws configure', or set AWS_PROFILE, "
                "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if isinstance(error, ParamValidationError):
            return InputError(f"{bucket}: {key!r}: {text}")
        return StoreUnavailableError(f"bucket {bucket!r} cannot be reached: {text}")
    status, code = status_and_code(error)
    if code == "NoSuchBucket":
        return NotFoundError(f"there is no bucket {bucket!r} at this endpoint; create it first, or check the URL")
    if code == "RequestTimeTooSkewed":
        return ClockError(f"S3 refuses requests signed by a clock this wrong; set this machine's clock ({text})")
    if code == "NoSuchUpload":
        return StoreUnavailableError(
            f"bucket {bucket!r}: the upload of {key!r} is gone; a lifecycle rule may abort them"
        )
    no_version = version is not None and status == 400 and code in ("InvalidArgument", "400")  # a HEAD has no code
    if status in (404, 405) or no_version:
        return ObjectNotFoundError(key if version is None else f"{key}?versionId={version}")
    if status == 416:
        return RangeEndedError(text)
    if status == 412 and is_conditional:
        return ObjectChangedError(key)
    if status in (401, 403) or code in _IDENTITY:
        hint = ". Without s3:ListBucket, S3 answers so for missing objects too" if status == 403 else ""
        return AccessDeniedError(f"bucket {bucket!r}, {key!r}: {text.rstrip('.')}{hint}")
    if status == 501:
        return InputError(
            f"the server of bucket {bucket!r} lacks a feature that dolmen needs, such as conditional writes: {text}"
        )
    if status >= 500 or status in (408, 409, 429) or code in (*_SEND_AGAIN, "RequestTimeout"):
        return StoreUnavailableError(f"bucket {bucket!r} refuses for the moment: {text}")
    return InputError(f"bucket {bucket!r}, {key!r}: refused: {text}")


def service_error(error: BotoCoreError | ClientError, about: str) -> Error:
    """The exception to raise for an error of another AWS service than S3; ``about`` names the resource."""
    text = describe(error)
    if not isinstance(error, ClientError):
        if isinstance(error, _NO_CREDENTIALS):
            return AccessDeniedError(f"no AWS credentials for {about}: {text}. Run 'aws configure', or set AWS_*")
        if isinstance(error, ParamValidationError):
            return InputError(f"{about}: {text}")
        return StoreUnavailableError(f"{about} cannot be reached: {text}")
    status, code = status_and_code(error)
    if code == "ResourceNotFoundException":
        return NotFoundError(f"{about}: {text}")
    if status in (401, 403) or "AccessDenied" in code or code in _IDENTITY:
        return AccessDeniedError(f"{about}: {text}")
    if status >= 500 or status in (408, 429) or "Throttl" in code:
        return StoreUnavailableError(f"{about} refuses for the moment: {text}")
    return InputError(f"{about} refuses: {text}")
