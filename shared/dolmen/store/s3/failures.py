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

#: 4xx answers to a request that was damaged on its way or came too often: refused as a whole, may be sent again.
#: docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_SEND_AGAIN = {"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"}

#: What creates an object. MinIO denies access to it when a delete empties, and so removes, the folder it goes into at
#: that moment; it is the rename into that folder that failed. A request that is really denied is so every time.
_CREATES = {"PutObject", "CompleteMultipartUpload"}

#: 400 answers that are about who asks.
_WHO = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"}


class RangeEndedError(InputError):
    """The range asked for begins after the object's end (416)."""


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

    In doubt it is UNKNOWN: that costs a read, anything else may cost a commit.
    """
    if not isinstance(error, ClientError):
        if isinstance(error, _NOT_CONNECTED):
            return PutVerdict.NOTHING_LANDED
        return PutVerdict.REFUSED if isinstance(error, (*_NO_CREDENTIALS, ParamValidationError)) else PutVerdict.UNKNOWN
    status, code = status_and_code(error)
    if status == 412 or (status == 404 and code in ("NoSuchKey", "404", "NotFound")):  # 404: If-Match on an absent key
        return PutVerdict.PRECONDITION
    if denied_in_passing(error):
        return PutVerdict.NOTHING_LANDED
    if status in (409, 429) or code in _SEND_AGAIN:  # 409: ConditionalRequestConflict, a race in which nobody won yet
        return PutVerdict.NOTHING_LANDED
    if status == 501 or (400 <= status < 500 and status != 408 and code != "RequestTimeout"):
        return PutVerdict.REFUSED
    return PutVerdict.UNKNOWN


def denied_in_passing(error: BotoCoreError | ClientError) -> bool:
    """Whether access may be denied for this moment only (see ``_CREATES``)."""
    if not isinstance(error, ClientError) or error.operation_name not in _CREATES:
        return False
    headers: Any = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return status_and_code(error) == (403, "AccessDenied") and headers.get("server", "").startswith("MinIO")


def upload_is_gone(error: BotoCoreError | ClientError) -> bool:
    """Whether a multipart upload is no more: completed, or aborted."""
    return isinstance(error, ClientError) and status_and_code(error)[1] == "NoSuchUpload"


def hide_credentials(error: BaseException | None) -> None:
    """Takes user names and passwords out of the URLs in the text of an error of botocore, and of those behind it: they
    stand in tracebacks, below the error of dolmen that says the same."""
    while error is not None:
        error.args = tuple(without_credentials(each) if isinstance(each, str) else each for each in error.args)
        told = getattr(error, "kwargs", None)
        if isinstance(told, dict):
            told.update({name: without_credentials(each) for name, each in told.items() if isinstance(each, str)})
        error = error.__cause__ or error.__context__


def describe(error: BotoCoreError | ClientError) -> str:
    hide_credentials(error)
    if isinstance(error, ClientError):
        status, code = status_and_code(error)
        message = error.response.get("Error", {}).get("Message", "")
        return f"{status} {code}: {message}" if message else f"{status} {code}"
    return str(error)


def translated(
    error: BotoCoreError | ClientError, bucket: str, key: str, *, conditional: bool = False, version: str | None = None
) -> Error:
    """The exception to raise for an error that is final.

    Args:
        key: as the caller named it, without the store's prefix.
        conditional: the request was to be answered only for a certain ETag.
        version: the version asked for, if any.
    """
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
        return NotFoundError(f"there is no bucket {bucket!r} at this endpoint; create it first, or look at the URL")
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
    if status == 412 and conditional:
        return ObjectChangedError(key)
    if status in (401, 403) or code in _WHO:
        text = text.rstrip(".")
        return AccessDeniedError(
            f"bucket {bucket!r}, {key!r}: {text}. Without s3:ListBucket, S3 answers so for missing objects too"
            if status == 403
            else f"bucket {bucket!r}, {key!r}: {text}"
        )
    if status == 501:
        return InputError(
            f"the server of bucket {bucket!r} lacks what dolmen needs, conditional writes for one: {text}"
        )
    if status >= 500 or status in (408, 409, 429) or code in (*_SEND_AGAIN, "RequestTimeout"):
        return StoreUnavailableError(f"bucket {bucket!r} refuses for the moment: {text}")
    return InputError(f"bucket {bucket!r}, {key!r}: refused: {text}")


def service_error(error: BotoCoreError | ClientError, about: str) -> Error:
    """The exception to raise for an error of another AWS service than S3.

    Args:
        about: what the message calls the resource that was asked.
    """
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
    if status in (401, 403) or "AccessDenied" in code or code in _WHO:
        return AccessDeniedError(f"{about}: {text}")
    if status >= 500 or status in (408, 429) or "Throttl" in code:
        return StoreUnavailableError(f"{about} refuses for the moment: {text}")
    return InputError(f"{about} refuses: {text}")
