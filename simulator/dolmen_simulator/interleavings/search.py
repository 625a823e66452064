"""Enumerates all distinct executions of a pair, depth first, by replaying a prefix of choices for each.

Two steps commute if they touch different objects, or only read. Executions that differ only in the order of commuting
steps are equivalent, and only one of them is run, by dynamic partial-order reduction with source sets and sleep sets
(Abdulla, Aronsson, Jonsson, Sagonas: Optimal dynamic partial order reduction, POPL 2014, algorithm 1): for any two
steps that do not commute, some execution has them in each possible order. Since the tasks are deterministic and can
always go on, no end is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dolmen_simulator.interleavings.execution import Execution
from dolmen_simulator.interleavings.steps import Footprint


@dataclass
class _SearchNode:
    """A step of an execution, with the alternatives to it.

    Args:
        enabled: footprint of each pending step, by number.
        sent: index of the step that sent each of them.
        sleep: numbers that need no exploration from here, because it was done before.
        backtrack: numbers that are to be explored from here.
        chosen: number that continues in this execution.
        footprint: footprint of the chosen step after it ran.
        before: steps that happened before the chosen one, as bits.
    """

    enabled: dict[int, Footprint]
    sent: dict[int, int | None]
    sleep: set[int]
    backtrack: set[int]
    chosen: int
    footprint: Footprint
    before: int = 0

    @property
    def sent_by(self) -> int | None:
        """Index of the step that sent the chosen one, if that is a request on its way."""
        return self.sent[self.chosen]


@dataclass
class Search:
    """Iterates over executions, and counts them.

    Args:
        start: begins an execution.
        reduced: leave out equivalent executions; otherwise every order of steps is run.
    """

    start: Callable[[], Execution]
    reduced: bool = True
    executions: int = 0
    cut: int = 0
    _stack: list[_SearchNode] = field(default_factory=list)

    def __iter__(self) -> Iterator[Execution]:
        """Yields each execution at its end, and stops it before the next begins."""
        while True:
            execution = self.start()
            try:
                for node in self._stack:
                    execution.advance(node.chosen)
                whole = self._run_to_end(execution)
                for node, step in zip(self._stack, execution.steps, strict=True):
                    node.footprint = step.footprint
                if self.reduced:
                    for at in range(len(self._stack)):
                        self._race(at)
                if whole:
                    self.executions += 1
                    yield execution
                else:
                    self.cut += 1
            finally:
                execution.stop()
            if not self._take_next_choice():
                return

    def _run_to_end(self, execution: Execution) -> bool:
        """Runs an execution to its end; returns False if the rest was explored before."""
        while execution.waiting:
            last = self._stack[-1] if self._stack else None
            enabled = {who: waiting.footprint for who, waiting in execution.waiting.items()}
            sleep: set[int] = set()
            if last is not None and self.reduced:
                sleep = {who for who in last.sleep if not last.enabled[who].conflicts(last.enabled[last.chosen])}
            awake = sorted(enabled.keys() - sleep)
            if not awake:
                return False
            chosen = last.chosen if last is not None and last.chosen in awake else awake[0]
            backtrack = {chosen} if self.reduced else set(enabled)
            sent = {who: waiting.sent_by for who, waiting in execution.waiting.items()}
            self._stack.append(_SearchNode(enabled, sent, sleep, backtrack, chosen, enabled[chosen]))
            execution.advance(chosen)
        return True

    def _take_next_choice(self) -> bool:
        """Takes the next choice at the deepest step that has one left; returns False if there is none."""
        while self._stack:
            node = self._stack[-1]
            node.sleep.add(node.chosen)
            if left := sorted(node.backtrack - node.sleep):
                node.chosen, node.before = left[0], 0
                return True
            self._stack.pop()
        return False

    def _race(self, at: int) -> None:
        """Finds the earlier steps that race with the step ``at``, and schedules their reversal."""
        stack = self._stack
        node, before = stack[at], 0
        for index in range(at - 1, -1, -1):
            other = stack[index]
            if before >> index & 1:
                continue
            own = other.chosen == node.chosen or node.sent_by == index
            if own or other.footprint.conflicts(node.footprint):
                before |= other.before | 1 << index
                if not own:
                    self._reverse(index, at)
        node.before = before

    def _reverse(self, index: int, at: int) -> None:
        """Schedules, at ``index``, a step that leads to the step ``at`` without the one that was chosen there."""
        stack = self._stack
        after = [k for k in range(index + 1, at) if not stack[k].before >> index & 1]
        first: set[int] = set()
        seen: set[int] = set()
        for k in (*after, at):
            who = stack[k].chosen
            # The steps before ``at`` are not recorded yet: those that it conflicts with, or follows.
            before = stack[k].before if k != at else self._before_last(after, at)
            if who not in seen and not any(before >> earlier & 1 for earlier in after if earlier < k):
                first.add(who)
            seen.add(who)
        if not first & stack[index].backtrack:
            last = stack[at].chosen
            stack[index].backtrack.add(last if last in first else min(first))

    def _before_last(self, after: list[int], at: int) -> int:
        stack, before = self._stack, 0
        node = stack[at]
        for k in after:
            other = stack[k]
            if other.chosen == node.chosen or node.sent_by == k or other.footprint.conflicts(node.footprint):
                before |= other.before | 1 << k
        return before
