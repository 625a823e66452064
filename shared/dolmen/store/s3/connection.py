"""The connection to S3, from the ordinary AWS configuration, and a faster way to send GETs of objects.

The address of a bucket and the headers of a request to it are the same for all its objects, but botocore determines
them again for each request, which takes most of a request's processor time. So only the first GET of each bucket goes
through botocore's client; the others follow its pattern.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Any, Protocol
from urllib.parse import quote, urlsplit
from weakref import WeakValueDictionary

import msgspec
from botocore.awsrequest import AWSPreparedRequest, HeadersDict
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ResponseStreamingError
from botocore.hooks import first_non_none_response
from botocore.httpchecksum import handle_checksum_body
from botocore.loaders import JSONFileLoader
from botocore.parsers import create_parser
from botocore.response import StreamingBody
from botocore.session import get_session
from urllib3.exceptions import HTTPError

from dolmen.base.runtime import Instant, PerProcess, Runtime
from dolmen.base.units import SECOND_US
from dolmen.errors import InputError, short_repr
from dolmen.store.base import ServerClock
from dolmen.store.s3 import aws_environment
from dolmen.store.s3.failures import hide_credentials

ALGORITHM = "AWS4-HMAC-SHA256"


class Credentials(Protocol):
    """Keys from botocore, all of one moment."""

    access_key: str
    secret_key: str
    token: str | None


class Signer:
    """Signs GETs to one service in one region with AWS Signature Version 4. Safe to use from several threads.

    See docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html.
    """

    def __init__(self, region: str, service: str) -> None:
        self._region, self._service = region, service
        self._day_key: tuple[str, str, bytes] = ("", "", b"")

    def authorization(self, credentials: Credentials, path: str, headers: Mapping[str, str]) -> str:
        """The value of the header ``Authorization`` of a GET.

        ``headers``: the signed headers by lower-case name, with ``host``, ``x-amz-date`` and ``x-amz-content-sha256``.
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
        last_secret, last_day, key = self._day_key
        if (last_secret, last_day) != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day_key = secret, day, key
        return key


_AUTHORIZATION = re.compile(
    rf"{ALGORITHM} Credential=.+/[0-9]{{8}}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, "
    r"SignedHeaders=(?P<signed>[^,]+), Signature=[0-9a-f]{64}"
)

_PER_REQUEST = {
    "authorization", "x-amz-date", "x-amz-security-token", "range", "if-match", "amz-sdk-invocation-id",
    "amz-sdk-request", "x-amzn-trace-id",
}  # fmt: skip
"""Headers of a single request: made for each request, or needed only by AWS's support."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


def quote_key(key: str) -> str:
    return quote(key, safe="/~")


@dataclass(frozen=True)
class RequestPattern:
    """The common part of all GETs of a bucket's objects."""

    # url, path: up to the key; the path begins after the host
    url: str
    path: str
    headers: Mapping[str, str]  # sent with each
    # headers that the signature covers, by lower-case name, without the ones that differ by request
    signed: Mapping[str, str]
    signer: Signer

    @classmethod
    def of(cls, request: Any, key: str, credentials: Credentials) -> RequestPattern | None:
        """The pattern of a GET that botocore has sent; None if ``Signer`` makes another signature.

        Then botocore sends all requests itself.
        """
        common = {name: _text(value) for name, value in request.headers.items()}
        headers = {name.lower(): value for name, value in common.items()}
        match = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        end = "/" + quote_key(key)
        if request.method != "GET" or request.body or match is None or not request.url.endswith(end):
            return None
        url = request.url[: 1 - len(end)]
        path, host = urlsplit(url).path, _host(url)
        names = match["signed"].split(";")
        signer = Signer(match["region"], match["service"])
        sent = {"host": host, **headers}
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= {*names} <= sent.keys():
            return None
        mine = signer.authorization(credentials, path + quote_key(key), {name: sent[name] for name in names})
        if mine != headers["authorization"]:
            return None
        common = {name: value for name, value in common.items() if name.lower() not in _PER_REQUEST}
        signed = {name: sent[name] for name in names if name not in _PER_REQUEST}
        return cls(url, path, common, signed, signer)

    def request(self, key: str, conditions: Mapping[str, str], credentials: Credentials, moment: str) -> Any:
        """A signed GET of an object, as botocore's session sends it.

        Args:
            conditions: the headers ``Range`` and ``If-Match``, if it has them.
            moment: the current time, in the form of ``X-Amz-Date``.
        """
        request_headers = {**conditions, "X-Amz-Date": moment}
        if credentials.token:
            request_headers["X-Amz-Security-Token"] = credentials.token
        end = quote_key(key)
        signed = {**self.signed, **{name.lower(): value for name, value in request_headers.items()}}
        request_headers["Authorization"] = self.signer.authorization(credentials, self.path + end, signed)
        headers = HeadersDict({**self.headers, **request_headers})
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
_PLAIN_FIELDS = {"Bucket", "Key", *_CONDITIONS}

