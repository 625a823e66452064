"""What S3Store makes of every way a request can go wrong, on the wire."""

from __future__ import annotations

import math
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import pytest

from dolmen.base.runtime import Runtime
from dolmen.errors import (
    AccessDeniedError,
    ClockError,
    InputError,
    NotFoundError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from dolmen.store import ObjectStore, open_store
from dolmen.store.base import PreconditionFailed, Stored, Unknown, create
from dolmen.store.s3.bucket_store import S3Store
from support.proxy import Proxy
from support.stores import PART_BYTES, Naps, keys, put, run_in_threads

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "20260"))


NAPS = Naps()
RUNTIME = Runtime(sleep=NAPS)  # one for all, so that connections are shared


@pytest.fixture
def naps() -> Naps:
    NAPS.seconds.clear()
    return NAPS


@pytest.fixture
def store(proxy: Proxy, s3_url: str, naps: Naps) -> S3Store:
    bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
    return S3Store(bucket, prefix, runtime=RUNTIME, threshold_bytes=6 << 20, part_bytes=PART_BYTES)


@pytest.fixture
def impatient(store: S3Store, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The same place for somebody who waits 3 seconds for an answer: only for requests that never get one."""
    monkeypatch.setenv("DOLMEN_S3_READ_TIMEOUT", "3")
    return open_store(s3_url, Runtime(sleep=NAPS))


def sent(proxy: Proxy, method: str = "PUT") -> list[int | None]:
    return [request.status for request in proxy.requests() if request.method == method]


# ---- counting


def test_each_verb_is_one_request_of_known_bytes(store: S3Store, proxy: Proxy) -> None:
    etag = put(store, "key", bytes(1000))
    store.put("key", bytes(500), if_match=etag)
    store.put("key", bytes(7))
    store.get("key", (100, 300))
    store.head("key")
    keys(store)
    store.delete(["key"])
    seen = [(r.method, r.key, r.range, r.status) for r in proxy.requests()]
    assert seen == [
        ("PUT", "some/prefix/key", None, 200),
        ("PUT", "some/prefix/key", None, 200),
        ("PUT", "some/prefix/key", None, 412),
        ("GET", "some/prefix/key", "bytes=100-299", 206),
        ("HEAD", "some/prefix/key", None, 200),
        ("GET", "", None, 200),
        ("POST", "", None, 200),
    ]
    assert [r.bytes_up for r in proxy.requests()][:6] == [1000, 500, 7, 0, 0, 0]
    assert proxy.requests()[3].bytes_down == 200
    assert [r.condition for r in proxy.requests()][:3] == ["If-None-Match: *", f"If-Match: {etag}", "If-None-Match: *"]


def test_an_input_no_larger_than_its_window_is_one_request(store: S3Store, proxy: Proxy) -> None:
    put(store, "drop.csv", bytes(1_000_000))
    proxy.forget_requests()
    with store.open_input("drop.csv") as file:
        assert len(file.read()) == 1_000_000
    assert [(r.method, r.range) for r in proxy.requests()] == [("GET", f"bytes=0-{(8 << 20) - 1}")]


def test_a_small_output_is_one_put_and_a_large_one_its_parts_and_two_more(store: S3Store, proxy: Proxy) -> None:
    for key, size in (("small", 6 << 20), ("large", 3 * PART_BYTES + 1)):
        with store.open_output(key) as output:
            output.write(bytes(size))
            output.commit()
    requests = proxy.requests()
    small = [r for r in requests if r.key.endswith("small")]
    assert [(r.method, r.bytes_up, r.condition) for r in small] == [("PUT", 6 << 20, "If-None-Match: *")]
    large = [r for r in requests if r.key.endswith("large")]
    assert Counter(r.method for r in large) == {"POST": 2, "PUT": 4}
    assert sorted(r.bytes_up for r in large if r.method == "PUT") == [1, PART_BYTES, PART_BYTES, PART_BYTES]
    assert large[-1].condition == "If-None-Match: *"


@pytest.mark.parametrize(("few", "requests"), [(False, {"POST": 2, "PUT": 3}), (True, {"PUT": 1})])
def test_who_waits_gets_parts_that_go_up_at_once_and_functions_pay_for_few_requests(
    s3_url: str, proxy: Proxy, few: bool, requests: dict[str, int]
) -> None:
    bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
    body = os.urandom(33 << 20)
    with S3Store(bucket, prefix, runtime=Runtime(few_requests=few)).open_output("data") as output:
        output.write(body)
        output.commit()
    sent = proxy.requests()
    assert Counter(request.method for request in sent) == requests
    largest = max(request.bytes_up for request in sent)
    assert largest == (len(body) if few else 16 << 20)


# ---- conditional puts


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lose", "503-after", "timeout-after"])
@pytest.mark.parametrize("replace", [False, True])
def test_a_put_whose_answer_is_lost_is_unknown_and_is_not_sent_again(
    store: S3Store, impatient: ObjectStore, proxy: Proxy, fault: str, replace: bool
) -> None:
    etag = put(store, "key", b"before") if replace else None
    proxy.forget_requests()
    proxy.rule(fault, method="PUT")
    outcome = (impatient if fault == "timeout-after" else store).put("key", b"body", if_match=etag)
    assert isinstance(outcome, Unknown)
    assert outcome.reason
    assert len(sent(proxy)) == 1  # a second one would have met the first
    assert store.get("key").body == b"body"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["reset", "503", "timeout"])
def test_a_put_that_did_not_land_without_saying_so_is_unknown_too(
    store: S3Store, impatient: ObjectStore, proxy: Proxy, fault: str
) -> None:
    proxy.rule(fault, method="PUT")
    assert isinstance((impatient if fault == "timeout" else store).put("key", b"body"), Unknown)
    assert len(sent(proxy)) == 1
    assert keys(store) == []


def test_a_put_that_lands_after_its_client_gave_up_is_unknown(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("late", method="PUT", seconds=math.inf)
    assert isinstance(store.put("key", b"body"), Unknown)
    assert keys(store) == []
    proxy.land()
    assert store.get("key").body == b"body"


def test_a_duplicated_create_is_refused_by_the_object_it_made_itself(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("duplicate", method="PUT")
    assert store.put("key", b"body") == PreconditionFailed()  # true of the second: base.py says what it proves
    assert store.get("key").body == b"body"


def test_a_conflict_is_not_a_failed_precondition_and_is_sent_again(store: S3Store, proxy: Proxy, naps: Naps) -> None:
    proxy.rule("409", method="PUT", times=3)
    assert isinstance(store.put("key", b"body"), Stored)
    assert sent(proxy) == [409, 409, 409, 200]
    assert len(naps.seconds) == 3
    assert max(naps.seconds) <= 2.0


def test_endless_conflicts_end_as_unavailable_with_nothing_landed(store: S3Store, proxy: Proxy, naps: Naps) -> None:
    proxy.rule("409", method="PUT", times=None)
    with pytest.raises(StoreUnavailableError, match="ConditionalRequestConflict"):
        store.put("key", b"body")
    assert sent(proxy) == [409] * 6
    assert keys(store) == []


def test_a_refused_connection_is_tried_again_and_ends_as_unavailable(
    s3_url: str, naps: Naps, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.socket()) as taken:  # bound and not listened on: nobody else can begin to meanwhile
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{taken.getsockname()[1]}")
        store = open_store(s3_url, RUNTIME)
        with pytest.raises(StoreUnavailableError, match="was not put"):
            store.put("key", b"body")
    assert len(naps.seconds) == 5


def test_a_host_that_does_not_exist_is_unavailable(s3_url: str, naps: Naps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://no-such-host.invalid:9")
    store = open_store(s3_url, RUNTIME)
    with pytest.raises(StoreUnavailableError, match="no-such-host"):
        store.put("key", b"body")


def test_a_denied_put_is_no_unknown_outcome(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("forbid", method="PUT")
    with pytest.raises(AccessDeniedError, match="AccessDenied"):
        store.put("key", b"body")
    assert sent(proxy) == [403]


def test_a_put_that_minio_denies_in_passing_is_sent_again(store: S3Store, proxy: Proxy, naps: Naps) -> None:
    """It does so when a delete removes the folder, empty now, in which the object is being created."""
    proxy.rule("forbid", method="PUT", server="MinIO", times=2)
    assert isinstance(store.put("folder/key", b"body"), Stored)
    assert sent(proxy) == [403, 403, 200]


def test_a_put_that_minio_denies_again_and_again_is_denied(store: S3Store, proxy: Proxy, naps: Naps) -> None:
    proxy.rule("forbid", method="PUT", server="MinIO", times=None)
    with pytest.raises(AccessDeniedError, match="AccessDenied"):
        store.put("folder/key", b"body")
    assert sent(proxy) == [403] * 6


def test_a_wrong_local_clock_is_named_as_such(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("forbid", code="RequestTimeTooSkewed", times=2)
    for ask in (lambda: store.put("key", b"body"), lambda: store.get("key")):
        with pytest.raises(ClockError, match="clock"):
            ask()


def test_a_bucket_that_does_not_exist_is_named(s3_url: str) -> None:
    store = open_store("s3://no-such-bucket-here/prefix")
    asks: list[Callable[[], object]] = [
        lambda: store.put("key", b"body"),
        lambda: store.put("key", b"body", if_match='"0"'),
        lambda: store.get("key"),
        lambda: list(store.list("")),
        lambda: store.delete(["key"]),
        lambda: store.open_output("key").commit(),
    ]
    for ask in asks:
        with pytest.raises(NotFoundError, match="no-such-bucket-here"):
            ask()


def test_missing_credentials_are_said_to_be_missing(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = open_store(s3_url, Runtime())
    for ask in (lambda: store.put("key", b"body"), lambda: store.get("key")):
        with pytest.raises(AccessDeniedError, match="credentials"):
            ask()


def test_a_profile_that_does_not_exist_is_a_mistake_in_the_configuration(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(InputError, match="nobody"):
        open_store(s3_url, Runtime())


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf"])
def test_a_time_out_that_is_none_is_refused(s3_url: str, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DOLMEN_S3_READ_TIMEOUT", text)
    with pytest.raises(InputError, match="DOLMEN_S3_READ_TIMEOUT"):
        open_store(s3_url, Runtime())


# ---- reads and deletes


@pytest.mark.parametrize("fault", ["lose", "503", "reset"])
def test_reads_are_repeated_until_they_succeed(store: S3Store, proxy: Proxy, fault: str) -> None:
    put(store, "key", b"body")
    for ask in (lambda: store.get("key").body, lambda: store.head("key").size, lambda: keys(store)):
        proxy.rule(fault, times=2)
        assert ask() in (b"body", 4, ["key"])


def test_an_answer_that_breaks_off_in_its_body_is_asked_for_again(store: S3Store, proxy: Proxy, naps: Naps) -> None:
    put(store, "key", bytes(100_000))
    proxy.rule("cut", method="GET", times=2)
    assert store.get("key", (0, 100_000)).body == bytes(100_000)
    assert [r.bytes_down for r in proxy.requests() if r.method == "GET"] == [50_000, 50_000, 100_000]
    proxy.rule("cut", method="GET", times=None)
    with pytest.raises(StoreUnavailableError, match="reached"):
        store.get("key")


def test_reads_that_never_succeed_end_as_unavailable(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("503", times=None)
    with pytest.raises(StoreUnavailableError, match="SlowDown"):
        store.get("key")
    assert sent(proxy, "GET") == [503] * 8


def test_a_denied_read_hints_at_what_else_it_may_mean(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("forbid", method="GET")
    with pytest.raises(AccessDeniedError, match="ListBucket"):
        store.get("key")


def test_errors_within_a_successful_delete_are_read(store: S3Store, proxy: Proxy) -> None:
    for name in ("a", "b", "c"):
        put(store, name)
    proxy.rule("answer", method="POST", query="delete", body=DELETE_ANSWER.format(key=f"{store.prefix}/b"))
    outcomes = store.delete(["a", "b", "c"])
    assert [(o.key, o.error) for o in outcomes] == [("a", None), ("b", "AccessDenied: not yours"), ("c", None)]


DELETE_ANSWER = """<?xml version="1.0"?><DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>not yours</Message></Error></DeleteResult>"""


def test_a_delete_of_many_keys_goes_in_batches_and_a_failed_batch_is_told_for_its_keys_alone(
    store: S3Store, proxy: Proxy
) -> None:
    names = [f"k/{number:04d}" for number in range(1002)]
    for name in (names[0], names[-1]):
        put(store, name)
    proxy.rule("503", method="POST", query="delete", nth=2, times=None)
    outcomes = store.delete(names)
    assert [outcome.key for outcome in outcomes] == names
    assert [outcome.error is None for outcome in outcomes] == [True] * 1000 + [False] * 2
    proxy.reset()
    assert keys(store) == [names[-1]]
    assert all(outcome.error is None for outcome in store.delete(names))
    assert sent(proxy, "POST") == [200, 200]
    assert keys(store) == []


def test_a_listing_of_many_objects_comes_in_pages(
    store: S3Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dolmen.store.s3.bucket_store.LIST_PAGE", 10)
    names = [f"k &+%/{number:04d}" for number in range(25)]
    for name in names:
        put(store, name)
    proxy.forget_requests()
    assert keys(store, "k &+%/") == names
    assert len(proxy.requests()) == 3
    assert keys(store, "k", names[12]) == names[13:]


def test_the_clock_is_fed_by_errors_and_by_attempts_that_are_repeated(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("503", times=None)
    with pytest.raises(StoreUnavailableError):
        store.get("key")
    assert store.clock.age_seconds < 60
    assert abs(store.clock.now_us / 1e6 - time.time()) < 60


# ---- create


@pytest.mark.parametrize("fault", ["lose", "503", "503-after", "reset", "409", "duplicate"])
def test_create_makes_its_object_in_spite_of_faults(store: S3Store, proxy: Proxy, fault: str) -> None:
    proxy.rule(fault, method="PUT", times=2)
    create(store, "data/unique", b"body", store.runtime)
    assert store.get("data/unique").body == b"body"


def test_create_gives_up_in_the_end_and_leaves_no_doubt_about_what_to_do(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("503", method="PUT", times=None)
    with pytest.raises(StoreUnavailableError, match="data/unique"):
        create(store, "data/unique", b"body", store.runtime)
    assert len(sent(proxy)) == 6


# ---- multipart uploads


def upload(store: ObjectStore, key: str = "data/large") -> bytes:
    body = os.urandom(2 * PART_BYTES + 5)
    with store.open_output(key) as output:
        output.write(body)
        assert output.commit() == len(body)
    return body


@pytest.mark.parametrize("fault", ["lose", "503-after", "503", "reset", "duplicate", "409", "412-after"])
def test_a_completion_without_a_clear_answer_is_settled_by_looking(store: S3Store, proxy: Proxy, fault: str) -> None:
    if fault == "412-after":
        proxy.rule("reset", method="POST", query="uploadId=")  # unclear, then a refusal by what is there
    proxy.rule(fault, method="POST", query="uploadId=")
    body = upload(store)
    assert store.get("data/large").body == body
    assert sent(proxy, "DELETE") == []


def test_parts_and_beginnings_are_repeated(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("503", method="PUT", query="partNumber=1")
    proxy.rule("lose", method="PUT", query="partNumber=2")
    proxy.rule("503", method="POST", query="uploads")
    body = upload(store)
    assert store.get("data/large").body == body


def test_nothing_is_cleaned_up_after_a_completion_of_unknown_outcome(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("503", method="POST", query="uploadId=", times=None)
    with pytest.raises(StoreUnavailableError):
        upload(store)
    assert sent(proxy, "DELETE") == []


def test_an_upload_whose_part_fails_for_good_is_aborted(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("forbid", method="PUT", query="partNumber=2", times=None)
    with pytest.raises(AccessDeniedError):
        upload(store)
    assert sent(proxy, "DELETE") == [204]
    client = store.connection.client
    assert client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", []) == []
    assert keys(store) == []


def test_an_upload_that_somebody_else_aborted_is_reported(store: S3Store, proxy: Proxy) -> None:
    with store.open_output("data/large") as output:
        output.write(bytes(2 * PART_BYTES))
        for found in store.connection.client.list_multipart_uploads(Bucket=store.bucket)["Uploads"]:
            store.connection.client.abort_multipart_upload(
                Bucket=store.bucket, Key=found["Key"], UploadId=found["UploadId"]
            )
        with pytest.raises(StoreUnavailableError, match="is gone"):
            output.commit()


# ---- copies


def copied(store: S3Store, key: str = "data/copy", size: int = 3 * PART_BYTES) -> bytes:
    """Copies a range of a new object between written bytes; returns what the copy must hold."""
    body, source = os.urandom(size), key.replace("copy", "source")
    with store.open_output(source) as output:
        output.write(body)
        output.commit()
    etag = store.head(source).etag
    with store.open_output(key) as output:
        output.copy(source, (0, 2 * PART_BYTES), etag)
        output.write(b"between")
        output.copy(source, (1, size), etag)
        output.write(b"end")
        output.commit()
    return body[: 2 * PART_BYTES] + b"between" + body[1:] + b"end"


def requests_of(proxy: Proxy, key: str) -> list[tuple[str, str, int]]:
    """Method, what it is about, and bytes of the requests for an object."""
    kinds = {"uploads": "begin", "partNumber": "part", "uploadId": "complete"}
    return sorted(
        (r.method, next((kind for word, kind in kinds.items() if word in r.query), "object"), r.bytes_up)
        for r in proxy.requests()
        if r.key.endswith(key)
    )


def test_a_copy_is_a_part_that_takes_no_bytes_and_lacking_ones_are_read(store: S3Store, proxy: Proxy) -> None:
    expected = copied(store)
    assert store.copies
    sent_ = requests_of(proxy, "data/copy")
    kinds = [("POST", "begin"), ("POST", "complete"), *[("PUT", "part")] * 4]
    assert [(method, kind) for method, kind, _ in sent_] == kinds
    assert [size for method, _, size in sent_ if method == "PUT"] == [0, 0, 3, PART_BYTES]
    read = [r for r in proxy.requests() if r.key.endswith("data/source") and r.method == "GET"]
    assert [(r.range, r.bytes_down) for r in read] == [(f"bytes=1-{PART_BYTES - 7}", PART_BYTES - 7)]
    assert store.get("data/copy").body == expected


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lose", "503-after", "503", "reset", "duplicate", "timeout-after"])
@pytest.mark.parametrize("part", [1, 3])
def test_a_copy_without_an_answer_is_sent_again(
    store: S3Store, proxy: Proxy, fault: str, part: int, impatient: S3Store
) -> None:
    client = impatient if fault == "timeout-after" else store
    client.threshold_bytes, client.part_bytes = store.threshold_bytes, store.part_bytes
    proxy.rule(fault, method="PUT", key="data/copy", query=f"partNumber={part}")
    assert copied(client) == store.get("data/copy").body
    assert client.copies


def test_an_error_within_a_successful_copy_is_read(store: S3Store, proxy: Proxy) -> None:
    error = "<Error><Code>InternalError</Code><Message>try again</Message></Error>"
    proxy.rule("answer", method="PUT", key="data/copy", query="partNumber=3", body=error)
    assert copied(store) == store.get("data/copy").body


def test_an_answer_that_names_no_part_is_no_success(store: S3Store, proxy: Proxy) -> None:
    proxy.rule("answer", method="PUT", key="data/copy", query="partNumber=3", body="<CopyPartResult></CopyPartResult>")
    with pytest.raises(StoreUnavailableError, match="lacks its ETag"):
        copied(store)
    with pytest.raises(ObjectNotFoundError):
        store.get("data/copy")


@pytest.mark.slow
@pytest.mark.parametrize("status", [403, 501, 400])
def test_a_server_that_does_not_copy_is_asked_once_and_bytes_are_read_then(
    store: S3Store, proxy: Proxy, status: int
) -> None:
    error = "<Error><Code>NotImplemented</Code><Message>no copies here</Message></Error>"
    proxy.rule("answer", method="PUT", key="data/copy", query="partNumber=1", status=status, body=error)
    assert copied(store) == store.get("data/copy").body
    assert store.copies is False
    assert copied(store, "data/other/copy", 3 * PART_BYTES) == store.get("data/other/copy").body
    other = [size for method, kind, size in requests_of(proxy, "data/other/copy") if kind == "part"]
    assert 0 not in other


def test_a_copy_of_an_object_that_changed_meanwhile_is_refused(store: S3Store, proxy: Proxy) -> None:
    copied(store)
    etag = store.head("data/source").etag
    store.put("data/source", bytes(2 * PART_BYTES), if_match=etag)
    with store.open_output("data/late") as output:
        output.copy("data/source", (0, 2 * PART_BYTES), etag)
        with pytest.raises(ObjectChangedError):
            output.commit()
    assert store.copies


# ---- all of it


@pytest.mark.slow
def test_increments_through_random_faults_are_never_lost_or_doubled(
    s3_url: str, proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each writer appends its marks to one object by compare-and-swap, and settles unknown outcomes by reading."""
    print(f"DOLMEN_TEST_SEED={SEED}")
    store = open_store(s3_url, Runtime())
    put(store, "log", b"")
    proxy.rule("503-after", method="PUT", key="log", times=3)  # some whose outcome is unknown, for certain
    proxy.rule("lose", "409", "503", "503-after", "reset", "duplicate", "delay",
               times=None, probability=0.25, seed=SEED, seconds=0.02)  # fmt: skip
    unclear: Counter[str] = Counter()

    def write(writer: int) -> None:
        for number in range(6):
            mark = f"{writer}.{number} ".encode()
            while True:
                found = store.get("log")
                if mark in found.body:  # an unclear attempt of before
                    break
                outcome = store.put("log", found.body + mark, if_match=found.etag)
                unclear[type(outcome).__name__] += 1
                if isinstance(outcome, Stored):
                    break
                time.sleep(0.01)

    run_in_threads(write, 6)
    proxy.reset()
    marks = store.get("log").body.split()
    assert sorted(marks) == sorted(f"{writer}.{number}".encode() for writer in range(6) for number in range(6))
    assert unclear["Unknown"] >= 3, unclear
    with pytest.raises(ObjectNotFoundError):
        store.get("absent")
