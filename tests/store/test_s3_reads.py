"""GETs after the pattern of an earlier one are those that botocore makes, and mean the same when they go wrong."""

from __future__ import annotations

import base64
import io
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.config import Config
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.session import Session

from dolmen.base.runtime import Runtime
from dolmen.errors import (
    AccessDeniedError,
    NotFoundError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from dolmen.store.s3.bucket_store import S3Store
from dolmen.store.s3.connection import RequestPattern, Signer, quote_key
from support.proxy import Proxy
from support.stores import Naps, put, run_in_threads

NAPS = Naps()
RUNTIME = Runtime(sleep=NAPS)
BODY = bytes(range(256)) * 8

#: Keys that are quoted, or that somebody might take for more than a name.
KEYS = [
    "plain.parquet",
    "a b+c%20&=?#é漢😀",
    "../up",
    "./here",
    "two//slashes///",
    "~tilde_-.",
    "quote\"'<>",
    "back\\slash",
    "semi;colon:at@comma,dollar$",
    "(paren)!*",
]


class Seen:
    """Notes the requests of a store's connection as they are sent, and how many of them the client has made."""

    def __init__(self, store: S3Store) -> None:
        self.requests: list[Any] = []
        self.by_client = 0
        self._events = store.connection.client.meta.events
        self._events.register("before-send.s3.GetObject", self._send)
        self._events.register("before-call.s3.GetObject", self._call)

    def end(self) -> None:
        """Notes no more: other tests have the same connection."""
        self._events.unregister("before-send.s3.GetObject", self._send)
        self._events.unregister("before-call.s3.GetObject", self._call)

    def _send(self, request: Any, **_event: Any) -> None:
        self.requests.append(request)

    def _call(self, **_event: Any) -> None:
        self.by_client += 1

    @property
    def signed_for(self) -> list[str]:
        """The credentials and the scope of each request."""
        return [
            _text(request.headers["Authorization"]).split("Credential=")[1].split(",")[0] for request in self.requests
        ]


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _store(url: str, session: Any = None) -> S3Store:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return S3Store(bucket, prefix, runtime=RUNTIME, session=session)


See = Callable[[S3Store], Seen]


@pytest.fixture
def see() -> Iterator[Callable[[S3Store], Seen]]:
    """Begins to note a store's requests."""
    begun: list[Seen] = []

    def begin(store: S3Store) -> Seen:
        begun.append(Seen(store))
        return begun[-1]

    yield begin
    for seen in begun:
        seen.end()


@pytest.fixture
def unknown(proxy: Proxy, s3_url: str) -> S3Store:
    """A store that has no pattern yet: nothing was read in its bucket."""
    NAPS.seconds.clear()
    store = _store(s3_url)
    put(store, "key", BODY)
    proxy.forget_requests()
    return store


@pytest.fixture
def store(unknown: S3Store, proxy: Proxy) -> S3Store:
    """A store that has its pattern: one object was read."""
    assert unknown.get("key").body == BODY
    proxy.forget_requests()
    return unknown


@pytest.fixture(params=["without a pattern", "with its pattern"])
def reader(request: pytest.FixtureRequest, unknown: S3Store) -> S3Store:
    """A store either way."""
    if request.param == "with its pattern":
        request.getfixturevalue("store")
    return unknown


# ---- requests


def test_only_the_first_get_of_a_bucket_is_made_by_the_client(store: S3Store, proxy: Proxy, see: See) -> None:
    seen = see(store)
    etag = store.get("key").etag
    for first in range(10):
        assert store.get("key", (first, first + 7), etag=etag).body == BODY[first : first + 7]
    assert (seen.by_client, len(seen.requests)) == (0, 11)
    wire = [(request.method, request.range, request.condition, request.status) for request in proxy.requests()]
    assert wire == [
        ("GET", None, None, 200),
        *(("GET", f"bytes={first}-{first + 6}", f"If-Match: {etag}", 206) for first in range(10)),
    ]


def test_another_bucket_has_a_pattern_of_its_own(store: S3Store, see: See) -> None:
    other = store.sibling(f"{store.bucket}-other")
    other.connection.client.create_bucket(Bucket=other.bucket)
    put(other, "key", b"another")
    seen = see(store)
    assert [other.get("key").body for _ in range(3)] == [b"another"] * 3
    assert [store.get("key").body for _ in range(3)] == [BODY] * 3
    assert seen.by_client == 1


def test_versions_of_objects_are_read_by_the_client(store: S3Store, see: See) -> None:
    store.connection.client.put_bucket_versioning(Bucket=store.bucket, VersioningConfiguration={"Status": "Enabled"})
    answers = [
        store.connection.client.put_object(Bucket=store.bucket, Key=f"{store.prefix}/key", Body=body)
        for body in (b"one", b"two")
    ]
    seen = see(store)
    for answer, body in zip(answers, (b"one", b"two"), strict=True):
        assert store.get("key", version=answer["VersionId"]).body == body
    assert store.get("key").body == b"two"
    assert (seen.by_client, len(seen.requests)) == (2, 3)


def test_a_server_that_checks_signatures_takes_those_of_any_key(minio_url: str, see: See) -> None:
    store = _store(minio_url, boto3.Session())
    names = [key for key in KEYS if not any(part in key for part in ("../", "./", "//", "\\"))]  # MinIO refuses these
    for name in names:
        put(store, name, name.encode())
    store.get(names[0])
    seen = see(store)
    for name in names:
        assert store.get(name).body == name.encode()
        assert store.get(name, (1, 3)).body == name.encode()[1:3]
    assert (seen.by_client, len(seen.requests)) == (0, 2 * len(names))


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"AWS_ENDPOINT_URL_S3": "http://localhost:9000"},
        {"AWS_ENDPOINT_URL_S3": "https://[::1]:443/behind/a/path"},
        {"AWS_USE_FIPS_ENDPOINT": "true", "AWS_DEFAULT_REGION": "us-west-2"},
        {"AWS_USE_DUALSTACK_ENDPOINT": "true", "AWS_SESSION_TOKEN": "a/token+=="},
        {"AWS_DEFAULT_REGION": "cn-north-1", "DOLMEN_BUCKET_OWNERS": "bucket=111122223333"},
        {"AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required"},
    ],
    ids=lambda environment: "+".join(environment) or "aws",
)
def test_requests_are_those_of_the_client_but_for_what_only_names_them(
    environment: dict[str, str], s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    store = S3Store("bucket", "some prefix", runtime=RUNTIME, session=boto3.Session())
    sent: list[Any] = []

    def answer(request: Any, **_event: Any) -> AWSResponse:
        sent.append(request)
        return _answer(206, b"xx", {"etag": '"1"', "content-range": "bytes 5-6/9"})

    store.connection.client.meta.events.register("before-send.s3.GetObject", answer)
    store.get("another", (5, 7), etag='"1"')
    own = {"authorization", "x-amz-date", "amz-sdk-invocation-id", "amz-sdk-request"}
    frozen = Session().get_credentials().get_frozen_credentials()
    for key in KEYS:
        sent.clear()
        assert store.get(key, (5, 7), etag='"1"').body == b"xx"
        store.connection.client.get_object(Bucket="bucket", Key=f"some prefix/{key}", Range="bytes=5-6", IfMatch='"1"')
        ours, theirs = sent
        assert ours.url == theirs.url
        found, wanted = (
            {name: _text(value) for name, value in request.headers.items() if name.lower() not in own}
            for request in (ours, theirs)
        )
        assert found == wanted
        assert RequestPattern.of(theirs, f"some prefix/{key}", frozen), "botocore signs it in the same way"


def _answer(status: int, body: bytes, headers: dict[str, str]) -> AWSResponse:
    """An answer as a handler of ``before-send`` gives it."""
    raw: Any = io.BytesIO(body)
    return AWSResponse("", status, {**headers, "content-length": str(len(body))}, raw)


def test_a_handler_that_answers_in_the_servers_place_is_heard_each_time(proxy: Proxy, s3_url: str) -> None:
    """So that what stands in for S3 in tests of others (moto, botocore's stubs) stands in for it here."""
    store = _store(s3_url, boto3.Session())
    events = store.connection.client.meta.events
    events.register("before-send.s3.GetObject", lambda **_event: _answer(200, b"theirs", {"etag": '"1"'}))
    assert [store.get("key").body for _ in range(3)] == [b"theirs"] * 3
    assert proxy.requests() == []


def test_signatures_are_those_of_botocore() -> None:
    dice = random.Random(20261)
    letters = "abyzAZ09-_.~ /+%&=é漢😀\"'"
    for _ in range(300):
        word = lambda: "".join(dice.choices(letters, k=dice.randrange(1, 30)))  # noqa: E731
        token = dice.choice([None, word().encode().hex()])
        credentials = Credentials(word(), word(), token)
        region, service, path = (
            dice.choice(["us-east-1", "eu-x"]),
            dice.choice(["s3", "s3-outposts"]),
            quote_key(word()),
        )
        own = {"range": f"bytes=0-{dice.randrange(9)}", "if-match": f'"{word()}"', "x-amz-expected-bucket-owner": "1"}
        request = AWSRequest("GET", f"https://bucket.host:8443/{path}", headers=own)
        request.context = {"client_config": Config()}
        S3SigV4Auth(credentials, service, region).add_auth(request)
        signed = {name.lower(): value for name, value in request.headers.items() if name != "Authorization"}
        signed["host"] = "bucket.host:8443"
        mine = Signer(region, service).authorization(credentials, f"/{path}", signed)
        assert mine == request.headers["Authorization"]


def test_a_key_of_a_day_is_not_taken_for_that_of_another_day_or_secret() -> None:
    signer = Signer("us-east-1", "s3")

    def sign(secret: str, moment: str, by: Signer = signer) -> str:
        headers = {"host": "host", "x-amz-date": moment, "x-amz-content-sha256": "-"}
        return by.authorization(Credentials("name", secret), "/", headers)

    asked = [("one", "20261124T235959Z"), ("one", "20261125T000000Z"), ("two", "20261125T000000Z")] * 2
    found = [sign(*each) for each in asked]
    assert found == [sign(*each, by=Signer("us-east-1", "s3")) for each in asked]
    assert len(set(found)) == 3


# ---- what has no pattern


@pytest.mark.parametrize("change", ["region", "extra header", "no signature", "other credentials"])
def test_a_request_that_is_signed_otherwise_gives_no_pattern(change: str) -> None:
    credentials = Credentials("name", "secret")
    request = AWSRequest("GET", "https://host/bucket/key")
    request.context = {"client_config": Config()}
    S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
    assert RequestPattern.of(request, "key", credentials)
    if change == "region":
        value = request.headers["Authorization"]
        request.headers.replace_header("Authorization", value.replace("us-east-1", "us-east-2"))
    elif change == "extra header":
        request.headers.replace_header("X-Amz-Content-SHA256", "UNSIGNED-PAYLOAD")
    elif change == "no signature":
        del request.headers["Authorization"]
    else:
        credentials = Credentials("name", "another")
    assert RequestPattern.of(request, "key", credentials) is None


def test_a_client_that_signs_otherwise_makes_all_requests_itself(s3_url: str, see: See) -> None:
    session = boto3.Session()
    store = _store(s3_url, session)
    put(store, "key", BODY)
    seen = see(store)

    def add(request: Any, **_event: Any) -> None:
        request.headers["Authorization"] = b"Bearer of another kind"

    store.connection.client.meta.events.register_first("before-send.s3.GetObject", add)
    assert [store.get("key").body for _ in range(3)] == [BODY] * 3
    assert seen.by_client == 3


# ---- answers


@pytest.mark.parametrize("fault", ["lose", "503", "reset", "cut", "503-after"])
def test_faults_are_repaired_by_asking_again(store: S3Store, proxy: Proxy, fault: str, see: See) -> None:
    seen = see(store)
    proxy.rule(fault, method="GET", times=2)
    assert store.get("key", (0, 1000)).body == BODY[:1000]
    assert len(proxy.requests()) == 3
    assert len(NAPS.seconds) == 2
    assert seen.by_client == 0


def test_reads_that_never_succeed_end_as_unavailable(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("503", times=None)
    with pytest.raises(StoreUnavailableError, match="503 SlowDown: proxy"):
        store.get("key")
    assert [request.status for request in proxy.requests()] == [503] * 8


def test_a_server_that_does_not_answer_in_time_is_asked_again(
    proxy: Proxy, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOLMEN_S3_READ_TIMEOUT", "1")
    store = _store(s3_url, boto3.Session())
    put(store, "key", BODY)
    store.get("key")
    proxy.rule("timeout", method="GET")
    assert store.get("key").body == BODY


def test_answers_about_the_object_cost_one_request_and_leave_the_pattern(
    store: S3Store, proxy: Proxy, see: See
) -> None:
    seen = see(store)
    with pytest.raises(ObjectNotFoundError):
        store.get("absent")
    with pytest.raises(ObjectChangedError):
        store.get("key", etag='"another"')
    assert [request.status for request in proxy.requests()] == [404, 412]
    proxy.forget_requests()
    assert store.get("key", (len(BODY), len(BODY) + 1)).body == b""  # 416, then HEAD tells its ETag
    assert [(request.method, request.status) for request in proxy.requests()] == [("GET", 416), ("HEAD", 200)]
    assert store.get("key").body == BODY
    assert seen.by_client == 0


def test_a_bucket_that_is_gone_is_named(store: S3Store) -> None:
    client = store.connection.client
    client.delete_object(Bucket=store.bucket, Key=f"{store.prefix}/key")
    client.delete_bucket(Bucket=store.bucket)
    with pytest.raises(NotFoundError, match=store.bucket):
        store.get("key")


def test_a_range_that_reaches_past_the_end_comes_back_shorter(store: S3Store) -> None:
    assert store.get("key", (len(BODY) - 3, len(BODY) + 9)).body == BODY[-3:]


@pytest.mark.parametrize("came", ["bytes 1-10/2048", "bytes 0-8/2048", "bytes 0-10/2048", "bytes */2048", "0-9", ""])
def test_another_range_than_was_asked_for_is_asked_for_again(reader: S3Store, proxy: Proxy, came: str) -> None:
    wrong = {"ETag": '"1"', "Content-Range": came}
    proxy.rule("answer", method="GET", status=206, body="x" * 10, headers=wrong, times=2)
    assert reader.get("key", (0, 10)).body == BODY[:10]
    assert len(proxy.requests()) == 3


def test_a_part_is_not_taken_for_the_whole(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("answer", method="GET", status=206, body="x", headers={"ETag": '"1"', "Content-Range": "bytes 0-0/2048"})
    assert store.get("key").body == BODY


def test_a_server_that_knows_no_ranges_is_read_all_the_same(reader: S3Store, proxy: Proxy) -> None:
    proxy.rule("ignore range", method="GET", times=None)
    assert reader.get("key", (10, 30)).body == BODY[10:30]
    assert reader.get("key", (len(BODY) - 1, len(BODY) + 9)).body == BODY[-1:]
    assert [request.status for request in proxy.requests()] == [200, 200]


def test_a_checksum_that_comes_with_an_object_is_compared(reader: S3Store, proxy: Proxy) -> None:
    right = base64.b64encode(zlib.crc32(b"body").to_bytes(4, "big")).decode()
    answers = {"status": 200, "body": "body"}
    proxy.rule("answer", method="GET", headers={"ETag": '"1"', "x-amz-checksum-crc32": right}, **answers)
    assert reader.get("key").body == b"body"
    proxy.rule("answer", method="GET", headers={"ETag": '"1"', "x-amz-checksum-crc32": "AAAAAA=="}, **answers)
    assert reader.get("key").body == BODY
    assert len(proxy.requests()) == 3


def test_an_error_whose_answer_breaks_off_is_asked_for_again(reader: S3Store, proxy: Proxy) -> None:
    proxy.rule("cut", method="GET", times=2)
    with pytest.raises(ObjectNotFoundError):
        reader.get("absent")
    assert len(proxy.requests()) == 3


@pytest.mark.parametrize("status", [200, 404])
def test_the_clock_is_fed_by_each_answer(s3_url: str, status: int) -> None:
    store = _store(s3_url, boto3.Session())
    put(store, "key")
    store.get("key")
    assert abs(store.clock.now_us / 1e6 - time.time()) < 60
    told = {"etag": '"1"', "date": "Sun, 01 Nov 2026 08:49:37 GMT"}
    store.connection.client.meta.events.register(
        "before-send.s3.GetObject", lambda **_event: _answer(status, b"", told)
    )
    with suppress(ObjectNotFoundError):
        store.get("key")
    assert store.clock.now_us == 1_793_522_977_000_000
    assert store.clock.age_seconds < 60


# ---- places, rights and credentials


def test_a_bucket_in_another_region_is_found_once(
    proxy: Proxy, s3_url: str, see: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(_store(s3_url), "key", BODY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    store = _store(s3_url, boto3.Session())
    seen = see(store)
    proxy.forget_requests()
    assert [store.get("key").body for _ in range(3)] == [BODY] * 3
    assert [request.status for request in proxy.requests()] == [301, 200, 200, 200]
    assert [scope.split("/")[2] for scope in seen.signed_for] == ["eu-west-3", "us-east-1", "us-east-1", "us-east-1"]
    assert seen.by_client == 1


def test_a_bucket_that_moves_is_followed(store: S3Store, proxy: Proxy, see: See) -> None:
    seen = see(store)
    text = "<Error><Code>PermanentRedirect</Code><Message>moved</Message></Error>"
    moved = {"x-amz-bucket-region": "us-east-1"}
    proxy.rule("answer", method="GET", status=301, body=text, headers=moved, times=2)  # one of them for the client
    assert store.get("key").body == BODY
    assert [request.status for request in proxy.requests()] == [301, 301, 200]
    assert NAPS.seconds == []
    assert store.get("key").body == BODY
    assert seen.by_client == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "AccessDenied"), (403, "SignatureDoesNotMatch"), (400, "ExpiredToken"), (403, "RequestTimeTooSkewed")],
)
def test_what_is_refused_for_its_signature_or_rights_is_asked_for_by_the_client(
    store: S3Store, proxy: Proxy, status: int, code: str, see: See
) -> None:
    seen = see(store)
    text = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
    proxy.rule("answer", method="GET", status=status, body=text)
    assert store.get("key").body == BODY
    assert (seen.by_client, NAPS.seconds) == (1, [])
    proxy.rule("answer", method="GET", status=status, body=text, times=None)
    with pytest.raises(Exception, match=code):
        store.get("key")


def test_denied_access_is_told_as_such(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("forbid", method="GET", times=None)
    with pytest.raises(AccessDeniedError, match="ListBucket"):
        store.get("key")


@pytest.mark.slow
def test_credentials_are_renewed_while_objects_are_read(s3_url: str, see: See) -> None:
    made: list[datetime] = []

    def renew() -> dict[str, str]:
        """Lasts for a moment, as if time had passed."""
        made.append(datetime.now(UTC))
        return {
            "access_key": f"name{len(made)}",
            "secret_key": f"secret{len(made)}",
            "token": f"token{len(made)}",
            "expiry_time": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        }

    inner = Session()
    credentials = RefreshableCredentials.create_from_metadata(renew(), renew, "test")
    inner._credentials = credentials  # type: ignore[attr-defined]  # boto3 has no other way
    store = _store(s3_url, boto3.Session(botocore_session=inner))
    put(store, "key", BODY)
    seen = see(store)
    store.get("key")
    store.get("key")
    credentials._expiry_time = datetime.now(UTC)
    assert store.get("key").body == BODY
    assert [scope.split("/")[0] for scope in seen.signed_for] == ["name1", "name1", "name2"]
    assert [_text(request.headers["X-Amz-Security-Token"]) for request in seen.requests] == [
        "token1",
        "token1",
        "token2",
    ]
    assert seen.by_client == 1


@pytest.mark.slow
def test_many_threads_read_at_once_from_the_first_request_on(proxy: Proxy, s3_url: str) -> None:
    store = _store(s3_url, boto3.Session())
    for number in range(8):
        put(store, f"key {number}", f"body {number}".encode() * 100)
    proxy.rule("503", "lose", "reset", "cut", method="GET", times=None, probability=0.1, seed=7)
    start = threading.Barrier(16)

    def read(_thread: int) -> bool:
        start.wait()
        return all(store.get(f"key {number % 8}").body == f"body {number % 8}".encode() * 100 for number in range(40))

    assert all(run_in_threads(read, 16))
