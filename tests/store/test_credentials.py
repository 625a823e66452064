"""No error, nor the errors behind it, shows the user name and password in a URL that somebody has set or given."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.errors import Error, InputError, RowError, without_credentials
from dolmen.ingest.drops.announce_files import DropSource
from dolmen.ingest.queues import open_queue
from dolmen.store import open_store

SECRET = "s3cr3t"


def hasty() -> Runtime:
    """A runtime that waits for nothing."""
    return Runtime(sleep=lambda seconds: None)


def _shown(act: Callable[[], object]) -> str:
    try:
        act()
    except Error as error:
        return "".join(traceback.format_exception(error)) + repr(error)
    raise AssertionError("nothing was raised")


@pytest.mark.slow
@pytest.mark.parametrize(
    "endpoint",
    [
        f"http://user:{SECRET}@127.0.0.1:1",
        f"http://{SECRET}@127.0.0.1:1/path",
        f"http://user:{SECRET}@127.0.0.1:99999",
        f"user:{SECRET}@127.0.0.1",
        f"ftp://user:{SECRET}@127.0.0.1/x",
    ],
)
def test_those_in_an_endpoint_are_never_shown(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    acts: list[Callable[[], object]] = [
        lambda: open_store("s3://bucket/x", hasty()).head("k"),
        lambda: open_store("s3://bucket/x", hasty()).get("k", (0, 1)),
        lambda: list(open_store("s3://bucket/x", hasty()).list("")),
    ]
    for act in acts:
        shown = _shown(act)
        assert SECRET not in shown
        assert "***@" in shown


@pytest.mark.parametrize(
    "act",
    [
        lambda: dolmen.open(f"https://user:{SECRET}@host/bucket"),
        lambda: dolmen.open(f"s3://user:{SECRET}@bucket/x"),
        lambda: dolmen.open(f"s3a://user:{SECRET}@bucket/x"),
        lambda: dolmen.open(f"s3:user:{SECRET}@bucket/x"),
        lambda: dolmen.open(f"file://user:{SECRET}@host/x"),
        lambda: open_queue(f"http://user:{SECRET}@127.0.0.1:1/1/q", hasty()).count_waiting(),
        lambda: open_queue(f"https://user:{SECRET}@host/q.fifo"),
        lambda: open_queue(f"ftp://user:{SECRET}@host/q"),
        lambda: DropSource.of(f"https://user:{SECRET}@host/bucket"),
    ],
)
def test_those_in_a_url_that_is_given_are_never_shown(
    act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    shown = _shown(act)
    assert SECRET not in shown
    assert "***@" in shown


def test_other_text_stays_as_it_is() -> None:
    for text in ("ann@example.org", "s3://bucket/a@b", "https://host/a?b=c@d", "a: b@c", "no URL"):
        assert without_credentials(text) == text
        assert str(InputError(text)) == text
    assert RowError("bad", file="a@b.csv", row=3).row == 3
