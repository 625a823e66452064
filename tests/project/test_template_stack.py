"""template.yaml as a whole, and samconfig.toml: valid, whole in every combination of its conditions, and usable."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.built import find_sam
from support.template import CHOICES, GIVEN, OWNERS, PARAMETERS, TEMPLATE, all_choices, deployed, references

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = tomllib.loads((ROOT / "samconfig.toml").read_text())


@pytest.mark.slow
def test_sam_validates_and_lints_the_template_under_all_its_conditions(tmp_path: Path) -> None:
    result = subprocess.run(
        [find_sam(), "validate", "--lint", "--region", "us-east-1"],
        cwd=ROOT,
        env={**os.environ, "SAM_CLI_TELEMETRY": "0", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "is a valid SAM Template" in result.stdout


def test_the_template_needs_no_transform_that_only_some_commands_of_sam_apply() -> None:
    """`sam list` cannot expand loops at all, and other commands do only with an option of their own."""
    assert TEMPLATE["Transform"] == "AWS::Serverless-2016-10-31"
    assert "Fn::ForEach" not in (ROOT / "template.yaml").read_text()


def test_these_are_all_parameters_that_conditions_and_rules_are_about() -> None:
    assert {*references(TEMPLATE["Conditions"]), *references(TEMPLATE["Rules"])} == {*CHOICES, *GIVEN, *OWNERS}


def test_whatever_is_chosen_nothing_refers_to_what_is_not_made() -> None:
    for choice in all_choices():
        stack = deployed(**choice)
        there = {*stack.resources, *PARAMETERS}
        for part in (stack.resources, stack.functions, stack.outputs):
            missing = {name for name in references(part) if not name.startswith("AWS::")} - there
            assert not missing, f"{missing} with {choice}"


def separate_events(name: str, resource: dict[str, Any]) -> dict[str, Any]:
    """A resource, and the events of a function, of which SAM makes resources of their own."""
    properties = {key: value for key, value in resource.get("Properties", {}).items() if key != "Events"}
    events = resource.get("Properties", {}).get("Events", {})
    return {name: resource | {"Properties": properties}} | {f"{name}{event}": made for event, made in events.items()}


def test_whatever_is_chosen_no_resource_depends_on_itself_over_others() -> None:
    for choice in all_choices():
        resources = deployed(**choice).resources
        needs = {
            name: {other for other in references(part) if other in resources}
            for name, resource in resources.items()
            for name, part in separate_events(name, resource).items()
        }
        while needs:
            free = {name for name, others in needs.items() if not others}
            assert free, f"a circle among {sorted(needs)} with {choice}"
            needs = {name: others - free for name, others in needs.items() if name not in free}


def test_every_parameter_is_used_described_and_asked_for_in_a_group() -> None:
    used = set(references({key: TEMPLATE[key] for key in ("Globals", "Resources", "Outputs", "Conditions")}))
    assert set(PARAMETERS) <= used
    grouped = TEMPLATE["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    assert sorted(name for group in grouped for name in group["Parameters"]) == sorted(PARAMETERS)
    plain = {"Architecture", "LogLevel", "LogRetentionDays"}
    assert {name for name, parameter in PARAMETERS.items() if "Description" not in parameter} <= plain


def test_only_the_names_of_the_buckets_have_to_be_given() -> None:
    assert {name for name, parameter in PARAMETERS.items() if "Default" not in parameter} == {
        "DatabaseBucketName",
        "LandingBucketName",
    }


@pytest.mark.parametrize("name", [name for name, parameter in PARAMETERS.items() if "Default" in parameter])
def test_a_default_is_a_value_that_is_taken(name: str) -> None:
    assert_taken(name, str(PARAMETERS[name]["Default"]))


def assert_taken(name: str, value: str) -> None:
    parameter = PARAMETERS[name]
    assert value in map(str, parameter.get("AllowedValues", [value]))
    assert re.fullmatch(parameter.get("AllowedPattern", ".*"), value)
    if parameter["Type"] == "Number":
        assert parameter.get("MinValue", 0) <= int(value) <= parameter.get("MaxValue", int(value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LandingPrefix", "rejected/"),
        ("LandingPrefix", "rejected/landing/"),
        ("LandingPrefix", "handed/"),
        ("SparkJobs", "s3://bucket/prefix"),
        ("SparkApplicationId", "Application"),
        ("SparkJobRoleArn", "jobs"),
        ("HandoverBytes", "0"),
        ("HandoverBacklog", "-1"),
        ("LandingPrefix", "landing"),
        ("LandingPrefix", ""),
        ("LandingPrefix", "a/../b/"),
        ("DatabasePrefix", ""),
        ("DatabasePrefix", "dolmen/"),
        ("DatabaseKmsKeyArn", "alias/mine"),
        ("AlarmEmail", "nobody"),
        ("CompactRate", "15 minutes"),
        ("S3Endpoint", "minio:9000"),
        ("LandingBucketName", "Landing"),
    ],
)
def test_a_value_that_could_not_work_is_refused_before_anything_is_made(name: str, value: str) -> None:
    with pytest.raises(AssertionError):
        assert_taken(name, value)


def test_the_outputs_say_where_things_are() -> None:
    wanted = {"DatabaseUri", "LandingUri", "RejectedUri", "IngestQueueUrl", "IngestDeadLettersUrl", "DeleteQueueUrl"}
    wanted |= {"DeleteDeadLettersUrl", "CompactDeadLettersUrl", "GcDeadLettersUrl", "AlarmTopicArn", "DashboardUrl"}
    wanted |= {"CoreLayerArn", "DependenciesLayerArn"}
    wanted |= {f"{name}FunctionName" for name in ("Ingest", "Delete", "Compact", "Gc")}
    wanted |= {f"{name}PolicyArn" for name in ("Read", "Drop", "RequestDeletes", "Operate")}
    outputs = deployed().outputs
    wanted |= {"HandedUri"}
    assert wanted <= set(outputs)
    assert outputs["LandingUri"]["Value"] == {"Fn::Sub": "s3://${LandingBucketName}/${LandingPrefix}"}
    assert outputs["DependenciesLayerArn"]["Value"] == {"Ref": "DependenciesArm64Layer"}
    assert deployed(Architecture="x86_64").outputs["DependenciesLayerArn"]["Value"] == {"Ref": "DependenciesX8664Layer"}


def test_one_output_is_a_line_that_tells_a_shell_all_that_the_command_line_asks() -> None:
    line = deployed().outputs["CommandLine"]["Value"]["Fn::Sub"]
    assert line.split() == [
        "export",
        "DOLMEN_DATABASE=s3://${DatabaseBucketName}/${DatabasePrefix}",
        "DOLMEN_INGEST_QUEUE=${IngestQueue}",
        "DOLMEN_DELETE_QUEUE=${DeleteQueue}",
    ]
    assert "\n" not in line


# ---- samconfig.toml -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["default", "prod", "local"])
def test_samconfig_has_the_section_and_sets_only_what_the_template_takes(section: str) -> None:
    deploy = SECTIONS[section]["deploy"]["parameters"]
    assert deploy["capabilities"] == "CAPABILITY_IAM"
    assert deploy["resolve_s3"] is True
    assert SECTIONS[section]["validate"]["parameters"]["lint"] is True
    for override in deploy.get("parameter_overrides", []):
        assert_taken(*override.split("=", 1))


def test_stacks_of_all_sections_fit_into_one_account() -> None:
    """And mix no figures: the namespace of a stack's metrics is its name."""
    deploys = [SECTIONS[section]["deploy"]["parameters"] for section in SECTIONS if section != "version"]
    assert len({deploy["stack_name"] for deploy in deploys}) == len(deploys)


def test_only_the_emulator_is_deployed_to_without_asking() -> None:
    assert SECTIONS["default"]["deploy"]["parameters"]["confirm_changeset"] is True
    assert SECTIONS["prod"]["deploy"]["parameters"]["confirm_changeset"] is True
    assert SECTIONS["local"]["deploy"]["parameters"]["confirm_changeset"] is False


@pytest.mark.parametrize("section", ["default", "prod", "local"])
def test_every_environment_gives_the_stack_tags_and_no_resource_refuses_them(section: str) -> None:
    """Those of the stack reach every resource. A key that a resource sets itself would win over the stack's."""
    tags = dict(tag.split("=", 1) for tag in SECTIONS[section]["deploy"]["parameters"]["tags"].split())
    assert tags["application"] == "dolmen"
    assert section in (tags.get("environment"), "default")
    assert all("Tags" not in made.get("Properties", {}) for made in TEMPLATE["Resources"].values())
