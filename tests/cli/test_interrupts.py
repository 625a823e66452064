"""Ctrl-C: whenever it comes, a command ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from dolmen.cli import run
from dolmen.cli.output import Stop, stopping_at_interrupt

SIGNAL_AT_EACH_LINE = """
import os, signal, sys
from dolmen.cli.output import stopping_at_interrupt

def stop_at(line, wait):
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        if event == "line" and frame.f_code.co_name == "wait":
            lines += 1
            if lines == line:
                os.kill(os.getpid(), signal.SIGINT)
        return trace

    with stopping_at_interrupt() as stop:
        sys.settrace(trace)
        try:
            wait(stop)
        finally:
            sys.settrace(None)
    return lines >= line

line = 1
while stop_at(line, lambda stop: stop.wait(0.01)):
    line += 1
print(line)
"""


def test_it_may_come_at_any_line_of_the_wait() -> None:
    told = subprocess.run([sys.executable, "-c", SIGNAL_AT_EACH_LINE], capture_output=True, text=True, timeout=60)
    assert told.stderr == ""
    assert int(told.stdout) > 3


@pytest.fixture
def python_handles_it() -> Iterator[None]:
    """Sets Python's own handler. A shell that starts Python with ``&`` may have it ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_it")
def test_a_wait_ends_when_it_comes() -> None:
    with stopping_at_interrupt() as stop:
        assert not stop.wait(0.001)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert stop.wait(60)
        assert stop.is_set()
        assert stop.wait(60)
        with pytest.raises(KeyboardInterrupt):
            interrupt_once_more()


def interrupt_once_more() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


def test_a_handler_may_ask_while_another_one_does() -> None:
    stop = Stop()
    stop.set()
    stop.set()
    assert stop.wait(0)


class _InterruptedWhileAClassIsMade:
    def __set_name__(self, owner: type, name: str) -> None:
        raise KeyboardInterrupt


def test_it_may_come_while_a_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_command(_: str | None) -> None:
        type("Imported", (), {"name": _InterruptedWhileAClassIsMade()})

    monkeypatch.setattr(run, "command_line", import_command)
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 130


def test_other_failures_of_the_runtime_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str | None) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(run, "command_line", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        run.main()