_FINAL = {404, 412, 416, 429}
"""Responses about the object or the server's load. All others (redirections, refused signatures, missing rights) may
be about the pattern, too: then the client sends the request again."""


class ObjectReader:
    """Sends GETs of objects. Responses and errors are as from the client's ``get_object``, as far as stores use them.

    The client's own session sends the requests (its connections, proxies, certificates, time-outs), the session's
    credentials sign them, and handlers of ``before-send`` see them.

    Args:
        credentials: returns the session's, refreshed when that is due.
        runtime: its clock is the time for signatures.
        observe: is called with the header ``Date`` of each response that the client does not see, and the time at which
            the request was sent.
    """

    def __init__(
        self, client: Any, credentials: Callable[[], Any], runtime: Runtime, observe: Callable[[str, Instant], None]
    ) -> None:
        self._client, self._credentials, self._runtime, self._observe = client, credentials, runtime, observe
        self._patterns: dict[str, tuple[RequestPattern, dict[str, Any]]] = {}
        self._last_sent = threading.local()
        self._http: Any = getattr(getattr(client, "_endpoint", None), "http_session", None)
        client.meta.events.register(f"before-call.s3.{_OPERATION}", self._keep_context)
        client.meta.events.register(f"before-send.s3.{_OPERATION}", self._keep_request)

    def get_object(self, **request: Any) -> dict[str, Any]:
        """Sends a GET, once. The response's body is a stream. Raises ClientError, BotoCoreError: as the client does."""
        bucket = request["Bucket"]
        has_pattern = request.keys() <= _PLAIN_FIELDS and request.get("IfMatch", "").isascii()
        if has_pattern and (pattern_and_context := self._patterns.get(bucket)):
            response = self._ask(request, *pattern_and_context)
            if response is not None:
                return response
            self._patterns.pop(bucket, None)
        self._last_sent.request = self._last_sent.context = None
        result: dict[str, Any] = self._client.get_object(**request)
        if has_pattern and self._http is not None and self._last_sent.request is not None:
            credentials = self._credentials()
            pattern = credentials and RequestPattern.of(self._last_sent.request, request["Key"], credentials)
            if pattern:
                self._patterns[bucket] = pattern, {"checksum": (self._last_sent.context or {}).get("checksum", {})}
        return result

    def _ask(self, request: dict[str, Any], pattern: RequestPattern, context: dict[str, Any]) -> dict[str, Any] | None:
        """Sends a GET by a pattern; None if the response may mean that the pattern is wrong."""
        conditions = {header: request[name] for name, header in _CONDITIONS.items() if name in request}
        sent = self._runtime.instant()
        moment = _moment(sent.clock_us // SECOND_US)
        prepared = pattern.request(request["Key"], conditions, self._credentials(), moment)
        handled = self._client.meta.events.emit(f"before-send.s3.{_OPERATION}", request=prepared)
        http = first_non_none_response(handled) or self._http.send(prepared)
        if date := http.headers.get("date"):
            self._observe(date, sent)
        operation = self._client.meta.service_model.operation_model(_OPERATION)
        response: dict[str, Any] = {
            "headers": http.headers,
            "status_code": http.status_code,
            "context": {"operation_name": _OPERATION},
            "body": StreamingBody(http.raw, http.headers.get("content-length")),
        }
        if http.status_code in (200, 206):
            if any(name.lower().startswith("x-amz-checksum-") for name in http.headers):
                handle_checksum_body(http, response, context, operation)
            result = {"Body": response["body"], "ETag": http.headers["etag"]}
            if "content-range" in http.headers:
                result["ContentRange"] = http.headers["content-range"]
            return result
        response["body"] = response["body"].read()
        if http.status_code not in _FINAL and http.status_code < 500:
            return None
        parser = create_parser(operation.service_model.resolved_protocol)
        raise ClientError(parser.parse(response, operation.output_shape), _OPERATION)

    def _keep_context(self, context: dict[str, Any], **_event: Any) -> None:
        self._last_sent.context = context

    def _keep_request(self, request: Any, **_event: Any) -> None:
        self._last_sent.request = request


@lru_cache(maxsize=4)
def _moment(seconds: int) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))


