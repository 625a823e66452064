"""All executions of a pair that differ, each once: depth first, by running a prefix of choices anew.

Two steps commute if they touch different objects, or only read; executions that differ in the order of such steps
alone are the same one. They are left out by dynamic partial-order reduction with source sets and sleep sets (Abdulla,
Aronsson, Jonsson, Sagonas: Optimal dynamic partial order reduction, POPL 2014, algorithm 1): whatever the order of two
steps that do not commute was in one execution, another one has it the other way round, if there is one. Since the
tasks are deterministic and always able to go on, nothing is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dolmen_simulator.interleavings.execution import Execution
from dolmen_simulator.interleavings.steps import Footprint


@dataclass
class _Node:
    """A point of an execution.

    Args:
        enabled: what each could do next.
        sent: by which step each was sent on its way.
        sleep: who need not go on from here: that was looked at before.
        backtrack: who is to go on from here some time.
        chosen: who does in this execution.
        did: what that was in the end.
        before: steps that must have been before the chosen one, as bits.
    """

    enabled: dict[int, Footprint]
    sent: dict[int, int | None]
    sleep: set[int]
    backtrack: set[int]
    chosen: int
    did: Footprint
    before: int = 0

    @property
    def sent_by(self) -> int | None:
        """The step that sent what the chosen one is, if it is a request on its way."""
        return self.sent[self.chosen]


@dataclass
class Search:
    """Counts what it does.

    Args:
        start: begins an execution.
        reduced: leave out what is equivalent; otherwise every single order of steps is run.
    """

    start: Callable[[], Execution]
    reduced: bool = True
    executions: int = 0
    cut: int = 0
    _stack: list[_Node] = field(default_factory=list)

    def __iter__(self) -> Iterator[Execution]:
        """Each execution at its end. The one before is gone by the time of the next."""
        while True:
            execution = self.start()
            try:
                for node in self._stack:
                    execution.advance(node.chosen)
                whole = self._extend(execution)
                for node, step in zip(self._stack, execution.steps, strict=True):
                    node.did = step.did
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
            if not self._turn():
                return

    def _extend(self, execution: Execution) -> bool:
        """Goes on to the end; False if all that could still come was looked at before."""
        while execution.waiting:
            last = self._stack[-1] if self._stack else None
            enabled = {who: waiting.does for who, waiting in execution.waiting.items()}
            sleep: set[int] = set()
            if last is not None and self.reduced:
                sleep = {who for who in last.sleep if not last.enabled[who].conflicts(last.enabled[last.chosen])}
            awake = sorted(enabled.keys() - sleep)
            if not awake:
                return False
            chosen = last.chosen if last is not None and last.chosen in awake else awake[0]
            backtrack = {chosen} if self.reduced else set(enabled)
            sent = {who: waiting.sent_by for who, waiting in execution.waiting.items()}
            self._stack.append(_Node(enabled, sent, sleep, backtrack, chosen, enabled[chosen]))
            execution.advance(chosen)
        return True

    def _turn(self) -> bool:
        """Takes the next choice of the deepest point that has one left."""
        while self._stack:
            node = self._stack[-1]
            node.sleep.add(node.chosen)
            if left := sorted(node.backtrack - node.sleep):
                node.chosen, node.before = left[0], 0
                return True
            self._stack.pop()
        return False

    def _race(self, at: int) -> None:
        """Finds the steps that the one at ``at`` could have come before, and sees to it that it once does."""
        stack = self._stack
        node, before = stack[at], 0
        for index in range(at - 1, -1, -1):
            other = stack[index]
            if before >> index & 1:
                continue
            own = other.chosen == node.chosen or node.sent_by == index
            if own or other.did.conflicts(node.did):
                before |= other.before | 1 << index
                if not own:
                    self._reverse(index, at)
        node.before = before

    def _reverse(self, index: int, at: int) -> None:
        """Somebody goes on at ``index`` with what leads to the step ``at`` without the one that was chosen there."""
        stack = self._stack
        after = [k for k in range(index + 1, at) if not stack[k].before >> index & 1]
        first: set[int] = set()
        seen: set[int] = set()
        for k in (*after, at):
            who = stack[k].chosen
            # Of the one at ``at`` the steps before are not known yet: those that it conflicts with, or follows.
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
            if other.chosen == node.chosen or node.sent_by == k or other.did.conflicts(node.did):
                before |= other.before | 1 << k
        return before
