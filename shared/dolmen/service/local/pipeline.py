"""The loop that feeds files and requests of this machine to the functions, as S3, SQS and the schedules would."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import InputError
from dolmen.ingest.queues import DirectoryQueue, Letter, write_whole
from dolmen.service.local.layout import LandingDirectory, LocalLayout
from dolmen.service.local.local_functions import LocalFunction, Schedule, functions_directory
from dolmen.service.local.page_server import LocalHealthPage, PageServer

MAX_TRIES = 5
MAX_BACKOFF_SECONDS = 60.0
MAX_BATCH = {"ingest": 100, "delete": 500}


@dataclass(frozen=True, slots=True)
class LocalEvent:
    """An event to show to people.

    Args:
        function: ``ingest``, ``delete``, ``compact`` or ``gc``; ``schedule`` for what calls the latter two; ``report``
            for what serves the page about the database's health.
        text: what a function logged ("drop ingested", "committed", ...), or "given up".
        level: as in ``logging``.
        facts: named details: places and numbers, never values of the data.
    """

    function: str
    text: str
    level: int
    facts: dict[str, Any] = field(default_factory=dict)


class LetterSource(Protocol):
    """A source of letters."""

    has_incomplete: bool
    """Whether the last look found files that were still changing."""

    def receive(self) -> Iterator[Letter]:
        """Yields new letters."""

    def acknowledge(self, letter: Letter, *, given_up: bool) -> None:
        """Notes that a letter was handled, or that a dead letter holds it now."""


def run_local(
    database: str,
    landing_dir: str | os.PathLike[str],
    queue_dir: str | os.PathLike[str],
    functions_dir: str | os.PathLike[str] | None = None,
    *,
    poll_seconds: float = 1.0,
    once: bool = False,
    auto_create: bool = False,
    compact_seconds: float | None = None,
    gc_seconds: float | None = None,
    page_port: int | None = None,
    on_event: Callable[[LocalEvent], None] = lambda event: None,
    runtime: Runtime | None = None,
) -> None:
    """Watches a landing and a queue directory, and has the functions handle what comes; until interrupted.

    A file counts when two looks in a row find it unchanged. A writer that pauses for longer must write elsewhere (or
    under a name that begins with ``.`` or ``_``) and rename the file into place. May be killed at any time: what was
    under way is delivered again, and applied once.

    Args:
        database: its URL, or a directory.
        landing_dir: files go to ``<table>/...`` in it, and stay there, unless their table says otherwise.
        queue_dir: delete requests are ``*.json`` files in it, and go when they are applied.
        functions_dir: others than dolmen's own.
        poll_seconds: how long to wait between two looks.
        once: end as soon as everything there has been handled or given up.
        auto_create: create a table that does not exist from the first file dropped for it.
        compact_seconds: seconds between two calls of the compact function; None = never.
        gc_seconds: the same for the gc function.
        page_port: serve the page about the database's health at this port of 127.0.0.1; 0 = any that is free, None = do
            not. An event tells its address.
        on_event: called with each event.

    Raises:
        InputError: another process runs on these directories, there are no functions, or the port is taken.
    """
    runtime = runtime or shared_runtime()
    layout = LocalLayout.beside(landing_dir, queue_dir, database)
    functions = functions_directory() if functions_dir is None else Path(functions_dir).absolute()
    layout.make()
    with ExitStack() as stack:
        stack.enter_context(_hold_lock(layout.state / "lock"))
        if page_port is not None:
            server = PageServer(LocalHealthPage(layout, runtime).draw, page_port, runtime)
            on_event(LocalEvent("report", "serving", logging.INFO, {"address": stack.enter_context(server).address}))
        stack.enter_context(_environment(_settings(layout, auto_create)))
        lines = [
            stack.enter_context(_open_line(name, source, functions, layout, runtime, on_event, poll_seconds))
            for name, source in (
                ("ingest", LandingDirectory(layout.landing, layout.state, runtime)),
                ("delete", DirectoryQueue(layout.queue, runtime)),
            )
        ]
        seconds = {name: every for name, every in (("compact", compact_seconds), ("gc", gc_seconds)) if every}
        log = layout.state / "functions.log"

        def tell(function: str, text: str, level: int, facts: dict[str, Any]) -> None:
            on_event(LocalEvent(function, text, level, facts))

        schedule = stack.enter_context(Schedule(functions, log, seconds, tell, runtime))
        while True:
            handled = [line.step() for line in lines]
            schedule.poll()
            idle = not any(handled)
            if idle and once and not any(line.busy for line in lines):
                return
            if idle:
                runtime.sleep(poll_seconds)


@dataclass
class _Line:
    """A source, the function that handles what comes from it, and what is on its way."""

    source: LetterSource
    function: LocalFunction
    layout: LocalLayout
    runtime: Runtime
    on_event: Callable[[LocalEvent], None]
    poll_seconds: float
    waiting: dict[str, Letter] = field(default_factory=dict)
    looked: float = float("-inf")

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or self.source.has_incomplete

    def step(self) -> bool:
        """Delivers one batch of what is due; returns whether there was any."""
        now = self.runtime.monotonic()
        if now - self.looked >= self.poll_seconds:
            self.waiting |= {letter.id: letter for letter in self.source.receive()}
            self.looked = now
        batch = [letter for letter in self.waiting.values() if letter.due <= now][: MAX_BATCH[self.function.name]]
        if not batch:
            return False
        for letter in batch:
            letter.tries += 1
        not_done = self.function.deliver(batch)
        for letter in batch:
            undone = not_done.get(letter.id)
            if undone is not None and undone.postponed:
                letter.tries -= 1
                continue
            if undone is not None and not undone.final and letter.tries < MAX_TRIES:
                backoff = min(self.poll_seconds * 2**letter.tries, MAX_BACKOFF_SECONDS)
                # A person looks on: a table's name that is misspelt is to be reported within seconds.
                letter.due = self.runtime.monotonic() + (self.poll_seconds if undone.waiting else backoff)
                continue
            if undone is not None:
                self._give_up(letter, undone.reason)
            self.source.acknowledge(letter, given_up=undone is not None)
            del self.waiting[letter.id]
        return True

    def _give_up(self, letter: Letter, reason: str) -> None:
        about = {"name": letter.name, "reason": reason, "tries": letter.tries, "message_id": letter.id}
        text = json.dumps({"function": self.function.name, **about, "body": letter.body}, indent=2, ensure_ascii=False)
        path = self.layout.dead_letters / f"{self.function.name}-{letter.id}.json"
        write_whole(path, text + "\n")
        event = LocalEvent(self.function.name, "given up", logging.ERROR, {**about, "dead_letter": str(path)})
        self.on_event(event)


@contextmanager
def _open_line(
    name: str,
    source: LetterSource,
    functions: Path,
    layout: LocalLayout,
    runtime: Runtime,
    on_event: Callable[[LocalEvent], None],
    poll_seconds: float,
) -> Iterator[_Line]:
    def tell(text: str, level: int, facts: dict[str, Any]) -> None:
        on_event(LocalEvent(name, text, level, facts))

    function = LocalFunction(functions / name, layout.state / "functions.log", tell, runtime)
    try:
        yield _Line(source, function, layout, runtime, on_event, poll_seconds)
    finally:
        function.close()


def _settings(layout: LocalLayout, auto_create: bool) -> dict[str, str]:
    return {
        "DOLMEN_DATABASE": layout.database,
        "DOLMEN_LANDING_PREFIX": "",
        "DOLMEN_LANDING_URL": layout.landing.as_uri(),
        "DOLMEN_REJECTED_URL": layout.rejected.as_uri(),
        "DOLMEN_AUTO_CREATE": "1" if auto_create else "0",
        "DOLMEN_OUTSIDE": " ".join(place.as_uri() for place in (layout.landing, layout.rejected, layout.dead_letters)),
    }


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Sets the environment variables from which the functions read their settings, while they run."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _hold_lock(lock: Path) -> Iterator[None]:
    """Holds a lock that a killed process loses by itself."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process runs on these directories: it holds {lock}") from None
        yield
