"""What a bucket keeps of deleted objects: a server that can't tell says "not known", never "none"."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dolmen.base.runtime import Runtime
from dolmen.format.receipts import Remains
from dolmen.maintenance.erasures.erasure_receipts import noncurrent_remains, outside_remains
from dolmen.store import open_store

VERSION = """<Version><Key>manifest/v1</Key><VersionId>{id}</VersionId><IsLatest>{latest}</IsLatest>
<LastModified>2026-01-01T00:00:00.700Z</LastModified><ETag>"e"</ETag><Size>10</Size></Version>"""
NEWEST, OLDER = VERSION.format(id="b", latest="true"), VERSION.format(id="a", latest="false")


def page(*versions: str) -> str:
    return f"<ListVersionsResult><IsTruncated>false</IsTruncated>{''.join(versions)}</ListVersionsResult>"


OBJECTS = """<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>manifest/v1</Key>
<LastModified>2026-01-01T00:00:00.700Z</LastModified><ETag>"e"</ETag><Size>10</Size></Contents></ListBucketResult>"""


def error(code: str) -> str:
    return f"<Error><Code>{code}</Code><Message>no</Message></Error>"


@contextmanager
def server(status: int, body: str, *, only: str) -> Iterator[str]:
    """A server that answers a list of one prefix so, and other lists with an empty page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = f"prefix={only}" in self.path or status != 200
            sent = (body if asked else page()).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


CASES = {
    "two versions": (200, page(NEWEST, OLDER), Remains(1, 10, 1_767_225_600_000_000)),
    "one version": (200, page(NEWEST), Remains()),
    "nothing, not even the newest": (200, page(), None),
    "objects instead of versions": (200, OBJECTS, None),
    "versions of which none says whether it is the newest": (
        200,
        page(OLDER.replace("<IsLatest>false</IsLatest>", "")),
        None,
    ),
    "not allowed": (403, error("AccessDenied"), None),
    "not implemented": (501, error("NotImplemented"), None),
    "not allowed here": (405, error("MethodNotAllowed"), None),
    "not found": (404, error("NoSuchKey"), None),
    "failing": (500, error("InternalError"), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_older_versions_are_counted_or_not_known(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    status, body, expected = CASES[case]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with server(status, body, only="manifest") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        runtime = Runtime(sleep=lambda seconds: None)
        assert noncurrent_remains(open_store("s3://bucket", runtime)) == expected
        if status != 200:
            [outside] = outside_remains(["s3://landing"], 0, runtime)
            assert outside.objects is None


def test_older_versions_of_publications_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with server(200, page(NEWEST, OLDER), only="iceberg") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        found = noncurrent_remains(open_store("s3://bucket", Runtime()))
        assert found is not None
        assert found.objects == 1
