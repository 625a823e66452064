"""A function may die between any two requests: what is delivered again is applied once, and rejected once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.service.functions.function_settings import FunctionResources
from dolmen.store import open_store
from support.crashing_store import Countdown, Crash, CrashingStore
from support.functions import World

HEAD = "id,user_id,kind\n"

pytestmark = pytest.mark.filterwarnings("ignore:No application metrics")  # of an invocation that died


def crash_everywhere(world: World, function: str, deliver: Callable[[], list[str]], check: Callable[[], None]) -> int:
    """Delivers with a crash at the first verb, then at the second ... before and after it; returns how many there
    were. Each time what was delivered is delivered again, to the end, and ``check`` looks at the outcome."""
    step = 0
    while True:
        step += 1
        countdown = Countdown((step + 1) // 2, after=step % 2 == 0)
        world.restart()
        inject(world, function, countdown)
        try:
            assert deliver() == []
        except Crash:
            world.restart()
            assert deliver() == []
            check()
            continue
        check()
        return step - 1


def inject(world: World, function: str, countdown: Countdown) -> None:
    runtime = Runtime(threads=1)

    def opened(settings: Any) -> Any:
        store: Any = CrashingStore(open_store(world.url, runtime), countdown)
        resources = FunctionResources(settings)
        resources.database, landing = Database(store, runtime), resources.landing
        if function == "delete":
            return resources
        for url in (settings.landing_url, f"{settings.landing_url}/rejected"):
            crashing: Any = CrashingStore(open_store(url, runtime), countdown)
            landing._stores[url] = crashing
        return resources

    world.functions[function]._open = opened  # type: ignore[attr-defined]


@pytest.mark.slow
def test_ingest_survives_a_crash_at_every_step(world: World) -> None:
    world.create()
    round_ = 0
    records: list[dict[str, Any]] = []

    def deliver() -> list[str]:
        return world.ingest(*records)

    def check() -> None:
        nonlocal round_
        assert world.ids() == sorted([1, 2, 3] * (round_ + 1))
        assert len(world.rejects()) == round_ + 1
        round_ += 1
        fresh()

    def fresh() -> None:
        records[:] = [
            world.drop(f"events/{round_}-{name}.csv", HEAD + body)
            for name, body in (("a", "1,1,x\n2,2,x\n"), ("bad", "4,4,x\n5,5\n"), ("b", "3,3,x\n"))
        ]

    fresh()
    steps = crash_everywhere(world, "ingest", deliver, check)
    print(f"{steps} crashes")
    assert steps >= 20
    assert {report["line"] for report in world.rejects().values()} == {3}


@pytest.mark.slow
def test_rows_are_quarantined_once_whenever_a_crash_comes(world: World) -> None:
    world.create()
    world.database.table("events").set(ingest_on_bad_row="quarantine", ingest_landing="expire")
    round_ = 0
    records: list[dict[str, Any]] = []

    def fresh() -> None:
        records[:] = [world.drop(f"events/{round_}.csv", f"{HEAD}1,1,x\nx,1,x\n2,2,x\n")]

    def check() -> None:
        nonlocal round_
        round_ += 1
        assert world.ids() == sorted([1, 2] * round_)
        assert [report["rows"] for report in world.rejects().values()] == [1] * round_
        fresh()

    fresh()
    assert crash_everywhere(world, "ingest", lambda: world.ingest(*records), check) >= 16


def test_deletes_survive_a_crash_at_every_step(world: World) -> None:
    world.create()
    table = world.database.table("events")
    table.append([{"id": n, "user_id": n, "kind": "x"} for n in range(100)])
    round_ = 0

    def deliver() -> list[str]:
        bodies = [{"table": "events", "keys": [2 * round_ + n], "request_id": f"{round_}-{n}"} for n in (0, 1)]
        return world.delete(*bodies)

    def check() -> None:
        nonlocal round_
        round_ += 1
        assert world.ids() == list(range(2 * round_, 100))
        assert world.versions("delete") == round_

    assert crash_everywhere(world, "delete", deliver, check) >= 8
