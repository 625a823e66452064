"""The whole public API against a plain-Python model, in every order that Hypothesis can think of."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import run_state_machine_as_test

from machine.places import LocalPlace, Place, S3Place
from machine.reading import Reading
from machine.transacting import Transacting
from machine.upkeep import Upkeep
from machine.writing import Writing

LONG = bool(os.environ.get("DOLMEN_LONG"))
SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)

SECONDS = 7_200 if LONG else 600
"""What the examples may take. On an idle machine they take a twentieth of that."""

SHRINKING_SECONDS = 300 if LONG else 90
"""For how long a failing example is made shorter before it is told."""

#: Beyond both: pytest's own failure at that time would look to Hypothesis like one of an example, to be shrunk.
TIMEOUT = pytest.mark.timeout(SECONDS + SHRINKING_SECONDS + 120)


class DatabaseMachine(Writing, Reading, Upkeep, Transacting):
    """All that users do with a database."""


class TooSlowError(BaseException):
    """The examples take too long; nothing that Hypothesis would shrink."""


@pytest.fixture
def check_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], Place], int, int], None]:
    """Runs the machine; a failure is shrunk, and printed as the steps that lead to it.

    The seed, and that there is a failure, are printed at once, whatever becomes of the run.
    """
    monkeypatch.setattr(engine, "MAX_SHRINKING_SECONDS", SHRINKING_SECONDS)

    def tell(line: str) -> None:
        with capsys.disabled():
            print(f"\nmachine: {line}", flush=True)

    def run(new_place: Callable[[], Place], examples: int, steps: int) -> None:
        tell(f"{examples} examples of {steps} steps, DOLMEN_TEST_SEED={SEED}")
        deadline, is_late, begun, failures = time.monotonic() + SECONDS, False, 0, 0

        class Machine(DatabaseMachine):
            def __init__(self) -> None:
                nonlocal begun, is_late
                is_late = not failures and time.monotonic() > deadline
                if is_late:
                    raise TooSlowError
                super().__init__()
                begun += 1

            @staticmethod
            def failed(failure: BaseException) -> None:
                nonlocal failures
                failures += 1
                if failures == 1:
                    tell(f"example {begun} fails, and is shrunk for up to {SHRINKING_SECONDS} s: {failure!r}")

        Machine.new_place = staticmethod(new_place)
        how = settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        try:
            run_state_machine_as_test(seed(SEED)(Machine), settings=how)
        except BaseException:  # Hypothesis makes another error of one that comes before an example has begun
            if is_late:
                pytest.fail(f"{begun} examples took more than {SECONDS} s (DOLMEN_TEST_SEED={SEED})", pytrace=False)
            raise

    return run


@pytest.mark.slow
@TIMEOUT
def test_every_kept_version_of_a_directory_is_what_the_model_says(check_machine: Callable[..., None]) -> None:
    check_machine(LocalPlace, *((600, 100) if LONG else (7, 50)))


@TIMEOUT
@pytest.mark.parametrize("server", ["s3_url", pytest.param("minio_url", marks=pytest.mark.slow)])
def test_every_kept_version_on_s3_is_what_the_model_says(
    server: str, request: pytest.FixtureRequest, check_machine: Callable[..., None]
) -> None:
    url = request.getfixturevalue(server)
    numbers = itertools.count()
    check_machine(lambda: S3Place(f"{url}/{next(numbers)}"), *((100, 60) if LONG else (2, 15)))
