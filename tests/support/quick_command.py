"""The ``dolmen`` command for tests that run many commands of a page: each starts in milliseconds.

A server imports the command and the libraries behind it once. Each command is a process of its own that the server
forks: it has the arguments, folder, environment, input and output of whoever calls it, and its exit code is theirs.
``tests/project/test_dist.py`` and some of ``tests/cli`` start the command as users do.

The same program runs a script as ``python`` does, if its first argument ends with ``.py``.

``python -m support.quick_command SOCKET [LEFT OUT ...]`` is the server. It lives until its standard input ends.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

LIBRARIES = (
    "aws_lambda_powertools",
    "boto3",
    "duckdb",
    "pandas",
    "pyarrow.csv",
    "pyarrow.json",
    "pydantic.fields",
    "sqlglot",
    "yaml",
)
"""What commands import when they need it; no module of dolmen is among them."""

_PROGRAM = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"+"], [0, 1, 2])
    server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.makefile().read() or 255))
"""


@contextmanager
def quick_command(*left_out: str) -> Iterator[Path]:
    """Starts a server, and gives the folder of a program ``dolmen`` that runs its commands there.

    Args:
        left_out: some of ``LIBRARIES``, which commands import themselves. DuckDB writes to standard error what of it is
            left at the end of a process that did not import it.
    """
    with TemporaryDirectory(prefix="dolmen-") as scratch:
        folder, address = Path(scratch), str(Path(scratch) / "socket")
        program = folder / "dolmen"
        program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, address, *left_out],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with server:
            assert server.stdin is not None
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n", "the server of commands did not start"
            yield folder
            server.stdin.close()


def main(address: str, *left_out: str) -> None:
    """Serves until standard input ends; in each forked process, runs its command."""
    run_command = import_module("dolmen.cli").main
    import_module("dolmen.api.database")
    for name in LIBRARIES:
        if name not in left_out:
            import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            caller, _ = listener.accept()
            with caller:
                if os.fork() == 0 and _is_command(caller):
                    break
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        else:
            return
    if sys.argv[1:] and sys.argv[1].endswith(".py"):
        del sys.argv[0]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        run_command()


def _is_command(caller: socket.socket) -> bool:
    """Forks once more. The new process takes what is the caller's, and gets True; this one waits for it, and ends."""
    _, streams, _, _ = socket.recv_fds(caller, 1, 3)
    arguments, folder, environment = json.load(caller.makefile())
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        caller.sendall(str(code if code >= 0 else 128 - code).encode())
        os._exit(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
