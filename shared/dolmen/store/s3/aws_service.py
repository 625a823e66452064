"""Clients of other AWS services than S3: made when they are first needed, with errors in dolmen's words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from dolmen.base.runtime import cached_property
from dolmen.errors import Error, InputError


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
        self._region, self._default_region, self._endpoint = region, default_region, endpoint
        self._translate = translate

    @cached_property
    def client(self) -> Any:
        """The client of boto3. Raises InputError: boto3 is not installed, or the AWS configuration cannot be used."""
        try:
            from botocore.config import Config  # an extra, and slow to import
            from botocore.exceptions import BotoCoreError

            from dolmen.store.s3.connection import AwsSession
        except ModuleNotFoundError as error:
            raise InputError(f"{self._about} needs boto3: pip install 'dolmen[aws]'") from error
        try:
            session = AwsSession()
            region = self._region or session.region_name or os.environ.get("AWS_REGION") or self._default_region
            config = Config(**self._config, user_agent_extra="dolmen")
            return session.client(self._name, region_name=region, endpoint_url=self._endpoint, config=config)
        except (BotoCoreError, ValueError) as error:
            from dolmen.store.s3.failures import hide_credentials

            hide_credentials(error)
            raise InputError(f"the AWS configuration cannot be used: {error}") from error

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
