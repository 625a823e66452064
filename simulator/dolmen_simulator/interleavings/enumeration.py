"""All executions of a pair: every interleaving without faults, then every one with each single fault at each point."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from dolmen_simulator.interleavings.checks import Judge, Pair, PreparedDatabase, prepare
from dolmen_simulator.interleavings.execution import Execution
from dolmen_simulator.interleavings.search import Search
from dolmen_simulator.interleavings.steps import Fault, distinct_fates, fates, fates_in_outages
from dolmen_simulator.judge.never import ViolationError
from dolmen_simulator.world.fates import Fate, StoreRequest, Verb
from dolmen_simulator.world.scheduler import START_US


class ExecutionError(AssertionError):
    """An execution in which something happened that must never happen.

    Args:
        pair: name of the pair.
        choices, fault: arguments that replay the execution.
        violation: the violation.
        story: all steps, in words.
    """

    def __init__(
        self, pair: str, choices: tuple[int, ...], fault: Fault | None, violation: ViolationError, story: list[str]
    ) -> None:
        super().__init__(pair, choices, fault, violation, story)
        self.pair, self.choices, self.fault, self.violation, self.story = pair, choices, fault, violation, story

    @property
    def command(self) -> str:
        """The command that replays this execution."""
        fault = f" --fault {self.fault}" if self.fault else ""
        choices = ",".join(map(str, self.choices))
        return f'python -m dolmen_simulator.interleavings "{self.pair}" --choices {choices}{fault}'

    def __str__(self) -> str:
        return "\n".join([f"violation: {self.violation}", f"pair: {self.pair}", *self.story, f"replay: {self.command}"])


class FaultTally(msgspec.Struct, frozen=True):
    """The result of every interleaving of a pair with one fault, or without any.

    Args:
        pair: name of the pair.
        fault: the fault; None for none.
        executions: distinct executions in which the fault struck, each run to its end and judged.
        cut: runs that were found equivalent to others before their end.
        same: runs in which the fault struck nothing, which equal runs without it.
        ends: ends of the executions, see ``Judge.end``.
        faults: faults that may strike requests of these executions; only in the tally without any fault.
        seconds: run time.
    """

    pair: str
    fault: Fault | None
    executions: int
    cut: int
    same: int
    ends: frozenset[bytes]
    faults: tuple[Fault, ...]
    seconds: float


@dataclass(frozen=True)
class PairCount:
    """The result of the enumeration of a pair.

    Args:
        executions: distinct executions, each run to its end and judged.
        cut: runs that were equivalent to others: found before their end, or because their fault struck nothing.
        alike: executions with the same end as another.
        faults: faults, each with all its interleavings.
        seconds: run time of all processes together.
        bounds: faults that were left out although they might lead to a new end; "" for none.
    """

    pair: str
    executions: int
    cut: int
    alike: int
    faults: int
    seconds: float
    bounds: str = ""

    @classmethod
    def of(cls, pair: Pair, tallies: Iterable[FaultTally], *, quick: bool) -> PairCount:
        """Sums up all tallies of a pair."""
        every = list(tallies)
        executions = sum(tally.executions for tally in every)
        return cls(
            pair.name,
            executions,
            sum(tally.cut + tally.same for tally in every),
            executions - len(frozenset[bytes]().union(*(tally.ends for tally in every))),
            sum(tally.fault is not None for tally in every),
            sum(tally.seconds for tally in every),
            _describe_bounds(pair) if quick else "",
        )

    def __str__(self) -> str:
        bounds = f" ({self.bounds})" if self.bounds else ""
        return (
            f"{self.pair}: {self.executions} executions with {self.faults} faults{bounds} and none, "
            f"{self.cut} cut as equivalent, {self.alike} ended like another, {self.seconds:.1f} s"
        )


class Enumeration:
    """All executions of one pair.

    Args:
        pair: which.
        quick: leave out faults that cannot lead to a new end, and those that ``Pair.quick`` leaves out.
    """

    def __init__(self, pair: Pair, *, quick: bool = False) -> None:
        self.pair, self._quick = pair, quick
        self.struck_tasks = pair.quick if quick else (0, 1)
        self.prepared: PreparedDatabase = prepare(pair, START_US)
        self.judge = Judge(pair, self.prepared)

    def start(self, fault: Fault | None = None) -> Execution:
        """Begins an execution."""
        tasks = tuple(call.task for call in self.pair.calls)
        return Execution(self.prepared.objects, tasks, self.prepared.now_us, fault)

    def run(self) -> PairCount:
        """Runs and judges all executions. Raises ExecutionError at the first violation."""
        undisturbed = self.tally(None)
        return PairCount.of(self.pair, [undisturbed, *map(self.tally, undisturbed.faults)], quick=self._quick)

    def tally(self, fault: Fault | None) -> FaultTally:
        """Runs and judges all executions with one fault, or with none. Raises ExecutionError at the first violation."""
        began, executions, same = time.perf_counter(), 0, 0
        ends: set[bytes] = set()
        faults: dict[Fault, None] = {}
        search = Search(lambda: self.start(fault))
        for execution in search:
            if fault is not None and not execution.struck:
                same += 1
                continue
            executions += 1
            ends.add(self._judge(execution))
            if fault is None:
                faults.update(dict.fromkeys(self._faults(execution)))
        seconds = time.perf_counter() - began
        return FaultTally(self.pair.name, fault, executions, search.cut, same, frozenset(ends), tuple(faults), seconds)

    def replay(self, choices: tuple[int, ...], fault: Fault | None) -> Execution:
        """Runs and judges one execution. After the given choices, the lowest waiting number continues."""
        execution = self.start(fault)
        try:
            for choice in choices:
                execution.advance(choice)
            while execution.waiting:
                execution.advance(min(execution.waiting))
            self._judge(execution)
        finally:
            execution.stop()
        return execution

    def _faults(self, execution: Execution) -> Iterator[Fault]:
        """All faults that may strike the requests of an execution."""
        for task in self.struck_tasks:
            for at, request in enumerate(execution.requests[task]):
                if self.pair.outages:
                    for lasts in self.pair.outages:
                        yield from (Fault(task, at, fate, lasts) for fate in fates_in_outages(request))
                    continue
                if task in self.pair.stalls and not self._quick:
                    yield Fault(task, at, None)
                for fate in self._fates(request, at):
                    yield Fault(task, at, fate)

    def _fates(self, request: StoreRequest, at: int) -> tuple[Fate, ...]:
        if not self._quick:
            return fates(request)
        if self.pair.quick_fates is None:
            return distinct_fates(request, at)
        return self.pair.quick_fates if request.if_match and request.verb is Verb.PUT else ()

    def _judge(self, execution: Execution) -> bytes:
        try:
            return self.judge.judge(execution)
        except ViolationError as error:
            raise ExecutionError(
                self.pair.name, execution.choices, execution.fault, error, story(self.pair, execution)
            ) from error


def _describe_bounds(pair: Pair) -> str:
    """The faults to which quick mode limits a pair; "" if the others cannot lead to a new end."""
    struck = "of the first of the two" if pair.quick == (0,) else ""
    if pair.quick_fates is None:
        return struck
    if not pair.quick_fates:
        return "all left out"
    return f"{' and '.join(fate.name.lower() for fate in pair.quick_fates)} of pointers {struck}".strip()


def story(pair: Pair, execution: Execution) -> list[str]:
    """An execution in words, step by step."""
    lines = [f"{number}: {call.name}" for number, call in enumerate(pair.calls)]
    for step in execution.steps:
        result = f" -> {step.result}" if step.result else ""
        indent = "    " * step.who
        lines.append(f"{step.at:4}  {indent}{step.who}: {step.waiting.description}{result}")
        for number, outcome in enumerate(execution.outcomes):
            if outcome.last == step.at:
                lines.append(f"      {indent}{number}: {outcome}")
    return lines
