"""The whole public API against a plain-Python model, in every order that Hypothesis can think of."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from machine.places import LocalPlace, Place, S3Place
from machine.reading import Reading
from machine.transacting import Transacting
from machine.upkeep import Upkeep
from machine.writing import Writing

LONG = bool(os.environ.get("DOLMEN_LONG"))
SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)


class DatabaseMachine(Writing, Reading, Upkeep, Transacting):
    """All that users do with a database."""


def _run(new_place: Callable[[], Place], examples: int, steps: int) -> None:
    """Runs the machine; a failure is shrunk, and printed as the steps that lead to it."""
    print(f"DOLMEN_TEST_SEED={SEED}")

    class Machine(DatabaseMachine):
        pass

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
    run_state_machine_as_test(seed(SEED)(Machine), settings=how)


@pytest.mark.timeout(7_200 if LONG else 600)
def test_every_kept_version_of_a_directory_is_what_the_model_says() -> None:
    _run(LocalPlace, *((600, 100) if LONG else (16, 50)))


@pytest.mark.timeout(7_200 if LONG else 600)
@pytest.mark.parametrize("server", ["s3_url", "minio_url"])
def test_every_kept_version_on_s3_is_what_the_model_says(server: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(server)
    numbers = itertools.count()
    _run(lambda: S3Place(f"{url}/{next(numbers)}"), *((100, 60) if LONG else (2, 15)))
