"""``dolmen check-store``: stores that are fit for dolmen pass, and of others it says what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dolmen.base.runtime import Runtime
from dolmen.service.check_store import contract
from dolmen.service.check_store.check_run import CHECKS, CheckOutcome, Site, check_store
from dolmen.service.check_store.contract import Check, Load, Sandbox
from dolmen.store import MemoryStore, open_store
from dolmen.store.base import Buffer, PutOutcome, Stored
from dolmen.store.memory import shared_bucket
from support.proxy import Proxy

Cli = Callable[..., Any]
DATABASE = "a database keeps what many writers commit"
SMALL = ("--writers", 2, "--commits", 2)


def outcomes(document: dict[str, Any]) -> dict[str, str]:
    return {check["check"]: check["outcome"] for check in document["checks"]}


def chosen(*names: str) -> list[Check]:
    found = [check for check in CHECKS if check.name in names]
    assert len(found) == len(names)
    return found


def check_passes(cli: Cli, url: object) -> None:
    done = cli("check-store", url, *SMALL, "--json")
    document = json.loads(done.out)
    assert (done.code, set(outcomes(document).values()), document["left"]) == (0, {"ok"}, []), done
    assert document["ok"]
    assert list(open_store(str(url)).list("")) == []


@pytest.mark.slow
def test_a_directory_passes_and_is_gone_again(cli: Cli, tmp_path: Path) -> None:
    check_passes(cli, tmp_path / "new" / "store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_is_in_a_directory_stays(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    table = cli("check-store", tmp_path, *SMALL)
    assert table.code == 0
    assert "can be used" in table.out
    assert "no update is lost among many writers" in table.out
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("mine", "mine")]


@pytest.mark.slow
def test_a_bucket_passes_and_is_empty_again(s3_url: str) -> None:
    """By those checks that leave most behind: MinIO passes all, and so does this server in tests/store."""
    uploads = "exactly one of many uploads in parts to a key is completed"
    checks = chosen(uploads, "others read at once what was written", DATABASE)
    report = check_store(s3_url, load=Load(commits=2), checks=checks)
    assert {result.outcome for result in report.results} == {CheckOutcome.OK}
    assert (report.ok, report.remaining) == (True, ())
    assert list(open_store(s3_url).list("")) == []


@pytest.mark.slow
def test_minio_passes_and_is_empty_again(cli: Cli, minio_url: str) -> None:
    check_passes(cli, minio_url)


@pytest.mark.parametrize(
    ("condition", "broken", "sound"),
    [
        ("If-None-Match", "create needs a free key", "a replacement needs the etag that is there"),
        ("If-Match", "a replacement needs the etag that is there", "create needs a free key"),
    ],
)
def test_a_server_that_ignores_a_condition_is_named_unfit(
    proxy: Proxy, s3_url: str, condition: str, broken: str, sound: str
) -> None:
    for method in ("PUT", "POST"):
        proxy.rule(f"ignore {condition.lower()}", method=method, times=None)
    uploads = "exactly one of many uploads in parts to a key is completed"
    report = check_store(s3_url, checks=chosen(broken, sound, uploads, DATABASE))
    assert not report.ok
    found = {result.name: result for result in report.results}
    assert (found[broken].outcome, found[sound].outcome) == (CheckOutcome.FAILED, CheckOutcome.OK)
    assert (found[uploads].outcome is CheckOutcome.FAILED) == (condition == "If-None-Match")
    assert condition in found[broken].means
    assert "Do not use this store" in found[broken].means
    assert found[DATABASE].outcome is CheckOutcome.LEFT_OUT
    assert list(open_store(s3_url).list("")) == []


def test_a_missing_permission_is_named_and_only_what_needs_it_is_left_out(proxy: Proxy, s3_url: str) -> None:
    proxy.rule("forbid", method="POST", query="delete", times=None)
    deletes = "creating and deleting side by side never fails"
    report = check_store(s3_url, load=Load(commits=1), checks=chosen("create needs a free key", deletes, DATABASE))
    assert report.ok
    found = {result.name: result for result in report.results}
    assert (found["may delete"].outcome, found[deletes].outcome) == (CheckOutcome.LACKS, CheckOutcome.LEFT_OUT)
    assert (found["create needs a free key"].outcome, found[DATABASE].outcome) == (CheckOutcome.OK, CheckOutcome.OK)
    assert "s3:DeleteObject" in found["may delete"].means
    keys = [each.key for each in open_store(s3_url).list("")]
    assert [url.removeprefix(f"{s3_url}/") for url in report.remaining] == keys
    assert report.remaining


def test_who_may_not_write_is_told_so_and_nothing_else_is_tried(cli: Cli, proxy: Proxy, s3_url: str) -> None:
    proxy.rule("forbid", method="PUT", times=None)
    done = cli("check-store", s3_url)
    assert done.code == 1
    assert "s3:PutObject" in " ".join(done.out.split())
    assert len([request for request in proxy.requests() if request.method == "PUT"]) == 1


def test_a_bucket_that_is_not_there_is_said_to_be_so(cli: Cli, s3_url: str) -> None:
    done = cli("check-store", "s3://no-such-bucket-here/prefix")
    assert (done.code, "no bucket 'no-such-bucket-here'" in done.err) == (3, True)


@pytest.mark.slow
def test_an_interrupted_check_leaves_nothing(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "dolmen"), "check-store", str(tmp_path / "store")]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("store/check-store-*/exactly-one-of-many*")):
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: all processes of it
    _, said = running.communicate(timeout=60)
    assert (running.returncode, b"Traceback" in said) == (130, False), said
    assert list(tmp_path.iterdir()) == []


def test_threads_of_an_interrupted_check_write_nothing_any_more() -> None:
    store = MemoryStore(shared_bucket("memory://interrupted"), Runtime())
    sandbox = Sandbox(store, lambda _: store, lambda function: None)
    all_write = threading.Barrier(4)

    def write(number: int) -> None:
        all_write.wait()
        if number == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            sandbox.raise_if_stopped()
            store.put(f"{number}", b"x")

    others = signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark has one of its own
    try:
        with pytest.raises(KeyboardInterrupt):
            sandbox.run_threads(write, 4)
    finally:
        signal.signal(signal.SIGINT, others)
    store.delete([str(number) for number in range(4)])
    time.sleep(0.05)
    assert list(store.list("")) == []


def test_no_thread_works_when_the_start_of_the_last_one_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    class InterruptedExecutor(ThreadPoolExecutor):
        started = 0

        def submit(self, *arguments: Any, **named: Any) -> Any:
            future = super().submit(*arguments, **named)
            self.started += 1
            if self.started == 4:
                raise KeyboardInterrupt
            return future

    monkeypatch.setattr(contract, "ThreadPoolExecutor", InterruptedExecutor)
    store = MemoryStore(shared_bucket("memory://interrupted-start"), Runtime())
    called: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        Sandbox(store, lambda _: store, lambda function: None).run_threads(called.append, 4)
    assert called == []


class Forgetful(MemoryStore):
    """A store that acknowledges every replacement, and keeps every other one."""

    replacements = 0

    def put(self, key: str, body: Buffer, *, if_match: str | None = None) -> PutOutcome:
        if if_match is not None:
            self.replacements += 1
            if self.replacements % 2:
                return Stored(if_match)
        return super().put(key, body, if_match=if_match)


class ForgetfulSite(Site):
    def open(self, name: str = "", runtime: Any = None) -> MemoryStore:
        return Forgetful(shared_bucket(f"{self.url}/{name}"), runtime or self.runtime)


def test_lost_updates_are_counted() -> None:
    name = "no update is lost among many writers"
    load = Load(writers=2, increments=4)
    report = check_store("memory://forgetful", load=load, checks=chosen(name), site=ForgetfulSite)
    (result,) = [result for result in report.results if result.name == name]
    assert result.outcome is CheckOutcome.FAILED
    assert "increments were acknowledged" in result.problem
    assert "would be lost" in result.means
