"""GETs after the pattern of one that botocore's client has made of the same bucket.

Where a bucket is, how it is addressed, and what headers a request to it has, is the same for all its objects. botocore
finds it out anew for each request, which takes most of a request's processor time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from botocore.awsrequest import AWSPreparedRequest, HeadersDict

from dolmen.store.s3.signature import ALGORITHM, Credentials, Signer

_AUTHORIZATION = re.compile(
    rf"{ALGORITHM} Credential=.+/[0-9]{{8}}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, "
    r"SignedHeaders=(?P<signed>[^,]+), Signature=[0-9a-f]{64}"
)

#: Headers of one request that others don't have: they are made anew, or only name the request to AWS's support.
_OWN = {
    "authorization",
    "x-amz-date",
    "x-amz-security-token",
    "range",
    "if-match",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "x-amzn-trace-id",
}

_DEFAULT_PORTS = {"http": 80, "https": 443}


def quoted(key: str) -> str:
    """A key as it stands in a URL."""
    return quote(key, safe="/~")


@dataclass(frozen=True)
class RequestPattern:
    """The common part of all GETs of a bucket's objects.

    Args:
        url, path: up to the key; the path begins behind the host.
        headers: sent with each.
        signed: headers that the signature covers, by lower-case name, but for those of one request.
        signer: signs as botocore has.
    """

    url: str
    path: str
    headers: Mapping[str, str]
    signed: Mapping[str, str]
    signer: Signer

    @classmethod
    def of(cls, request: Any, key: str, credentials: Credentials) -> RequestPattern | None:
        """The pattern of a request, or None if its signature is not what these credentials sign here.

        So other signatures than version 4, other credentials, and headers that are not signed as here are left to
        botocore.

        Args:
            request: a GET of an object as botocore has sent it.
            key: the object's.
        """
        common = {name: _text(value) for name, value in request.headers.items()}
        headers = {name.lower(): value for name, value in common.items()}
        found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        end = "/" + quoted(key)
        if request.method != "GET" or request.body or found is None or not request.url.endswith(end):
            return None
        url = request.url[: 1 - len(end)]
        path, host = urlsplit(url).path, _host(url)
        names = found["signed"].split(";")
        signer = Signer(found["region"], found["service"])
        sent = {"host": host, **headers}
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= {*names} <= sent.keys():
            return None
        mine = signer.authorization(credentials, path + quoted(key), {name: sent[name] for name in names})
        if mine != headers["authorization"]:
            return None
        common = {name: value for name, value in common.items() if name.lower() not in _OWN}
        signed = {name: sent[name] for name in names if name not in _OWN}
        return cls(url, path, common, signed, signer)

    def request(self, key: str, conditions: Mapping[str, str], credentials: Credentials, moment: str) -> Any:
        """A signed GET of an object, as botocore's session sends it.

        Args:
            conditions: the headers ``Range`` and ``If-Match``, as far as it has them.
            moment: now, as in ``X-Amz-Date``.
        """
        own = {**conditions, "X-Amz-Date": moment}
        if credentials.token:
            own["X-Amz-Security-Token"] = credentials.token
        end = quoted(key)
        signed = {**self.signed, **{name.lower(): value for name, value in own.items()}}
        own["Authorization"] = self.signer.authorization(credentials, self.path + end, signed)
        headers = HeadersDict({**self.headers, **own})
        return AWSPreparedRequest("GET", self.url + end, headers, None, True)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _host(url: str) -> str:
    """The header ``Host`` of requests to a URL."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return host.removesuffix(f":{_DEFAULT_PORTS.get(parts.scheme)}")
