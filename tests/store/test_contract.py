"""Every promise of ``dolmen.store.base``, on every store: the checks that ``dolmen check-store`` makes on any."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dolmen.base.runtime import Runtime
from dolmen.errors import ObjectNotFoundError
from dolmen.service.check_store.check_run import CHECKS, OtherProcess, open_client
from dolmen.service.check_store.contract import Check, Load, Sandbox
from dolmen.store import MemoryStore, ObjectStore
from support.stores import KINDS, RUNTIME, keys, make_store, put, reopen

LOAD = Load(writers=16, increments=5, commits=2)


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.slow if kind == "minio" else ()) for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return make_store(kind, tmp_path, lambda server: request.getfixturevalue(f"{server}_url"))


@pytest.fixture(scope="module")
def others() -> Iterator[dict[str, OtherProcess]]:
    """Another process for each kind: it knows its server by the environment that it began with."""
    found: dict[str, OtherProcess] = defaultdict(OtherProcess)
    yield found
    for each in found.values():
        each.close()


@pytest.fixture
def sandbox(kind: str, store: ObjectStore, others: dict[str, OtherProcess]) -> Sandbox:
    def reopen_store(runtime: Runtime | None) -> ObjectStore:
        return reopen(store, runtime) if isinstance(store, MemoryStore) else open_client(store.url, runtime or RUNTIME)

    def elsewhere(function: Callable[..., Any], *arguments: object) -> Any:
        if isinstance(store, MemoryStore):
            return function(reopen_store(None), *arguments)
        return others[kind].call(store.url, function, *arguments)

    return Sandbox(store, reopen_store, elsewhere, LOAD)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name.replace(" ", "-"))
def test_what_dolmen_asks_of_a_store_holds(check: Check, sandbox: Sandbox) -> None:
    check.run(sandbox)


def test_every_check_says_what_holds_and_what_it_means_if_it_does_not() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.promise.endswith("."), check.name
        assert len(check.means) > 20, check.name


def test_reading_where_nothing_is_makes_nothing(store: ObjectStore, tmp_path: Path) -> None:
    assert keys(store) == []
    with pytest.raises(ObjectNotFoundError):
        store.get("_latest_manifest")
    assert [outcome.error for outcome in store.delete(["x"])] == [None]
    assert list(tmp_path.iterdir()) == []


def test_the_clock_of_a_store_on_this_machine_is_the_machines(store: ObjectStore) -> None:
    before = time.time()
    put(store, "key")
    assert abs(store.clock.now_us / 1e6 - time.time()) < 60
    (found,) = store.list("")
    assert before - 2 <= found.last_modified_us / 1e6 <= time.time() + 2