_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)")


def read_body(response: Mapping[str, Any], byte_range: str | None) -> bytes:
    """Reads a response's body to its end.

    ``byte_range``: the header ``Range`` of the request. Raises BotoCoreError: it broke off, its checksum differs, or it
    is another range.
    """
    try:
        body: bytes = response["Body"].read()
    except HTTPError as error:  # botocore translates only some of them
        raise ResponseStreamingError(error=error) from error
    content_range = response.get("ContentRange")
    if byte_range is None and content_range is None:
        return body
    first, last = (int(end) for end in (byte_range or "bytes=0-0").removeprefix("bytes=").split("-"))
    if content_range is None:  # the server knows no ranges, which HTTP allows, and has sent the whole object
        return body[first : last + 1]
    match = _CONTENT_RANGE.fullmatch(content_range)
    if byte_range is not None and match is not None:
        start, end, size = int(match[1]), int(match[2]), match[3]
        ends = end == last or (end < last and size in ("*", str(end + 1)))
        if start == first and ends and len(body) == end + 1 - start:
            return body
    raise ResponseStreamingError(
        error=f"{len(body)} bytes came as {content_range!r}, and the request was for {byte_range or 'all'!r}"
    )


TIMEOUTS = {"connect": ("DOLMEN_S3_CONNECT_TIMEOUT", 5.0), "read": ("DOLMEN_S3_READ_TIMEOUT", 30.0)}
"""Seconds to wait for a connection, and for each response or part of one, with the variables that change them."""
_SENT = "dolmen_sent"  # the member of a request's context with the time of sending
_SECRETS = {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"}
_creating = threading.Lock()  # making clients from one boto3 session is not thread-safe


@dataclass(frozen=True)
class Connection:
    """A botocore client and its clock."""

    # sends each request once. S3Store repeats what may be repeated; botocore would repeat conditional puts too, which
    # can then meet their own earlier success and be reported as failures.
    client: Any
    clock: ServerClock  # fed with the ``Date`` of every response, errors included
    reader: ObjectReader | None = None  # sends GETs of objects in less processor time; None leaves them to the client
    # tells endpoints and accounts apart. A text if it is the same in other processes.
    identity: Hashable = field(default_factory=object)

    def send(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request once. Responses and errors are as from boto3's method ``operation``."""
        sender = self.reader if self.reader and operation == "get_object" else self.client
        try:
            response: dict[str, Any] = getattr(sender, operation)(**request)
        except HTTPError as error:  # the body of an error's response broke off, which botocore does not translate
            raise ResponseStreamingError(error=error) from error
        return response


@dataclass(frozen=True)
class StorageOptions:
    """Settings of one handle, instead of the process's AWS configuration. Its ``repr`` shows none of them."""

    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = field(default=None, repr=False)
    endpoint_url: str | None = field(default=None, repr=False)
    profile: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StorageOptions:
        """Reads options by their names, in any case, with or without ``aws_``. Raises InputError, without a value."""
        if not isinstance(options, Mapping):
            raise InputError(f"storage_options is a {type(options).__name__}: give a mapping of names to texts")
        found: dict[str, str] = {}
        for key, value in options.items():
            name = str(key).lower().removeprefix("aws_")
            name = "region" if name == "default_region" else name
            if name not in cls.__dataclass_fields__ or name in found:
                known = ", ".join(f"aws_{each}" for each in cls.__dataclass_fields__)
                raise InputError(f"storage_options: {short_repr(key)} is unknown or given twice; there are {known}")
            if not isinstance(value, str) or not value:
                raise InputError(f"storage_options: {key} is not text")
            found[name] = value
        if ("access_key_id" in found) != ("secret_access_key" in found):
            raise InputError("storage_options: aws_access_key_id and aws_secret_access_key go together")
        if "session_token" in found and "access_key_id" not in found:
            raise InputError("storage_options: aws_session_token goes with aws_access_key_id")
        return cls(**found)

    def connect(self, runtime: Runtime) -> Connection:
        """The connection of all stores with these options, while there is one. Raises InputError."""
        key = runtime, self, _environment(), os.getpid()
        shared = _connections_by_options.get(key)
        return shared or _connections_by_options.setdefault(key, self._connect(runtime))

    def _connect(self, runtime: Runtime) -> Connection:
        with checking_configuration("storage_options"):
            session = AwsSession(
                aws_access_key_id=self.access_key_id,
                aws_secret_access_key=self.secret_access_key,
                aws_session_token=self.session_token,
                region_name=self.region,
                profile_name=self.profile,
            )
        settings = (self.access_key_id, self.profile, _account(_environment()))
        return _make(runtime, session, self.endpoint_url, account=settings)


@contextmanager
def checking_configuration(what: str = "the AWS configuration") -> Iterator[None]:
    """Turns errors of botocore, such as one for a profile that does not exist, into InputError."""
    try:
        yield
    except (BotoCoreError, ValueError) as error:
        hide_credentials(error)
        reason = re.sub(r"\S+@", "***@", str(error))  # as in "Invalid endpoint: user:password@host"
        raise InputError(f"{what} cannot be used: {reason}") from None


_connections_by_options: WeakValueDictionary[Any, Connection] = WeakValueDictionary()
"""Connections by their options, environment and process, and no longer than a store has them."""


class _ModelFiles(JSONFileLoader):  # type: ignore[misc]
    def load_file(self, file_path: str) -> Any:
        for ending, open_file in ((".json", open), (".json.gz", gzip.open)):
            if os.path.isfile(file_path + ending):
                with open_file(file_path + ending, "rb") as file:
                    return msgspec.json.decode(file.read())
        return None


class AwsSession:
    """A session of botocore with the methods of ``boto3.Session`` that stores use.

    boto3 itself imports what its transfers need, which takes a tenth of a second. botocore looks into the folders of
    all services to find one, and reads models with Python's own reader of JSON: both take longer than the rest.
    """

    def __init__(
        self,
        *,
        aws_access_key_id: str | None = None,
        aws_secret_access_key: str | None = None,
        aws_session_token: str | None = None,
        region_name: str | None = None,
        profile_name: str | None = None,
    ) -> None:
        self._session = get_session()
        for name, value in (("profile", profile_name), ("region", region_name)):
            if value is not None:
                self._session.set_config_variable(name, value)
        if aws_access_key_id is not None:
            self._session.set_credentials(aws_access_key_id, aws_secret_access_key, aws_session_token)
        loader = self._session.get_component("data_loader")
        loader.file_loader = _ModelFiles()
        loader.list_available_services = lambda type_name: sorted(_service_names(loader.search_paths))
        self.client: Callable[..., Any] = self._session.create_client

    @property
    def region_name(self) -> str | None:
        name: str | None = self._session.get_config_variable("region")
        return name

    def get_credentials(self) -> Any:
        return self._session.get_credentials()


def _service_names(folders: Iterable[str]) -> set[str]:
    return {name for folder in folders if os.path.isdir(folder) for name in os.listdir(folder)}


def connect(runtime: Runtime, session: Any = None) -> Connection:
    """A connection by the ordinary AWS configuration: environment, profiles, instance roles.

    The region is us-east-1 when none is configured; requests to a configured endpoint (``AWS_ENDPOINT_URL_S3``) have
    path style unless the profile says otherwise. ``session``: a ``boto3.Session`` to take the configuration from; None
    makes one, and shares the connection among stores of the same runtime and environment.
    """
    if session is not None:
        return _make(runtime, session)
    return _shared_connection(runtime, _environment())


def _environment() -> tuple[tuple[str, str], ...]:
    """The part of the environment that a connection depends on."""
    return aws_environment("DOLMEN_S3_", "DOLMEN_BUCKET_OWNERS")


def _account(environment: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The part of the environment that says whose requests a connection sends, without secrets."""
    names = ("AWS_", "HOME", "DOLMEN_BUCKET_OWNERS")
    return tuple(item for item in environment if item[0].startswith(names) and item[0] not in _SECRETS)


@PerProcess
def _shared_connection(runtime: Runtime, environment: tuple[tuple[str, str], ...]) -> Connection:
    with checking_configuration():
        session = AwsSession()
    return _make(runtime, session, account=_account(environment))


def make_client(
    session: Any,
    service: str,
    config: Mapping[str, Any],
    *,
    region: str | None = None,
    default_region: str | None = None,
    endpoint: str | None = None,
) -> Any:
    """A client of botocore. See ``AwsService``. Raises InputError: the AWS configuration cannot be used."""
    with checking_configuration(), _creating:
        region = region or session.region_name or os.environ.get("AWS_REGION") or default_region
        options = Config(**config, user_agent_extra="dolmen")
        return session.client(service, region_name=region, endpoint_url=endpoint, config=options)


def _make(runtime: Runtime, session: Any, endpoint_url: str | None = None, account: Any = None) -> Connection:
    """``account``: equal for connections with the same account settings; None if the caller made the session."""
    clock = ServerClock(runtime)
    config = {
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "connect_timeout": _timeout("connect"),
        "read_timeout": _timeout("read"),
        "max_pool_connections": max(10, 2 * runtime.threads),
        "tcp_keepalive": True,
    }
    client = make_client(session, "s3", config, default_region="us-east-1", endpoint=endpoint_url)
    if owners := bucket_owners(os.environ):
        client.meta.events.register("provide-client-params.s3", partial(_name_owner, owners))
    client.meta.events.register("before-call.s3", lambda **event: _note_sent(clock, event))
    client.meta.events.register("response-received.s3", lambda **event: _observe_response(clock, event))

    def credentials() -> Any:
        session_keys = session.get_credentials()
        return session_keys and session_keys.get_frozen_credentials()

    reader = ObjectReader(client, credentials, runtime, partial(_observe, clock))
    if account is None:
        return Connection(client, clock, reader)
    named = repr((client.meta.endpoint_url, client.meta.region_name, account)).encode()
    return Connection(client, clock, reader, hashlib.sha256(named).hexdigest())


def bucket_owners(environment: Mapping[str, str]) -> dict[str, str]:
    """The accounts that own buckets, by bucket: ``DOLMEN_BUCKET_OWNERS=bucket=111122223333,other=444455556666``.

    Raises InputError: a part of it is not a bucket and account.
    """
    text = environment.get("DOLMEN_BUCKET_OWNERS", "")
    owners: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        bucket, _, account = part.partition("=")
        if not bucket or not re.fullmatch(r"[0-9]{12}", account):
            raise InputError(f"DOLMEN_BUCKET_OWNERS: {part!r} must be a bucket, =, and the 12 digits of an account")
        owners[bucket] = account
    return owners


def _name_owner(owners: Mapping[str, str], params: dict[str, Any], model: Any, **_event: Any) -> dict[str, Any]:
    """Adds ``ExpectedBucketOwner``: S3 then refuses (403) a bucket of this name that belongs to somebody else."""
    account = owners.get(str(params.get("Bucket")))
    if not account:
        return params
    # copies stay within one bucket
    names = {"ExpectedBucketOwner", "ExpectedSourceBucketOwner"} & model.input_shape.members.keys()
    return {**dict.fromkeys(names, account), **params}


def _note_sent(clock: ServerClock, event: Mapping[str, Any]) -> None:
    event["context"][_SENT] = clock.runtime.instant()


def _observe_response(clock: ServerClock, event: Mapping[str, Any]) -> None:
    if date := (event.get("response_dict") or {}).get("headers", {}).get("Date"):
        _observe(clock, date, event["context"][_SENT])


def _observe(clock: ServerClock, date: str, sent: Instant) -> None:
    clock.observe(_seconds(date) * SECOND_US, uncertainty_us=SECOND_US, sent=sent)


@lru_cache(maxsize=64)
def _seconds(date: str) -> int:
    """Seconds since the epoch. Cached, because a busy process gets many responses in each second."""
    return int(parsedate_to_datetime(date).timestamp())


def _timeout(kind: str) -> float:
    variable, default = TIMEOUTS[kind]
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"{variable}={text!r} must be a number of seconds greater than 0")
    return seconds
