"""Every command of the README, of docs/tour.md and of docs/pipeline.md is run here, as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from support.ministack import boto3_client, endpoint_environment
from support.quick_command import quick_command

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
PAGES += [ROOT / "docs" / name for name in ("tour.md", "pipeline.md")]
TOURS = {"quick": "README.md", "python": "docs/tour.md", "shell": "docs/tour.md"}
TOURS |= {"declared": "docs/pipeline.md", "queues": "docs/pipeline.md"}
"""The page that each tour is on."""


def rooms() -> list[tuple[str, str]]:
    """The folders of the README's map of the package, with what it says is in them."""
    return re.findall(r"^\| `([a-z]+)/` \| .*?\? \| (.*) \|$", README, re.MULTILINE)


def block(name: str) -> str:
    page = (ROOT / TOURS[name]).read_text()
    found = re.search(rf"<!-- tour: {name} -->\n```\w+\n(.*?)```", page, re.DOTALL)
    assert found, f"{TOURS[name]} has no tour in {name}"
    return found[1]


def run(command: list[str], directory: Path, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


RunShell = Callable[[str, Path], str]


@pytest.fixture(scope="module")
def run_shell() -> Iterator[RunShell]:
    """What the commands of a tour print, run in a directory; fails unless all of them succeed."""
    with quick_command() as programs:

        def run_tour(name: str, directory: Path) -> str:
            path = f"{programs}{os.pathsep}{os.environ['PATH']}"
            return run(["bash", "-euo", "pipefail", "-c", block(name)], directory, PATH=path)

        yield run_tour


def run_python(name: str, directory: Path) -> tuple[str, list[str]]:
    """What a tour prints, and the numbers that its comments promise; fails unless it prints these, in their order."""
    source = block(name)
    output = run([sys.executable, "-c", source], directory)
    promised = re.findall(r"print\(.*\)\s+# (\d+)$", source, re.MULTILINE)
    printed = iter(output.splitlines())
    for value in promised:
        assert value in printed, f"{value} is not printed, or not in that order:\n{output}"
    return output, promised


@pytest.mark.slow
def test_the_first_example_prints_what_it_says(tmp_path: Path) -> None:
    output, promised = run_python("quick", tmp_path)
    assert promised == ["1", "2"]
    assert "4.0" in output


@pytest.mark.slow
def test_the_python_tour_prints_what_it_says(tmp_path: Path) -> None:
    output, promised = run_python("python", tmp_path)
    assert len(promised) >= 3
    assert "Ada" in output
    assert "Grace" not in output


@pytest.mark.slow
def test_the_shell_tour_runs(run_shell: RunShell, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    output = run_shell("shell", tmp_path)
    assert re.search(r"^6$", output, re.MULTILINE), "the scan of version 2 counts all 6 rows"
    assert '"operation":"delete"' in output


@pytest.mark.slow
def test_the_tour_of_declared_tables_runs_and_deletes_what_it_asks_for(run_shell: RunShell, tmp_path: Path) -> None:
    for name in ("examples", "functions"):
        (tmp_path / name).symlink_to(ROOT / name)
    output = run_shell("declared", tmp_path)
    assert "+ table events" in output
    assert re.search(r"erasure-17 .* applied", output), output
    assert output.splitlines()[-1] == "3", "of 6 rows, 3 are of user 42"


@pytest.mark.slow
def test_the_tour_of_queues_runs(
    run_shell: RunShell, ministack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in endpoint_environment(ministack).items():
        monkeypatch.setenv(name, value)
    s3, sqs = boto3_client("s3", ministack), boto3_client("sqs", ministack)
    s3.create_bucket(Bucket="readme-landing")
    s3.put_object(Bucket="readme-landing", Key="landing/events/1.csv", Body=b"id,user_id\n1,42\n")
    monkeypatch.setenv("LANDING", "s3://readme-landing/landing/")
    monkeypatch.setenv("DOLMEN_DATABASE", str(tmp_path / "db"))
    db = dolmen.open(str(tmp_path / "db"))
    db.create_table("events", pa.schema([("id", pa.int64()), ("user_id", pa.int64())]))
    bodies = []
    for name in ("INGEST", "DELETE"):
        monkeypatch.setenv(f"DOLMEN_{name}_QUEUE", sqs.create_queue(QueueName=f"readme-{name}")["QueueUrl"])
    run_shell("queues", tmp_path)
    for name in ("INGEST", "DELETE"):
        [message] = sqs.receive_message(QueueUrl=os.environ[f"DOLMEN_{name}_QUEUE"])["Messages"]
        bodies.append(message["Body"])
    assert "landing/events/1.csv" in bodies[0]
    assert json.loads(bodies[1]) == {"table": "events", "where": "user_id = 42", "request_id": "erasure-17"}


def test_every_tour_of_a_page_is_run() -> None:
    marked = {name: str(page.relative_to(ROOT)) for page in PAGES for name in marks(page)}
    assert marked == TOURS


def marks(page: Path) -> list[str]:
    return re.findall(r"<!-- tour: (.*?) -->", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_make_targets_exist(page: Path) -> None:
    targets = (ROOT / "Makefile").read_text()
    for command in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE):
        assert re.search(rf"^{command}:", targets, re.MULTILINE), f"there is no make {command}"


def test_the_readme_links_few_pages_and_the_index_links_all() -> None:
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)", README))
    assert len(linked) <= 8
    index = set(re.findall(r"\]\(([\w-]+\.md)", (ROOT / "docs" / "index.md").read_text()))
    assert sorted({page.name for page in (ROOT / "docs").glob("*.md")} - index) == ["index.md"]


@pytest.mark.parametrize(("folder", "contents"), rooms())
def test_the_map_of_the_readme_names_what_is_there(folder: str, contents: str) -> None:
    room = ROOT / "shared" / "dolmen" / folder
    for part in re.findall(r"`([a-z_]+)/`", contents):
        assert (room / part / "__init__.py").exists(), part
    for file in re.findall(r"`([a-z_/]+\.py)`", contents):
        assert (room / file).exists(), file
    for file, name in re.findall(r"`([a-z_/]+\.py)`[ :(]+`([A-Za-z_]+)`", contents):
        assert re.search(rf"^ *(def |class )?{name}\b", (room / file).read_text(), re.MULTILINE), (file, name)
    sources = "\n".join(path.read_text() for path in room.rglob("*.py"))
    names = re.findall(r"`([A-Za-z_]+)`", contents)
    assert [name for name in names if not re.search(rf"^ *(def |class )?{name}\b", sources, re.MULTILINE)] == []


def test_the_map_of_the_readme_has_the_order_of_the_floors() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == ["dolmen"])
    floors = {name.strip(" ()"): number for number, layer in enumerate(layers) for name in layer.split("|")}
    numbers = [floors[folder] for folder, _ in rooms()]
    assert numbers == sorted(numbers)


def test_the_map_of_the_readme_has_every_folder() -> None:
    package = ROOT / "shared" / "dolmen"
    assert sorted(folder for folder, _ in rooms()) == sorted(path.parent.name for path in package.glob("*/__init__.py"))
