"""Clients of other AWS services than S3: made when they are first needed, with errors in dolmen's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dolmen.base.runtime import cached_property
from dolmen.errors import Error
from dolmen.store.s3 import needing_boto3


class AwsService:
    """A client of one service. Credentials come from the ordinary AWS configuration.

    Args:
        name: that of boto3.
        about: the name of the resource in errors.
        config: time-outs and attempts, as botocore's ``Config`` takes them.
        region: None = that of the AWS configuration, else ``default_region``.
        endpoint: a URL; None = the service's own.
        translate: the exception to raise for an error code and its text; None for codes without a special meaning.
    """

    def __init__(
        self,
        name: str,
        about: str,
        config: Mapping[str, Any],
        *,
        region: str | None = None,
        default_region: str | None = None,
        endpoint: str | None = None,
        translate: Callable[[str, str], Error | None] = lambda code, text: None,
    ) -> None:
        self._name, self._about, self._config = name, about, config
        self._address = {"region": region, "default_region": default_region, "endpoint": endpoint}
        self._translate = translate

    @cached_property
    def client(self) -> Any:
        """The client of boto3. Raises InputError: boto3 is not installed, or the AWS configuration cannot be used."""
        with needing_boto3(self._about):
            from dolmen.store.s3.connection import AwsSession, checking_configuration, make_client
        with checking_configuration():
            session = AwsSession()
        return make_client(session, self._name, self._config, **self._address)

    def ask(self, operation: str, **request: Any) -> Any:
        """Sends a request and returns the response.

        Raises:
            NotFoundError, AccessDeniedError, InputError: refused, and would be again.
            StoreUnavailableError: the service was not reached, or refuses for the moment.
        """
        client = self.client
        from botocore.exceptions import BotoCoreError, ClientError

        from dolmen.store.s3.failures import describe, service_error, status_and_code

        try:
            return getattr(client, operation)(**request)
        except ClientError as error:
            special = self._translate(status_and_code(error)[1], describe(error))
            raise special or service_error(error, self._about) from error
        except BotoCoreError as error:
            raise service_error(error, self._about) from error
