"""Starting a job once: over a service whose lists lag behind, which forgets tokens, and which many ask at once."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from dolmen.base.records import replace
from dolmen.errors import AccessDeniedError, StoreUnavailableError
from dolmen.service.handover.emr_serverless import (
    JobRun,
    SparkJob,
    ensure_running,
    load_job,
    log_record,
    metric_name,
    request_job,
    token_of,
)

MINUTE = 60_000_000
DAY = 24 * 60 * MINUTE
NOW = 1_800_000_000_000_000
JOB = SparkJob("dolmen-load-x", "load.py", ("--database", "s3://b/d"))


@dataclass
class Service:
    """Runs by id; a list shows those that are not hidden; tokens are remembered unless they are forgotten."""

    now_us: int = NOW
    all: dict[str, JobRun] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)

    def runs(self) -> list[JobRun]:
        return [
            run for run in self.all.values() if run.id not in self.hidden and run.created_us > self.now_us - 3 * DAY
        ]

    def start(self, job: SparkJob, token: str) -> str:
        if token not in self.tokens:
            self.tokens[token] = id_ = f"run-{len(self.all)}"
            self.all[id_] = JobRun(id_, job.name, "SUBMITTED", self.now_us, self.now_us)
        return self.tokens[token]

    def run(self, id_: str) -> JobRun | None:
        return self.all.get(id_)

    def end(self, id_: str, state: str) -> None:
        self.all[id_] = replace(self.all[id_], state=state, updated_us=self.now_us)

    def alive(self) -> list[str]:
        return [run.id for run in self.all.values() if run.is_alive]


def test_a_run_that_is_alive_is_enough_and_one_that_has_ended_is_not() -> None:
    service = Service()
    assert ensure_running(service, JOB, NOW).outcome == "started"
    assert ensure_running(service, JOB, NOW + MINUTE).outcome == "alive"
    service.end("run-0", "SUCCESS")
    service.now_us += 2 * MINUTE
    assert ensure_running(service, JOB, service.now_us).run == "run-1"


def test_runs_of_other_names_do_not_count() -> None:
    service = Service()
    ensure_running(service, JOB, NOW)
    assert ensure_running(service, load_job("s3://b/d", "s3://b/handed"), NOW).outcome == "started"
    assert len(service.all) == 2


def test_after_failures_the_pauses_grow_and_a_success_ends_them() -> None:
    service = Service()
    pauses = []
    ensure_running(service, JOB, NOW)
    for n in range(9):
        [alive] = service.alive()
        service.end(alive, ("FAILED", "CANCELLED")[n % 2])
        held = ensure_running(service, JOB, service.now_us)
        assert held.outcome == "held"
        assert held.run == alive
        pauses.append(held.wait_seconds / 60)
        assert ensure_running(service, JOB, service.now_us + int(held.wait_seconds * 1e6) - 1).outcome == "held"
        service.now_us += int(held.wait_seconds * 1e6)
        assert ensure_running(service, JOB, service.now_us).outcome == "started"
    # Failures of days ago are not listed any more.
    assert pauses[:7] == [15, 30, 60, 120, 240, 480, 960]
    assert max(pauses) <= 24 * 60
    [alive] = service.alive()
    service.end(alive, "SUCCESS")
    assert ensure_running(service, JOB, service.now_us).outcome == "started"


def test_a_failure_that_no_list_shows_yet_holds_too() -> None:
    service = Service()
    ensure_running(service, JOB, NOW)
    service.hidden = {"run-0"}
    service.now_us += 5 * MINUTE
    service.end("run-0", "FAILED")
    assert ensure_running(service, JOB, service.now_us).outcome == "held"
    assert len(service.all) == 1


def test_a_service_that_shows_nothing_for_long_is_given_up_not_asked_for_ever() -> None:
    service = Service()
    for _ in range(40):
        service.start(JOB, token_of(JOB, _last(service) or "2027-01-15"))
        service.end(_last(service), "SUCCESS")
    service.hidden = set(service.all)
    service.now_us += MINUTE
    with pytest.raises(StoreUnavailableError, match="20 runs"):
        ensure_running(service, JOB, service.now_us)


def _last(service: Service) -> str:
    return list(service.all)[-1] if service.all else ""


def test_a_token_is_as_the_service_wants_it_and_the_same_for_the_same() -> None:
    token = token_of(JOB, "run-0")
    assert len(token) == 64
    assert token.isalnum()
    assert token == token_of(replace(JOB), "run-0")
    assert len({token, token_of(JOB, "run-1"), token_of(replace(JOB, script="compact.py"), "run-0")}) == 3


def test_whatever_lags_or_is_forgotten_there_is_one_run_alive_and_some_run_takes_each_record() -> None:
    """Random histories of callers, ends and lagging lists: who asks finds a run that had not ended, or starts one."""
    seed = int(os.environ.get("DOLMEN_TEST_SEED", random.randrange(1 << 32)))
    print(f"DOLMEN_TEST_SEED={seed}")
    dice = random.Random(seed)
    for _ in range(2000 if os.environ.get("DOLMEN_LONG") else 200):
        service = Service()
        started = 0
        for _ in range(40):
            service.now_us += dice.randrange(1, 20) * MINUTE
            match dice.randrange(4):
                case 0 if service.alive():
                    service.end(service.alive()[0], dice.choice(["SUCCESS", "SUCCESS", "FAILED"]))
                case 1:
                    newest = list(service.all)[-dice.randrange(1, 4) :]
                    service.hidden = set(newest) if dice.random() < 0.7 else set()
                case _:
                    before = set(service.alive())
                    outcomes = [ensure_running(service, JOB, service.now_us) for _ in range(dice.randrange(1, 4))]
                    assert len(service.alive()) <= 1
                    assert len({outcome.run for outcome in outcomes}) == 1
                    for outcome in outcomes:
                        assert service.all[outcome.run].is_alive == (outcome.outcome != "held")
                    if not before and service.alive():
                        started += 1
        assert started == len(service.all)


# ---- what is told ---------------------------------------------------------------------------------------------------


class Refusing(Service):
    def runs(self) -> list[JobRun]:
        raise AccessDeniedError("EMR Serverless, application x: AccessDeniedException: no")


def test_what_came_of_it_is_told_and_counted() -> None:
    service = Service()
    first, second = request_job(service, JOB, NOW), request_job(service, JOB, NOW + MINUTE, "events")
    refused = request_job(Refusing(), JOB, NOW)
    service.end("run-0", "FAILED")
    held = request_job(service, JOB, NOW + MINUTE)
    assert [metric_name(asked) for asked in (first, second, refused, held)] == [
        "JobsStarted",
        None,
        "JobStartsFailed",
        "JobsHeld",
    ]
    assert [asked.is_running for asked in (first, second, refused, held)] == [True, True, False, False]
    assert log_record(first) == ("info", "job started", {"job": JOB.name, "run": "run-0"})
    assert log_record(second) == ("info", "job alive", {"job": JOB.name, "table": "events", "run": "run-0"})
    assert log_record(held)[2]["wait_seconds"] == 14 * 60
    level, text, facts = log_record(refused)
    assert (level, text, facts["error"]) == ("error", "job not started", "AccessDeniedError")
