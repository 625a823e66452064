"""A failing history is made small, and what is left of it is the same each time it is replayed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import count

import pytest

from dolmen.base.records import replace
from dolmen.base.runtime import Runtime
from dolmen.cli import main
from dolmen.commit.draft import Draft
from dolmen.commit.statements.background import Compact, Group
from dolmen.errors import InputError
from dolmen_simulator import shrinking
from dolmen_simulator.judge.never import Never
from dolmen_simulator.simulation import KINDS, simulate
from dolmen_simulator.world.replay import HistoryFailure, Replay
from dolmen_simulator.world.trace import Event, Trace, lines, shorten

UUID = "0123456789abcdef" * 2


def failing(replay: Replay) -> HistoryFailure:
    found = shrinking.run(replay)
    assert isinstance(found, HistoryFailure), "nothing went wrong"
    return found


def tries(number: int) -> Runtime:
    """A clock on which each history takes a second."""
    ticks = count()
    return Runtime(monotonic=lambda: float(next(ticks)) * 60 / number)


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge takes every commit for one that came too late: the smallest history has one create."""
    monkeypatch.setattr("dolmen_simulator.judge.ledger.SETTLED_US", -1)


@pytest.mark.slow
@pytest.mark.usefixtures("unsettled")
def test_of_a_failing_history_only_what_it_takes_is_left() -> None:
    told: list[int] = []
    before = failing(Replay(3, 2_000))
    done = shrinking.shrink(before, seconds=300, progress=lambda smallest, tried: told.append(tried))
    after = done.failure
    assert done.finished
    assert told == list(range(1, done.histories + 1))
    assert (after.never, len(after.actors)) == (before.never, 1)
    assert after.replay.steps < 20
    assert after.replay.without == ("all",)
    assert after.events[-1].kind == "violation"


@pytest.mark.slow
def test_rows_that_compaction_loses_are_found_and_the_history_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Compact.apply

    def loses(self: Compact, draft: Draft, ts: int) -> None:
        sound(replace(self, fitting=tuple(Group(group.inputs, ()) for group in self.fitting)), draft, ts)

    monkeypatch.setattr(Compact, "apply", loses)
    before = next(
        found
        for seed in range(100)
        if isinstance(found := shrinking.run(Replay(seed, 1_000)), HistoryFailure) and found.never is Never.LOST
    )
    after = shrinking.shrink(before, runtime=tries(40)).failure
    assert after.never is Never.LOST
    assert len(after.actors) < len(before.actors) / 2
    again = failing(after.replay)
    assert (again.replay, again.reason, again.digest) == (after.replay, after.reason, after.digest)


@pytest.mark.slow
@pytest.mark.usefixtures("unsettled")
def test_when_time_is_over_the_smallest_so_far_is_good_enough() -> None:
    done = shrinking.shrink(failing(Replay(3, 2_000)), runtime=tries(2))
    assert not done.finished
    assert done.histories <= 2
    assert failing(done.failure.replay).digest == done.failure.digest


@pytest.mark.slow
def test_who_is_left_out_leaves_the_others_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a stream of its own: the first request of those who stay is sent when it was, and fares as it did."""
    some = ("founder-1", "appender-1", "deleter-1", "compactor-2", "reader-1")
    whole = simulated(Replay(5, 300), monkeypatch)
    part = simulated(Replay(5, 300, only=some), monkeypatch)
    for name in some:
        assert first(name, whole) == first(name, part)


def test_what_is_left_out_does_not_happen() -> None:
    calm = simulate(11, 300, without=["all"])
    assert calm.counts["crashes before"] == 0
    assert simulate(11, 300, without=KINDS).digest == calm.digest
    assert simulate(11, 300, only=["founder-1"]).counts["reads"] == 0


@pytest.mark.parametrize(
    ("part", "told"),
    [({"only": ["nobody-1"]}, "no actors nobody-1"), ({"without": ["rain"]}, "no kinds of faults rain")],
)
def test_a_name_that_is_not_there_is_refused_with_those_that_are(part: dict[str, list[str]], told: str) -> None:
    with pytest.raises(InputError, match=f"{told}.*(founder-1|crash)"):
        simulate(1, 10, **part)  # type: ignore[arg-type]


# ---- what people see


def test_names_are_shortened_the_same_everywhere() -> None:
    data = f"data/left/2026/01/01/07/{UUID}.parquet"
    assert shorten(data) == "data/left/01234567.parquet"
    assert shorten(f"{UUID}-{UUID}") == "01234567-01234567"
    assert shorten("manifest/v00000000000000000124-abcdef12.json") == "manifest/v124-abcdef12.json"
    assert shorten("_latest_manifest") == "_latest_manifest"


def test_a_trace_stands_in_columns_and_keeps_as_much_as_it_is_asked_to() -> None:
    trace = Trace(keep=3)
    for number in range(5):
        trace.step(number, "a-1", "get", f"key-{number}", "ok")
    trace.step(9, "longer-name-1", "complete upload", "k", "lost")
    trace.violation(10, "lost: a row")
    shown = [line for _, line in lines(trace.events)]
    assert len(shown) == 3
    assert shown[0].index("ok") == shown[1].index("lost")
    assert shown[-1].endswith("!! lost: a row")
    assert [event.who for event, _ in lines(trace.events, ["a-1"])] == ["a-1", ""]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dolmen", "simulate", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return code, capsys.readouterr().out

    return run


@pytest.mark.slow
@pytest.mark.usefixtures("unsettled")
def test_the_command_ends_with_1_and_prints_the_command_that_shows_it_again(
    cli: Callable[..., tuple[int, str]],
) -> None:
    code, out = cli("--seed", 3, "--steps", 500)
    assert code == 1
    replay = out.splitlines()[-1].removeprefix("replay: dolmen simulate ")
    assert "--without all" in replay
    again, same = cli(*replay.split(), "--no-shrink")
    assert (again, same) == (1, out)


@pytest.mark.slow
@pytest.mark.usefixtures("unsettled")
def test_the_command_has_all_of_it_for_machines(cli: Callable[..., tuple[int, str]]) -> None:
    code, out = cli("--seed", 3, "--steps", 500, "--no-shrink", "--trace", "all", "--json")
    document = json.loads(out)
    assert (code, document["never"], document["seed"]) == (1, failing(Replay(3, 500)).kind, 3)
    assert document["trace"][-1]["kind"] == "violation"
    assert document["command"].startswith("dolmen simulate --seed 3 --steps 500")


@pytest.mark.slow
def test_histories_are_summed_up(cli: Callable[..., tuple[int, str]]) -> None:
    code, out = cli("--seed", 1, "--steps", 100, "--histories", 3)
    assert (code, "in 3 histories" in out, " steps  " in out) == (0, True, True)
    code, out = cli("--seed", 1, "--steps", 100, "--histories", 2, "--jobs", 2, "--json")
    assert [json.loads(line)["digest"] for line in out.splitlines()] == [simulate(n, 100).digest for n in (1, 2)]


def simulated(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> tuple[Event, ...]:
    """All events of a history in which nothing goes wrong."""
    traces: list[Trace] = []

    class Kept(Trace):
        def __init__(self, keep: int | None = None) -> None:
            super().__init__(None)
            traces.append(self)

    with monkeypatch.context() as patch:
        patch.setattr("dolmen_simulator.simulation.Trace", Kept)
        simulate(replay.seed, replay.steps, only=replay.only)
    return traces[0].events


def first(who: str, events: tuple[Event, ...]) -> Event:
    return next(event for event in events if event.who == who and event.kind == "request")
