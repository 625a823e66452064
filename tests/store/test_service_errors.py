"""Errors of AWS services beside S3, in dolmen's words."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from dolmen.errors import AccessDeniedError, Error, InputError, NotFoundError, StoreUnavailableError
from dolmen.store.s3.failures import service_error


def refused(status: int, code: str) -> ClientError:
    answer = {"Error": {"Code": code, "Message": "so it is"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "SendMessage")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "ResourceNotFoundException", NotFoundError),
        (403, "AccessDenied", AccessDeniedError),
        (400, "AccessDeniedException", AccessDeniedError),
        (400, "ExpiredToken", AccessDeniedError),
        (503, "ServiceUnavailable", StoreUnavailableError),
        (429, "TooManyRequests", StoreUnavailableError),
        (400, "ThrottlingException", StoreUnavailableError),
        (400, "ValidationException", InputError),
    ],
)
def test_a_refusal_is_named_by_what_the_caller_can_do_about_it(status: int, code: str, kind: type[Error]) -> None:
    error = service_error(refused(status, code), "the queue")
    assert type(error) is kind
    assert str(error).startswith("the queue")
    assert code in str(error)


def test_a_service_that_is_not_reached_may_be_asked_again_and_its_credentials_are_not_shown() -> None:
    error = service_error(EndpointConnectionError(endpoint_url="http://ann:secret@host/queue"), "the queue")
    assert type(error) is StoreUnavailableError
    assert "secret" not in str(error)
    assert type(service_error(NoCredentialsError(), "the queue")) is AccessDeniedError
