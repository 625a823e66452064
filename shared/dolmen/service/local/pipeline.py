"""Feeds local files and requests to the functions, as S3, SQS and the schedules would."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from dolmen.api.database import Database
from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import Error, InputError, ObjectNotFoundError
from dolmen.ingest.announcements import DIRECTORY_BUCKET, Drop, write_notification, write_record
from dolmen.ingest.landing import is_temporary
from dolmen.ingest.pipeline_health import look_at_queue, look_at_rejects
from dolmen.ingest.queues import DirectoryQueue, FileWatch, Letter, Stamp, letter_id, list_files, write_atomically
from dolmen.maintenance.health.health import Pipeline, QueueHealth
from dolmen.maintenance.health.page import draw_page
from dolmen.service.local.local_functions import LocalFunction, Schedule, functions_directory
from dolmen.service.local.page_server import PageServer
from dolmen.store import open_store
from dolmen.store.local_store import LocalStore


class LocalLayout(Struct, frozen=True):
    """The directories of a local pipeline, as ``make up`` lays them out::

    .local/
      database/              the database
      landing/<table>/...    drop files here; they stay, unless their table says otherwise (ingest_landing: expire)
      queue/*.json           drop delete requests here; they are removed once they are applied
      rejected/<table>/...   files and rows that could not be read, each with a <name>.error.json
      dead-letters/*.json    messages that failed repeatedly, with the reason
      state/                 the lists of finished files, the functions' log, the lock
    """

    database: str
    landing: Path
    queue: Path
    rejected: Path
    dead_letters: Path
    state: Path

    @classmethod
    def under(cls, root: str | os.PathLike[str], database: str | None = None) -> LocalLayout:
        """The ordinary layout in one directory; ``database`` is the URL of one elsewhere."""
        base = Path(root).expanduser().absolute()
        names = (base / name for name in ("landing", "queue", "rejected", "dead-letters", "state"))
        return cls(database or str(base / "database"), *names)

    @classmethod
    def beside(cls, landing: str | os.PathLike[str], queue: str | os.PathLike[str], database: str) -> LocalLayout:
        """The layout around given directories: the others are siblings of the landing directory."""
        landing = Path(landing).expanduser().absolute()
        base = cls.under(landing.parent, database)
        return cls(database, landing, Path(queue).expanduser().absolute(), base.rejected, base.dead_letters, base.state)

    def make(self) -> None:
        """Makes the missing directories, except for the database's."""
        for directory in (self.landing, self.queue, self.rejected, self.dead_letters, self.state):
            directory.mkdir(parents=True, exist_ok=True)


class LandingDirectory:
    """Announces files dropped under a directory, as S3 would. The files stay, and a log lists the finished ones.

    A lost log only costs reading the files again, as long as the database remembers the drops' ids.
    """

    def __init__(self, root: Path, state: Path, runtime: Runtime) -> None:
        self._root, self._log = root, state / "landing.jsonl"
        self._store = LocalStore(root, runtime)
        self._watch = FileWatch()
        self._announced = self._read_log()
        self.has_incomplete = False

    def receive(self) -> Iterator[Letter]:
        """Delivers the files that are complete, each once until it changes."""
        stamps = {
            name: stamp
            for name, stamp in list_files(self._root)
            if not is_temporary(name) and self._announced.get(name) != stamp
        }
        complete = self._watch.find_unchanged(stamps)
        self.has_incomplete = len(complete) < len(stamps)
        for name in complete:
            self._announced[name] = stamps[name]
            try:
                etag = self._store.head(name).etag
            except ObjectNotFoundError:
                continue  # removed in the meantime
            except Error:
                etag = "unreadable"  # the function will report why
            _, changed_ns, size = stamps[name]
            created_us = changed_ns // 1_000
            drop = Drop(DIRECTORY_BUCKET, name, size, etag, sequencer=f"{changed_ns:016X}", created_us=created_us)
            yield Letter(letter_id(name, etag), name, write_notification([write_record(drop)]), stamps[name])

    def acknowledge(self, letter: Letter, *, given_up: bool = False) -> None:
        """Records that a file need not be announced again. A file given up is announced again after a restart."""
        if given_up:
            return
        with self._log.open("a") as log:
            log.write(json.dumps([letter.name, *letter.stamp]) + "\n")

    def _read_log(self) -> dict[str, Stamp]:
        """Reads the log, and rewrites it without files that were removed."""
        present = dict(list_files(self._root))
        finished: dict[str, Stamp] = {}
        if self._log.exists():
            for line in self._log.read_text().splitlines():
                try:
                    name, *stamp = json.loads(line)
                except ValueError:
                    continue  # a last line that a crash cut off
                if present.get(name) == tuple(stamp):
                    finished[name] = present[name]
        write_atomically(self._log, "".join(json.dumps([name, *stamp]) + "\n" for name, stamp in finished.items()))
        return finished


MAX_TRIES = 5  # a letter is given up when it has failed this often
MAX_BACKOFF_SECONDS = 60.0  # the longest wait between two tries
MAX_BATCH = {"ingest": 100, "delete": 500}  # the most letters of one call of a function, by its name


@dataclass(frozen=True, slots=True)
class LocalEvent:
    """An event to show to people."""

    # ``ingest``, ``delete``, ``compact`` or ``gc``; ``schedule`` for the process that calls the latter two; ``report``
    # for the server of the page about the database's health
    function: str
    text: str  # the text that a function logged ("drop ingested", "committed", ...), or "given up"
    level: int
    facts: dict[str, Any] = field(default_factory=dict)  # named details: names and numbers, never values of the data


class LocalHealthPage:
    """Looks at a pipeline's database and directories, and draws the page. Keeps what does not change."""

    def __init__(self, layout: LocalLayout, runtime: Runtime) -> None:
        self._layout, self._runtime = layout, runtime
        self._database = Database(open_store(layout.database, runtime), runtime)

    def draw(self) -> str:
        """The current page. Raises CorruptionError, StoreUnavailableError and others, as ``Database.health``."""
        return draw_page(self._database.health(self._pipeline()), link_to_itself=True)

    def _pipeline(self) -> Pipeline:
        layout, runtime = self._layout, self._runtime
        deletes = look_at_queue("delete requests", str(layout.queue), runtime)
        return Pipeline(look_at_rejects(str(layout.rejected), runtime), (self._drops(), deletes))

    def _drops(self) -> QueueHealth:
        """Files of the landing directory are not messages: only those that were given up count."""
        layout = self._layout
        try:
            dead = sum(1 for _ in layout.dead_letters.glob("ingest-*.json"))
        except OSError as error:
            return QueueHealth("drops", str(layout.landing), problem=f"{type(error).__name__}: {error}")
        return QueueHealth("drops", str(layout.landing), dead=dead, dead_letters=str(layout.dead_letters))


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
    """Watches a landing and a queue directory, and passes files and requests to the functions, until interrupted.

    A file is complete when two checks in a row find it unchanged. A writer that pauses for longer must write elsewhere
    (or under a name that begins with ``.`` or ``_``) and rename the file into place. The pipeline may be killed at any
    time: unfinished messages are delivered again, and applied once.

    Args:
        landing_dir, queue_dir: see ``LocalLayout``.
        functions_dir: functions to run instead of dolmen's own.
        once: end as soon as all files and requests have been handled or given up.
        auto_create: create a table that does not exist from the first file dropped for it.
        compact_seconds, gc_seconds: seconds between two calls of the function; None = never.
        page_port: serve the page about the database's health at this port of 127.0.0.1; 0 = any free one, None = none.
            An event has its address.

    Raises:
        InputError: another process runs on these directories, there are no functions, or the port is in use.
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
        seconds = {name: every for name, every in (("compact", compact_seconds), ("gc", gc_seconds)) if every}
        log = layout.state / "functions.log"

        def pass_on(function: str, text: str, level: int, fields: dict[str, Any]) -> None:
            on_event(LocalEvent(function, text, level, fields))

        sources: dict[str, LandingDirectory | DirectoryQueue] = {
            "ingest": LandingDirectory(layout.landing, layout.state, runtime),
            "delete": DirectoryQueue(layout.queue, runtime),
        }
        channels = []
        for name, source in sources.items():
            function = stack.enter_context(
                closing(LocalFunction(functions / name, log, partial(pass_on, name), runtime))
            )
            channels.append(_Channel(source, function, layout, runtime, on_event, poll_seconds))
        schedule = stack.enter_context(Schedule(functions, log, seconds, pass_on, runtime))
        while True:
            handled = [channel.step() for channel in channels]
            schedule.poll()
            idle = not any(handled)
            if idle and once and not any(channel.is_busy for channel in channels):
                return
            if idle:
                runtime.sleep(poll_seconds)


@dataclass
class _Channel:
    """A source, the function that handles its letters, and the letters that are not finished."""

    source: LandingDirectory | DirectoryQueue
    function: LocalFunction
    layout: LocalLayout
    runtime: Runtime
    on_event: Callable[[LocalEvent], None]
    poll_seconds: float
    waiting: dict[str, Letter] = field(default_factory=dict)
    looked_at: float = float("-inf")

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting) or self.source.has_incomplete

    def step(self) -> bool:
        """Delivers one batch of letters that are due; returns whether there were any."""
        now = self.runtime.monotonic()
        if now - self.looked_at >= self.poll_seconds:
            self.waiting |= {letter.id: letter for letter in self.source.receive()}
            self.looked_at = now
        batch = [letter for letter in self.waiting.values() if letter.due <= now][: MAX_BATCH[self.function.name]]
        if not batch:
            return False
        for letter in batch:
            letter.tries += 1
        failures = self.function.deliver(batch)
        for letter in batch:
            failure = failures.get(letter.id)
            if failure is not None and failure.is_postponed:
                letter.tries -= 1
                continue
            if failure is not None and not failure.is_final and letter.tries < MAX_TRIES:
                backoff = min(self.poll_seconds * 2**letter.tries, MAX_BACKOFF_SECONDS)
                # A person looks on: report a misspelt table name within seconds.
                letter.due = self.runtime.monotonic() + (self.poll_seconds if failure.is_waiting else backoff)
                continue
            if failure is not None:
                self._give_up(letter, failure.reason)
            self.source.acknowledge(letter, given_up=failure is not None)
            del self.waiting[letter.id]
        return True

    def _give_up(self, letter: Letter, reason: str) -> None:
        about = {"name": letter.name, "reason": reason, "tries": letter.tries, "message_id": letter.id}
        text = json.dumps({"function": self.function.name, **about, "body": letter.body}, indent=2, ensure_ascii=False)
        path = self.layout.dead_letters / f"{self.function.name}-{letter.id}.json"
        write_atomically(path, text + "\n")
        self.on_event(LocalEvent(self.function.name, "given up", logging.ERROR, about | {"dead_letter": str(path)}))


def _settings(layout: LocalLayout, auto_create: bool) -> dict[str, str]:
    return {
        "DOLMEN_DATABASE": layout.database,
        "DOLMEN_LANDING_PREFIX": "",
        "DOLMEN_LANDING_URL": layout.landing.as_uri(),
        "DOLMEN_REJECTED_URL": layout.rejected.as_uri(),
        "DOLMEN_AUTO_CREATE": "1" if auto_create else "0",
        "DOLMEN_OUTSIDE": " ".join(each.as_uri() for each in (layout.landing, layout.rejected, layout.dead_letters)),
    }


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Sets the environment variables from which the functions read their settings, while they run."""
    old_values = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in old_values.items():
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
