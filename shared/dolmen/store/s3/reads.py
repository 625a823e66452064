"""Sends GETs of objects: the first of each bucket through botocore's client, the others after its pattern.

GETs after the pattern of one that botocore's client has made of the same bucket.

Where a bucket is, how it is addressed, and what headers a request to it has, is the same for all its objects. botocore
finds it out again for each request, which takes most of a request's processor time.

AWS Signature Version 4 of a GET, which has no body.

docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html

The body of an answer to a GET: whole, and of the range that was asked for.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from botocore.awsrequest import AWSPreparedRequest, HeadersDict
from botocore.exceptions import ClientError, ResponseStreamingError
from botocore.hooks import first_non_none_response
from botocore.httpchecksum import handle_checksum_body
from botocore.parsers import create_parser
from botocore.response import StreamingBody
from urllib3.exceptions import HTTPError

from dolmen.base.runtime import Instant, Runtime
from dolmen.base.units import SECOND_US

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


_AUTHORIZATION = re.compile(
    rf"{ALGORITHM} Credential=.+/[0-9]{{8}}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, "
    r"SignedHeaders=(?P<signed>[^,]+), Signature=[0-9a-f]{64}"
)


#: Headers of one request that others don't have: they are made again, or only name the request to AWS's support.
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


_OPERATION = "GetObject"


_CONDITIONS = {"Range": "Range", "IfMatch": "If-Match"}


_KNOWN = {"Bucket", "Key", *_CONDITIONS}


#: Answers that say something of the object or of the server's load. All others, redirections, a signature that is not
#: accepted or rights that are missing, are about the pattern, too: the client then asks again.
_FINAL = {404, 412, 416, 429}


class ObjectReader:
    """Asks for objects. Answers and errors are those of the client's ``get_object``, as far as stores look at them.

    The client's own session sends the requests (its connections, proxies, certificates, time-outs), the session's
    credentials sign them, and handlers of ``before-send`` see them.

    Args:
        client: botocore's, of S3.
        credentials: gives the session's, refreshed when that is due.
        runtime: its clock is the time for signatures.
        observe: gets the header ``Date`` of each answer that the client has not seen, and when the request was sent.
    """

    def __init__(
        self,
        client: Any,
        credentials: Callable[[], Any],
        runtime: Runtime,
        observe: Callable[[str, Instant], None],
    ) -> None:
        self._client, self._credentials, self._runtime, self._observe = client, credentials, runtime, observe
        self._patterns: dict[str, tuple[RequestPattern, dict[str, Any]]] = {}
        self._seen = threading.local()
        self._http: Any = getattr(getattr(client, "_endpoint", None), "http_session", None)
        client.meta.events.register(f"before-call.s3.{_OPERATION}", self._see_context)
        client.meta.events.register(f"before-send.s3.{_OPERATION}", self._see_request)

    def get_object(self, **request: Any) -> dict[str, Any]:
        """Asks for an object, once. The answer's body is a stream.

        Raises:
            ClientError, BotoCoreError: as the client does.
        """
        bucket = request["Bucket"]
        plain = request.keys() <= _KNOWN and request.get("IfMatch", "").isascii()
        if plain and (known := self._patterns.get(bucket)):
            answer = self._ask(request, *known)
            if answer is not None:
                return answer
            self._patterns.pop(bucket, None)
        self._seen.request = self._seen.context = None
        asked: dict[str, Any] = self._client.get_object(**request)
        if plain and self._http is not None and self._seen.request is not None:
            credentials = self._credentials()
            pattern = credentials and RequestPattern.of(self._seen.request, request["Key"], credentials)
            if pattern:
                self._patterns[bucket] = pattern, {"checksum": (self._seen.context or {}).get("checksum", {})}
        return asked

    def _ask(self, request: dict[str, Any], pattern: RequestPattern, context: dict[str, Any]) -> dict[str, Any] | None:
        """Asks after a pattern; None if the answer says that the pattern may be wrong."""
        conditions = {header: request[name] for name, header in _CONDITIONS.items() if name in request}
        sent = self._runtime.instant()
        moment = _moment(sent.clock_us // SECOND_US)
        prepared = pattern.request(request["Key"], conditions, self._credentials(), moment)
        told = self._client.meta.events.emit(f"before-send.s3.{_OPERATION}", request=prepared)
        http = first_non_none_response(told) or self._http.send(prepared)
        if date := http.headers.get("date"):
            self._observe(date, sent)
        operation = self._client.meta.service_model.operation_model(_OPERATION)
        answer: dict[str, Any] = {
            "headers": http.headers,
            "status_code": http.status_code,
            "context": {"operation_name": _OPERATION},
            "body": StreamingBody(http.raw, http.headers.get("content-length")),
        }
        if http.status_code in (200, 206):
            if any(name.lower().startswith("x-amz-checksum-") for name in http.headers):
                handle_checksum_body(http, answer, context, operation)
            found = {"Body": answer["body"], "ETag": http.headers["etag"]}
            if "content-range" in http.headers:
                found["ContentRange"] = http.headers["content-range"]
            return found
        answer["body"] = answer["body"].read()
        if http.status_code not in _FINAL and http.status_code < 500:
            return None
        parser = create_parser(operation.service_model.resolved_protocol)
        raise ClientError(parser.parse(answer, operation.output_shape), _OPERATION)

    def _see_context(self, context: dict[str, Any], **_event: Any) -> None:
        self._seen.context = context

    def _see_request(self, request: Any, **_event: Any) -> None:
        self._seen.request = request


@lru_cache(maxsize=4)
def _moment(seconds: int) -> str:
    """A time since the epoch as signatures have it."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))


_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)")


def read_body(answer: Mapping[str, Any], asked: str | None) -> bytes:
    """Reads an answer's body to its end.

    Args:
        answer: as boto3 gives it.
        asked: the header ``Range`` of the request.

    Raises:
        BotoCoreError: it broke off, its checksum differs, or it is not what was asked for.
    """
    try:
        body: bytes = answer["Body"].read()
    except HTTPError as error:  # botocore translates only some of them
        raise ResponseStreamingError(error=error) from error
    got = answer.get("ContentRange")
    if asked is None and got is None:
        return body
    first, last = (int(end) for end in (asked or "bytes=0-0").removeprefix("bytes=").split("-"))
    if got is None:  # the server knows no ranges, which HTTP allows, and has sent the whole object
        return body[first : last + 1]
    found = _CONTENT_RANGE.fullmatch(got)
    if asked is not None and found is not None:
        start, end, size = int(found[1]), int(found[2]), found[3]
        ends = end == last or (end < last and size in ("*", str(end + 1)))
        if start == first and ends and len(body) == end + 1 - start:
            return body
    raise ResponseStreamingError(error=f"{len(body)} bytes came as {got!r}, and {asked or 'all'!r} was asked for")
