"""The figures of the part ``spark``, one line each, with targets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from bench.spark.cpu import Spent
from bench.spark.workers import Worker, in_turns
from bench.spark.writes import WRITES

CLEAN, DELETED = "clean", "1 % deleted"

#: State of dolmen's table, and the most that the ratio of processor time to plain Spark is to be, by query.
READS: dict[str, dict[str, float | None]] = {
    CLEAN: {"two columns": 1.05, "all columns": 1.05},
    DELETED: {"two columns": 1.6, "all columns": 1.3},
    "two predicates": {"two columns": 1.3, "all columns": 1.3},
    "1 % of keys, unresolved": {"two columns": None, "all columns": None},
}
WARM_UPS = {"two columns": 8, "all columns": 3}
"""Of each query in each state: the JVM keeps compiling what it runs often, and that costs processor time."""

#: Method, title, and arguments by round.
DELETES: tuple[tuple[str, str, Callable[[int], tuple[int, ...]]], ...] = (
    ("delete_user", "delete of one user", lambda number: (100 + number,)),
    ("delete_keys", "delete of 1 % of the keys", lambda number: ()),
)
ONE_USER_SECONDS = 0.1
AHEAD = 5
"""Target: deletes are this many times as fast as the others'."""


@dataclass(frozen=True)
class Line:
    """Medians of rounds in turns: what each did, and ratios pair by pair.

    Args:
        name: what was measured.
        spent: medians, by engine; ``plain`` is Spark itself, on dolmen's own files.
        ratios: processor time over that of Spark itself on the same engine's files, by engine.
        over: dolmen's processor time over that of others, by their name.
        faster: the others' seconds by the clock over dolmen's, by their name.
        targets: sentences.
    """

    name: str
    spent: dict[str, Spent]
    ratios: dict[str, float]
    over: dict[str, float]
    faster: dict[str, float]
    targets: tuple[str, ...] = ()


def reads(engines: Sequence[Worker], rounds: int, warm_ups: dict[str, int] = WARM_UPS) -> Iterator[Line]:
    """Queries of the table in all its states; of clean and dirty tables of all engines."""
    for state, targets in READS.items():
        asked = engines if state in (CLEAN, DELETED) else engines[:1]
        for engine in asked:
            engine.call("go_back", state)
        for query, target in targets.items():
            calls = [partial(engine.call, method, query) for engine in asked for method in ("plain", "query")]
            found = in_turns(calls, rounds, warm_ups[query])
            _check(state, query, [spent[-1] for spent in found])
            plain, ours = found[0], found[1]
            theirs = {engine.name: found[2 * place + 1] for place, engine in enumerate(asked)}
            ratios = {engine.name: _ratio(found[2 * place + 1], found[2 * place]) for place, engine in enumerate(asked)}
            over = {name: _ratio(ours, other) for name, other in theirs.items() if other is not ours}
            told = [_told(f"{ratios[asked[0].name]:.2f} x plain", ratios[asked[0].name], target)] if target else []
            if "Iceberg" in over:
                told.append(_told(f"{over['Iceberg']:.2f} x Iceberg", over["Iceberg"], 1.0))
            spent = {"plain": _median(plain)} | {name: _median(some) for name, some in theirs.items()}
            yield Line(f"{query}, {state}", spent, ratios, over, {}, tuple(told))


def parts(ours: Worker, rounds: int) -> str:
    """What a query of few columns of a dirty table spends its time on, in words."""
    ours.call("go_back", DELETED)
    split: list[dict[str, Spent]] = [ours.call("split", "two columns") for _ in range(rounds)]
    made, planned, run = (_median([found[step] for found in split]) for step in ("frame", "plan", "run"))
    return (
        f"Of dolmen's sum of two columns with 1 % deleted: making the frame {made.cpu:.3f} s of processor time "
        f"({made.driver:.3f} in Python), Spark's planning {planned.cpu:.3f}, running it {run.cpu:.3f}."
    )


def deletes(engines: Sequence[Worker], rounds: int) -> Iterator[Line]:
    """Deletes from clean tables."""
    for method, title, arguments in DELETES:
        found = [_deleting(engines, method, arguments, number - 2) for number in range(rounds + 2)][2:]
        by_engine = {engine.name: [row[place] for row in found] for place, engine in enumerate(engines)}
        ours = by_engine[engines[0].name]
        others = {name: spent for name, spent in by_engine.items() if spent is not ours}
        faster = {name: _ratio(spent, ours, "wall") for name, spent in others.items()}
        over = {name: _ratio(ours, spent) for name, spent in others.items()}
        median = {name: _median(spent) for name, spent in by_engine.items()}
        told = []
        if method == "delete_user":
            told.append(_told(f"{median[engines[0].name].wall:.3f} s", median[engines[0].name].wall, ONE_USER_SECONDS))
        told += [
            _told(f"{ahead:.1f} x as fast as {name}", -ahead, -AHEAD, f">= {AHEAD}") for name, ahead in faster.items()
        ]
        yield Line(title, median, {}, over, faster, tuple(told))
    ours = [
        _deleting(engines[:1], "delete_keys_and_resolve", lambda number: (), number)[0] for number in range(rounds + 1)
    ]
    yield Line(
        "the same, and what background work does with it later", {engines[0].name: _median(ours[1:])}, {}, {}, {}
    )
    for engine in engines:
        engine.call("go_back", CLEAN)


def _deleting(
    engines: Sequence[Worker], method: str, arguments: Callable[[int], tuple[int, ...]], number: int
) -> list[Spent]:
    spent = []
    for engine in engines:
        engine.call("go_back", CLEAN)
        spent.append(engine.spend_on(method, *arguments(number)))
    return spent


def writes(writer: Worker, rounds: int) -> Iterator[Line]:
    """dolmen's writes, compared with Spark's own writer."""
    for name, ours, theirs, target in WRITES:
        found = in_turns([partial(writer.call, *ours), partial(writer.call, *theirs)], rounds, 1)
        ratio = _ratio(found[0], found[1])
        told = (_told(f"{ratio:.2f} x plain", ratio, target),) if target else ()
        yield Line(name, {"plain": _median(found[1]), "dolmen": _median(found[0])}, {"dolmen": ratio}, {}, {}, told)


def _check(state: str, query: str, found: Sequence[Spent]) -> None:
    """Every engine answers the same, and Spark itself on each one's files."""
    for answers in (found[0::2], found[1::2]):
        for other in answers[1:]:
            if not _same(answers[0].result, other.result):
                raise AssertionError(f"{query}, {state}: {answers[0].result} is not {other.result}")


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(one, other, strict=True)
    )


def _median(spent: Sequence[Spent]) -> Spent:
    return Spent(*(statistics.median(getattr(one, name) for one in spent) for name in ("driver", "others", "wall")))


def _ratio(ours: Sequence[Spent], theirs: Sequence[Spent], of: str = "cpu") -> float:
    return float(statistics.median(getattr(a, of) / getattr(b, of) for a, b in zip(ours, theirs, strict=True)))


def _told(what: str, found: float, target: float, bound: str = "") -> str:
    return f"{what} ({bound or f'<= {target:.2f}'}): " + ("reached" if found <= target else "**missed**")
