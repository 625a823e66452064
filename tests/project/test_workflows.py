"""The workflows and forms in .github: they parse, name what exists, and may do no more than they need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
HIGHEST = {"contents": "read", "id-token": "write"}
"""The permissions that any job may have at most."""

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def parse(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text())
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in parse(path)["jobs"].values():
        yield from job.get("steps", ())


def test_there_are_workflows_for_tests_releases_and_a_smoke_test_on_aws() -> None:
    assert [path.stem for path in WORKFLOWS] == ["aws-smoke", "nightly", "release", "tests"]


@each_workflow
def test_a_workflow_says_when_it_runs_and_what_it_may_do(path: Path) -> None:
    workflow = parse(path)
    assert workflow["name"] == path.stem
    assert workflow[True]  # YAML 1.1 reads the key "on" as true
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job.get("permissions", {}).items() <= HIGHEST.items()
        assert "uses" in job or job["timeout-minutes"] <= (350 if path.stem == "nightly" else 90)


@each_workflow
def test_every_action_is_pinned_by_a_full_version(path: Path) -> None:
    for step in steps(path):
        assert ("uses" in step) != ("run" in step), step
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", step["uses"]), step["uses"]


def test_an_action_has_the_same_version_everywhere() -> None:
    pins = {step["uses"] for path in WORKFLOWS for step in steps(path) if "uses" in step}
    assert len({pin.partition("@")[0] for pin in pins}) == len(pins)


@each_workflow
def test_what_a_workflow_runs_exists(path: Path) -> None:
    workflow = parse(path)
    for job in workflow["jobs"].values():
        if "uses" in job:
            assert (ROOT / job["uses"]).exists()
    for step in steps(path):
        run = step.get("run", "")
        for target in re.findall(r"\bmake ([a-z-]+)", run):
            assert target in TARGETS
        for file in re.findall(r"(?:bash|python) ([\w./-]*/[\w./-]+)", run):
            assert (ROOT / file).exists(), file


@each_workflow
def test_no_text_from_outside_stands_in_a_shell_command(path: Path) -> None:
    """Inputs, titles and names of branches would be run as code; they go through environment variables."""
    for step in steps(path):
        for expression in re.findall(r"\$\{\{\s*(.*?)\s*\}\}", step.get("run", "")):
            assert expression in {"github.server_url", "github.repository", "matrix.python"}


def test_only_the_jobs_that_publish_or_deploy_ask_for_an_identity_and_they_wait_for_an_environment() -> None:
    asking = {
        (path.stem, name): job
        for path in WORKFLOWS
        for name, job in parse(path)["jobs"].items()
        if "id-token" in job.get("permissions", {})
    }
    assert set(asking) == {("aws-smoke", "smoke"), ("release", "publish")}
    assert all("environment" in job for job in asking.values())
    publish = asking["release", "publish"]
    assert set(publish["needs"]) == {"tests", "build"}
    assert not any("run" in step or "checkout" in step["uses"] for step in publish["steps"])


def test_no_workflow_reads_a_secret() -> None:
    assert [path.name for path in WORKFLOWS if "secrets." in path.read_text()] == []


def test_each_night_runs_all_parts_of_make_nightly_and_the_very_script_that_runs_anywhere() -> None:
    nightly = ROOT / ".github/workflows/nightly.yml"
    assert any(step.get("run") == "bash .ci/run" for step in steps(nightly))
    (parts,) = re.findall(r"^nightly: (.*?) ##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*parse(nightly)["jobs"]["searches"]["strategy"]["matrix"]["target"], "test-long"} == set(parts.split())
    assert any(step.get("run") == "make test-long" for step in steps(nightly))
