"""Checks whether a store is fit for dolmen, by running the contract on it.

All checks work under a fresh prefix below the URL, and leave nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum

from dolmen.base.runtime import Runtime, shared_runtime
from dolmen.errors import AccessDeniedError, Error
from dolmen.service.check_store import concurrent_clients as contract_many
from dolmen.service.check_store import large_objects as contract_files
from dolmen.service.check_store import listings as contract_listing
from dolmen.service.check_store import single_objects as contract_objects
from dolmen.service.check_store import small_database as contract_database
from dolmen.service.check_store.check_site import Site
from dolmen.service.check_store.contract import BrokenError, Check, Load, Need

CONTRACT: tuple[Check, ...] = (
    *contract_objects.CHECKS,
    *contract_listing.CHECKS,
    *contract_files.CHECKS,
    *contract_many.CHECKS,
)
"""The checks of every store."""

CHECKS: tuple[Check, ...] = (*CONTRACT, *contract_database.CHECKS)
"""The checks of a store, and of a database on it."""


class CheckOutcome(Enum):
    """The outcome of a check."""

    OK = "ok"
    FAILED = "FAILED"
    DIFFERS = "differs"  # dolmen can still be used
    DENIED = "DENIED"
    LACKS = "lacks"  # a permission that is dispensable
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Args:
        name: name of the check, or of the permission.
        holds: the promise that was checked.
        outcome: the outcome.
        seconds: its duration.
        found: the fault that was found; "" if there is none.
        means: the consequence for dolmen; "" if the promise holds.
    """

    name: str
    holds: str
    outcome: CheckOutcome
    seconds: float
    found: str = ""
    means: str = ""

    @property
    def good(self) -> bool:
        """Whether dolmen can be used in spite of this result."""
        return self.outcome not in (CheckOutcome.FAILED, CheckOutcome.DENIED)


@dataclass(frozen=True)
class StoreReport:
    """The results for a store.

    Args:
        url: the prefix below which it was checked.
        results: in the order of the checks.
        left: URLs of objects that could not be removed.
    """

    url: str
    results: tuple[CheckResult, ...]
    left: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether dolmen can be used with this store."""
        return all(result.good for result in self.results)


Progress = Callable[[str, int, int], None]
"""Called with the name of the check that begins, its number, and the number of checks."""


def check_store(
    url: str,
    *,
    load: Load | None = None,
    runtime: Runtime | None = None,
    checks: Sequence[Check] = CHECKS,
    site: Callable[[str, Runtime], Site] = Site,
    progress: Progress = lambda name, number, total: None,
) -> StoreReport:
    """Runs all checks below ``url``, and removes all objects they made, also when interrupted.

    Args:
        url: a URL as for ``dolmen.open``: a bucket, a prefix, or a directory.
        load: the amount of concurrent work.
        site: opens the site for a URL and a runtime.

    Raises:
        Error: the store cannot be reached, or there is no such bucket.
    """
    runtime = runtime or shared_runtime()
    results: list[CheckResult] = []
    with ExitStack() as stack:
        ground = site(url, runtime)
        left = stack.enter_context(ground.clearing())
        stack.callback(ground.close)  # before it is cleared: the other process may be writing
        permissions = list(_permissions(ground, runtime))
        results += permissions
        missing = {need for need in Need if any(r.name == _name(need) and r.found for r in permissions)}
        for number, check in enumerate(checks, 1):
            progress(check.name, number, len(checks))
            results.append(_result(check, ground, runtime, load or Load(), missing, results))
    return StoreReport(ground.url, tuple(results), tuple(left))


def _result(
    check: Check,
    ground: Site,
    runtime: Runtime,
    load: Load,
    missing: set[Need],
    before: Sequence[CheckResult],
) -> CheckResult:
    if lacking := missing & (check.needs | {Need.PUT, Need.GET}):
        names = ", ".join(sorted(need.permission for need in lacking))
        return CheckResult(check.name, check.holds, CheckOutcome.LEFT_OUT, 0.0, f"needs {names}")
    if check in contract_database.CHECKS and not all(result.good for result in before):
        return CheckResult(
            check.name, check.holds, CheckOutcome.LEFT_OUT, 0.0, "the store does not do what a database needs"
        )
    began = runtime.monotonic()
    found, outcome = "", CheckOutcome.OK
    try:
        check.run(ground.sandbox(check.name, load))
    except BrokenError as error:
        found, outcome = str(error), CheckOutcome.DIFFERS if check.harmless else CheckOutcome.FAILED
    except AccessDeniedError as error:
        found, outcome = str(error), CheckOutcome.DENIED
    except Error as error:
        found, outcome = (
            f"{type(error).__name__}: {error}",
            CheckOutcome.DIFFERS if check.harmless else CheckOutcome.FAILED,
        )
    seconds = runtime.monotonic() - began
    return CheckResult(check.name, check.holds, outcome, seconds, found, check.means if found else "")


def _permissions(ground: Site, runtime: Runtime) -> Iterator[CheckResult]:
    """Tries each verb once. Errors other than denials are raised, since no check could say more."""
    for need, what, call in ground.verbs():
        began = runtime.monotonic()
        found = ""
        try:
            call()
        except AccessDeniedError as error:
            found = str(error)
        outcome = CheckOutcome.OK if not found else CheckOutcome.LACKS if need.harmless else CheckOutcome.DENIED
        means = f"without {need.permission} {need.without}" if found else ""
        yield CheckResult(_name(need), what, outcome, runtime.monotonic() - began, found, means)


def _name(need: Need) -> str:
    return f"may {need.name.lower()}"
