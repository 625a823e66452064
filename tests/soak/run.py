"""The soak itself: starts everything, hits it, lets it come to rest, and judges."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from dolmen import Database
from soak import judge, leftovers
from soak.chaos import SCHEDULE, SERVER, Blow, kind_of, plan
from soak.journal import Steps, journals, read
from soak.processes import Running
from soak.report import Report
from soak.world import World
from support.minio import Minio
from support.ministack import endpoint_environment

ACTORS = (
    "appender-1", "appender-2", "upserter-3", "transactor-4", "transactor-5", "dropper-6",
    "pipeline-1", "keeper-1", "reader-1", "reader-2",
)  # fmt: skip
START_SECONDS = 300
"""How long an actor may take until it has ended its first step, with nothing in its way."""
REST_SECONDS = 600
"""How long an actor that was asked to stop may take to end its step."""
DRAINS = 10


class Soak:
    """One soak.

    Args:
        directory: for everything; must not exist.
        seconds: for how long processes are hit.
        seconds_between: least and most between two blows.
        grace: how long versions are kept, and how long their readers have then.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        seconds: float,
        *,
        seconds_between: tuple[float, float] = (0.5, 4.0),
        grace: int = 15,
        console: Console | None = None,
    ) -> None:
        directory.mkdir(parents=True)
        self._console = console or Console()
        self._seconds = seconds
        self._server = Minio(directory / "server")
        environment = {
            **endpoint_environment(self._server.endpoint),
            "DOLMEN_S3_READ_TIMEOUT": "3",
            "DOLMEN_S3_CONNECT_TIMEOUT": "2",
        }
        os.environ.update(environment)
        self._server.create_bucket("soak")
        self._world = World(str(directory.absolute()), "s3://soak/database", seed, grace)
        self._world.prepare()
        self._world.save()
        self._actors = {name: Running(self._world, name, environment) for name in ACTORS}
        self._environment = environment
        self._blows = plan(seed, ACTORS, seconds_between)
        self._due: list[tuple[float, str, str]] = []
        self.report = Report(seed, str(directory))

    def run(self) -> Report:
        """All of it. Whatever comes, no process is left."""
        began = time.monotonic()
        try:
            for actor in self._actors.values():
                actor.start()
            self._let_all_work()
            self._hit(time.monotonic() + self._seconds)
            self._come_to_rest()
            self._judge()
        finally:
            for actor in self._actors.values():
                if actor.is_running:
                    actor.kill()
            self._server.kill()
        self.report.seconds = time.monotonic() - began
        for name, actor in self._actors.items():
            self.report.starts[kind_of(name)] += actor.starts
        for name, entries in journals(self._world.journals):
            self.report.count(name, entries)
        path = Path(self._world.directory, "report.json")
        path.write_text(json.dumps(self.report.to_dict(), indent=2))
        return self.report

    # ---- while it runs -----------------------------------------------------------------------------------------------

    def _let_all_work(self) -> None:
        """Waits until each actor has ended a step: on a slow machine, early blows keep some from ever doing so."""
        until = time.monotonic() + START_SECONDS
        while idle := [name for name in self._actors if not self._has_ended_a_step(name)]:
            if time.monotonic() > until:
                self._violation(f"{', '.join(idle)}: not one step in {START_SECONDS} seconds")
                return
            self._pass(0.1)

    def _has_ended_a_step(self, name: str) -> bool:
        entries = read(self._world.journals / f"{name}.jsonl")
        return any(entry["kind"] in ("acknowledged", "did", "told") for entry in entries)

    def _hit(self, end: float) -> None:
        told = time.monotonic()
        while (blow := next(self._blows)).is_due or time.monotonic() < end:
            self._pass(blow.after)
            self._land(blow)
            if time.monotonic() - told > 10:
                told = time.monotonic()
                self._tell(max(0.0, end - told))
        self._pass(max((when for when, _, _ in self._due), default=0.0) - time.monotonic() + 0.1)

    def _pass(self, seconds: float) -> None:
        """Lets time go by, in which what was hit comes back, and what has ended by itself is noticed."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for entry in [entry for entry in self._due if entry[0] <= now]:
                self._due.remove(entry)
                self._bring_back(entry[1], entry[2])
            for name, actor in self._actors.items():
                if (code := actor.ended()) is not None:
                    self._violation(f"{name} ended by itself with {code}: {actor.last_words()}")
                    self._due.append((now + 1.0, "kill", name))
            if now >= until:
                return
            time.sleep(min(0.05, until - now))

    def _land(self, blow: Blow) -> None:
        while back := [when for when, _, victim in self._due if victim == blow.victim]:
            self._pass(max(back) - time.monotonic())
        if blow.victim == SCHEDULE:
            if not self._kill_schedule():
                return
        elif blow.victim == SERVER:
            self._server.kill() if blow.how == "kill" else self._server.stop()
        elif blow.how == "kill":
            self._actors[blow.victim].kill()
        else:
            self._actors[blow.victim].signal(signal.SIGSTOP)
        self.report.blows[blow.kind] += 1
        if blow.victim != SCHEDULE:  # which the pipeline starts again by itself
            self._due.append((time.monotonic() + blow.away, blow.how, blow.victim))

    def _kill_schedule(self) -> bool:
        """Once the pipeline has started it; whether it did."""
        for _ in range(100):
            if any(actor.kill_child() for name, actor in self._actors.items() if kind_of(name) == "pipeline"):
                return True
            self._pass(0.1)
        return False

    def _bring_back(self, how: str, victim: str) -> None:
        if victim == SERVER:
            self._server.start() if how == "kill" else self._server.go_on()
        elif how == "kill":
            self._actors[victim].start()
        else:
            self._actors[victim].signal(signal.SIGCONT)

    def _tell(self, left: float) -> None:
        steps = sum(len(Steps(entries).ends) for _, entries in journals(self._world.journals))
        self._console.print(
            f"{left:6,.0f} s to go: {steps:,} steps, {self.report.blows.total():,} blows, "
            f"{len(self.report.violations)} violations"
        )

    def _violation(self, what: str) -> None:
        self.report.violations.append(what)
        self._console.print(what, style="red", markup=False)

    # ---- afterwards --------------------------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        """All actors end what they are at; the pipeline is killed, and a last one handles what was dropped."""
        for name, actor in self._actors.items():
            if kind_of(name) == "pipeline":
                actor.kill()
            else:
                actor.signal(signal.SIGTERM)
        for name, actor in self._actors.items():
            if actor.is_running and (code := actor.wait(REST_SECONDS)) not in (0, -signal.SIGTERM):
                self._violation(f"{name} did not come to rest: {code}: {actor.last_words()}")
        drain = Running(self._world, "drain-1", self._environment)
        self._actors[drain.name] = drain
        for _ in range(DRAINS):
            drain.start()
            if (code := drain.wait(300)) != 0:
                self._violation(f"the last pipeline ended with {code}: {drain.last_words()}")
                return
            if not self._send_again():
                return
        self._violation("lost: what was dropped is given up again and again")

    def _send_again(self) -> bool:
        """Dead letters go back to where they came from, as an operator would have it; whether there were any."""
        layout = self._world.layout
        letters = list(layout.dead_letters.glob("*.json"))
        for path in letters:
            letter = json.loads(path.read_text())
            if letter["function"] == "delete":  # a file is announced again by itself
                (layout.queue / f"again-{letter['message_id']}.json").write_text(letter["body"])
            path.unlink()
        self.report.dead_letters += len(letters)
        return bool(letters)

    def _judge(self) -> None:
        db = self._world.open()
        told = dict(journals(self._world.journals))
        self.report.versions = db.version
        content = judge.Content.of(db.at(db.version))
        for what in judge.check(content, db.version, told, told, is_end=True):
            self._violation(what)
        self._settle(told, content)
        if [commit.version for commit in db.history()][:10] != list(range(db.version, db.version - 10, -1)):
            self._violation("unreadable: history has gaps")
        self._collect(db)
        report = db.verify(deep=True, all_versions=True)
        if not report.ok:
            self._violation(f"unreadable: {report}")
        self.report.objects, found = leftovers.check(db, Path(self._world.directory))
        for what in found:
            self._violation(what)
        again = judge.Content.of(db.at(db.refresh()))
        if again != content:
            self._violation("lost: the last rounds of collection have changed what the newest version shows")

    def _collect(self, db: Database) -> None:
        db.set(keep_versions=1)
        for _ in range(8):
            collected = db.gc()
            if collected.finished and not collected.objects and not collected.versions_expired:
                return
            time.sleep(self._world.grace + 1)
        self._violation("left over: collection does not come to an end")

    def _settle(self, told: Mapping[str, list[dict[str, object]]], content: judge.Content) -> None:
        for name, entries in told.items():
            for entry in entries:
                if entry["kind"] == "unknown":
                    has_landed = (name, entry["step"]) in content.log
                    self.report.unknowns["had landed" if has_landed else "had not landed"] += 1


def look(report: Report) -> str:
    """The command to look into what is left of a soak."""
    return f"scripts/minio.sh start {report.directory}/server/data"
