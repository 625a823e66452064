"""Who else takes part: the pipeline, background work, and those who look whether all is well while it runs."""

from __future__ import annotations

import logging
import random
import signal
import time

from dolmen import Snapshot
from dolmen.commit.head import context_of
from dolmen.errors import RetryableError, UnknownOutcomeError, VersionExpiredError
from dolmen.maintenance.gc.mark import needed_keys
from dolmen.service.local import LocalEvent, run_local
from soak import judge
from soak.actor import Actor
from soak.journal import journals
from soak.world import FUNCTIONS, World

DONE = (
    "drop ingested", "drop duplicate", "delete applied", "delete duplicate", "given up",
    "resolve", "compact", "merge", "collected",
)  # fmt: skip
"""What functions log that is told in the report."""


class Pipeline(Actor):
    """The local pipeline as ``dolmen local`` runs it, functions and schedules included."""

    once = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as anybody may end it, at any time
        layout = self.world.layout
        schedules = {} if self.once else {"compact_seconds": 4.0, "gc_seconds": 5.0}
        run_local(
            layout.database,
            layout.landing,
            layout.queue,
            FUNCTIONS,
            poll_seconds=0.3,
            once=self.once,
            on_event=self._note,
            **schedules,
        )

    def _note(self, event: LocalEvent) -> None:
        if event.text in DONE:
            self.journal.write("told", what=event.text)
        elif event.level >= logging.ERROR:
            self.journal.write("trouble", what=f"{event.function}: {event.text}", facts=repr(event.facts)[:2_000])


class Drain(Pipeline):
    """The same, until all that was dropped has been handled."""

    once = True


class Keeper(Actor):
    """Background work without a pause, of a table or of all, and collection with it."""

    def step(self) -> None:
        dice = random.Random(f"{self.world.seed}/{self.name}/{time.monotonic()}")
        kind = dice.choice(["resolve", "compact", "merge", "maintain", "gc", "gc", "verify"])
        time.sleep(dice.uniform(0, 1))
        try:
            if kind == "verify":
                report = self.db.verify(deep=True)
                if not report.ok:
                    self.journal.write("violation", what=f"unreadable: {report}")
            elif kind in ("resolve", "compact"):
                getattr(self.db, kind)(dice.choice([None, *self.db.tables()]))
            else:
                getattr(self.db, kind)()
        except (RetryableError, UnknownOutcomeError, VersionExpiredError) as error:
            self.journal.write("trouble", what=f"{kind}: {type(error).__name__}")
            return
        self.journal.write("did", what=kind)


class Reader(Actor):
    """Compares versions with the journals while all goes on, and reads old ones again and again until they expire."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.held: list[tuple[Snapshot, judge.Content]] = []
        self.seen: set[str] = set()
        self.names = (world.journals.parent / f"seen-{name}.txt").open("a")

    def step(self) -> None:
        dice = random.Random(f"{self.world.seed}/{self.name}/{time.monotonic()}")
        try:
            if self.held and dice.random() < 0.5:
                self._read_again(dice)
            else:
                self._read(dice)
        except (RetryableError, UnknownOutcomeError) as error:
            self.journal.write("trouble", what=type(error).__name__)
        time.sleep(dice.uniform(0, 0.5))

    def _read(self, dice: random.Random) -> None:
        before = dict(journals(self.world.journals))
        version = self.db.refresh()
        if not version:
            return
        snapshot = self.db.at(version)
        try:
            content = judge.Content.of(snapshot)
        except VersionExpiredError:
            self._check_expired(version)
            return
        found = judge.check(content, version, before, dict(journals(self.world.journals)))
        for what in found:
            self.journal.write("violation", what=what, version=version)
        self._note_objects(snapshot)
        self.held = [*self.held[-20:], (snapshot, content)]
        self.journal.write("did", what="check", version=version)

    def _read_again(self, dice: random.Random) -> None:
        snapshot, content = self.held[place := dice.randrange(len(self.held))]
        try:
            now = judge.Content.of(snapshot)
        except VersionExpiredError:
            self._check_expired(snapshot.version)
            del self.held[place]
            return
        if now != content:
            self.journal.write("violation", what=f"unreadable: version {snapshot.version} shows other rows than before")
        self.journal.write("did", what="read again", version=snapshot.version)

    def _check_expired(self, version: int) -> None:
        self.db.refresh()
        try:
            self.db.at(version)
        except VersionExpiredError:
            self.journal.write("did", what="found expired", version=version)
            return
        self.journal.write("violation", what=f"unreadable: version {version} is said to have expired, and has not")

    def _note_objects(self, snapshot: Snapshot) -> None:
        """Objects that a commit has named: no orphans, whatever becomes of them."""
        try:
            there = set(needed_keys(snapshot.manifest, context_of(self.db).segments))
        except VersionExpiredError:
            return
        self.names.writelines(f"{name}\n" for name in sorted(there - self.seen))
        self.names.flush()
        self.seen |= there
