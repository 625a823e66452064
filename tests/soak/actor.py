"""One process of a soak: ``python -m soak.actor ROLE NAME WORLD``. May be killed at any time, and started again."""

from __future__ import annotations

import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from dolmen import Database
from dolmen.errors import RetryableError, UnknownOutcomeError
from soak.journal import Journal, Steps
from soak.world import World


class Actor:
    """Does one step after the other until it is told to stop.

    Args:
        name: of this one; its journal's, and its rows' ``writer``.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.journal = Journal(world.journals / f"{name}.jsonl")
        self.steps = Steps(self.journal.entries)
        self.is_over = False
        self._db: Database | None = None
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *signalled: object) -> None:
        self.is_over = True

    @property
    def db(self) -> Database:
        """The database, as this process has opened it."""
        self._db = self._db or self.patiently(self.world.open)
        return self._db

    def run(self) -> None:
        """Until the end."""
        while not self.is_over:
            try:
                self.step()
            except Exception as error:
                self.journal.write("violation", what=f"misreported: {error!r}", traceback=traceback.format_exc())
                raise

    def step(self) -> None:
        """One thing after the other."""
        raise NotImplementedError

    def dice(self, step: int) -> random.Random:
        """Decides a step: the same whenever it is done."""
        return random.Random(f"{self.world.seed}/{self.name}/{step}")

    def patiently(self, call: Callable[[], Any]) -> Any:
        """Repeats what may be repeated, while the server is away, until it succeeds."""
        while True:
            try:
                return call()
            except (RetryableError, UnknownOutcomeError) as error:
                self.journal.write("trouble", what=type(error).__name__)
                time.sleep(0.2)


class Stepping(Actor):
    """An actor whose steps are intents: written down before they are sent, and once more when they have ended."""

    is_repeatable = True
    """Whether a step that may have landed is sent again: under a request's id that is safe."""

    def step(self) -> None:
        unended = self.steps.unended
        if unended is None:
            number = len(self.steps.intents)
            self.journal.write("intent", **{**self.intend(number, self.dice(number)), "step": number})
            self.steps = Steps(self.journal.entries)
            unended = self.steps.intents[-1]
        elif not self.is_repeatable:
            self._end(unended, "unknown")
            return
        try:
            self._end(unended, "acknowledged", version=self.carry_out(unended))
        except UnknownOutcomeError as error:
            self.journal.write("trouble", what=type(error).__name__)
            if not self.is_repeatable:
                self._end(unended, "unknown")
        except RetryableError as error:
            self.journal.write("trouble", what=type(error).__name__)
            if not self.is_repeatable:
                self._end(unended, "refused")
            time.sleep(0.2)

    def _end(self, intent: dict[str, Any], kind: str, **facts: Any) -> None:
        self.journal.write(kind, step=intent["step"], **facts)
        self.steps = Steps(self.journal.entries)

    def intend(self, number: int, dice: random.Random) -> dict[str, Any]:
        """What to do in a step."""
        raise NotImplementedError

    def carry_out(self, intent: dict[str, Any]) -> int | None:
        """Does it; returns the version that shows it, None if that is not told."""
        raise NotImplementedError


def main() -> None:
    """The actor that the command line names."""
    from soak.roles import ROLES

    role, name, world = sys.argv[1:]
    ROLES[role](World.load(world), name).run()


if __name__ == "__main__":
    main()
