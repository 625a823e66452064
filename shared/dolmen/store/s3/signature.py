"""AWS Signature Version 4 of a GET, which has no body.

docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Protocol

ALGORITHM = "AWS4-HMAC-SHA256"


class Credentials(Protocol):
    """Keys as botocore gives them, all of one moment."""

    access_key: str
    secret_key: str
    token: str | None


class Signer:
    """Signs requests to one service in one region. Safe to use from several threads.

    Args:
        region, service: as the signature names them.
    """

    def __init__(self, region: str, service: str) -> None:
        self._region, self._service = region, service
        self._derived: tuple[str, str, bytes] = ("", "", b"")

    def authorization(self, credentials: Credentials, path: str, headers: Mapping[str, str]) -> str:
        """The value of the header ``Authorization`` of a GET.

        Args:
            path: of the URL, as it is sent.
            headers: those that are signed, by lower-case name, ``host``, ``x-amz-date`` and ``x-amz-content-sha256``
                among them.
        """
        moment = headers["x-amz-date"]
        names = sorted(headers)
        signed = ";".join(names)
        lines = [f"{name}:{' '.join(headers[name].split())}\n" for name in names]
        request = f"GET\n{path}\n\n{''.join(lines)}\n{signed}\n{headers['x-amz-content-sha256']}"
        scope = f"{moment[:8]}/{self._region}/{self._service}/aws4_request"
        text = f"{ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(self._key(credentials.secret_key, moment[:8]), text.encode(), "sha256").hex()
        return f"{ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={signed}, Signature={signature}"

    def _key(self, secret: str, day: str) -> bytes:
        """The key of a day, which is derived once."""
        kept_secret, kept_day, key = self._derived
        if (kept_secret, kept_day) != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._derived = secret, day, key
        return key
