"""examples/bank.py and examples/inventory.py keep their promises with many processes, in a directory and on MinIO."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dolmen
from support.quick_command import quick_command

ROOT = Path(__file__).parents[2]
PROCESSES = 4


Start = Callable[..., subprocess.Popen[str]]


def begin(program: str, example: str, url: str, *arguments: object) -> subprocess.Popen[str]:
    command = [program, str(ROOT / "examples" / example), url, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """``start(example, url, ...)`` runs an example in a process that is forked, in which all is imported already."""
    with quick_command() as programs:
        yield lambda *arguments: begin(str(programs / "dolmen"), *arguments)


def run(example: str, url: str, *arguments: object) -> str:
    return finish(begin(sys.executable, example, url, *arguments))


def finish(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out


@pytest.fixture(params=["directory", "minio"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found: str = str(tmp_path / "db") if request.param == "directory" else request.getfixturevalue("minio_url")
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_transfers_of_many_processes_never_change_the_sum(url: str, start: Start) -> None:
    run("bank.py", url, "open", "--accounts", 5, "--balance", 60)
    working = [start("bank.py", url, "work", "--transfers", 6) for _ in range(PROCESSES)]
    done = sum(int(finish(process).split()[0]) for process in working)
    db = dolmen.open(url)
    assert done
    assert re.fullmatch(rf"sum 300, least balance \d+, {done} transfers\n", run("bank.py", url, "audit"))
    for version in range(2, db.version + 1):
        assert sum(db.at(version).table("accounts").to_arrow()["balance"].to_pylist()) == 300
        assert db.at(version).table("transfers").count() == version - db.version + done


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_orders_of_many_processes_are_taken_once_and_never_beyond_the_stock(url: str, start: Start) -> None:
    assert run("inventory.py", url, "stock", "apples", 7) == "7 apples\n"
    # Six orders of two pieces, each sent twice at once; three of them fit.
    ids = [f"o-{number}" for number in range(6)]
    sent = [(id, start("inventory.py", url, "order", id, "apples", 2)) for id in ids * 2]
    outputs = [(id, *process.communicate(timeout=300)) for id, process in sent]
    assert all(
        out == f"taken: {id}\n" or "OutOfStockError: 1 apples left, 2 ordered" in err for id, out, err in outputs
    )
    taken = {id for id, out, _ in outputs if out}
    assert len(taken) == 3
    assert sorted(dolmen.open(url).table("orders").to_arrow()["id"].to_pylist()) == sorted(taken)
    assert run("inventory.py", url, "report") == "apples: 1 left, 6 ordered\n"
    again = min(taken)
    assert run("inventory.py", url, "order", again, "apples", 2) == f"taken: {again}\n"
    other = start("inventory.py", url, "order", again, "apples", 1)
    assert "AppliedIdError" in other.communicate(timeout=300)[1]
    assert run("inventory.py", url, "report") == "apples: 1 left, 6 ordered\n"
