"""A pytest plugin: with ``--no-skips`` a skipped test fails the run, so that a missing tool hides no suite."""

from __future__ import annotations

import re

import pytest

ALLOWED = re.compile(r"DOLMEN_LONG=1")  # what only the long mode runs says so in its reason


class NoSkips:
    """Collects skips, of single tests and of whole modules, and turns them into a failure at the end."""

    def __init__(self) -> None:
        self.skips: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped:
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not ALLOWED.search(reason):
            self.skips.append(f"{report.nodeid}: {reason}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skips and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skips:
            terminalreporter.section("skipped, which --no-skips makes a failure", red=True)
            for skip in self.skips:
                terminalreporter.line(skip)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail when a test is skipped without an allowed reason")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--no-skips") and not hasattr(config, "workerinput"):  # a process of -n tells the first of all
        config.pluginmanager.register(NoSkips(), "no-skips-collector")
