"""``template.yaml`` as CloudFormation reads it, with conditions decided and intrinsic functions kept as data."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


class CloudFormationLoader(yaml.SafeLoader):
    """Reads ``!Ref X`` as ``{"Ref": "X"}`` and ``!Sub X`` as ``{"Fn::Sub": "X"}``."""


def _function(loader: CloudFormationLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if suffix == "GetAtt":
        value = value.split(".", 1)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


CloudFormationLoader.add_multi_constructor("!", _function)


TEMPLATE: dict[str, Any] = yaml.load((ROOT / "template.yaml").read_text(), CloudFormationLoader)
PARAMETERS: dict[str, Any] = TEMPLATE["Parameters"]

ARN = "arn:${AWS::Partition}:"
DATABASE = f"{ARN}s3:::${{DatabaseBucketName}}"
LANDING = f"{ARN}s3:::${{LandingBucketName}}"
KEY = "arn:aws:kms:eu-central-1:111122223333:key/0a1b2c3d"

CHOICES: dict[str, tuple[str, str]] = {
    "CreateDatabaseBucket": ("yes", "no"),
    "CreateLandingBucket": ("yes", "no"),
    "DatabaseKmsKeyArn": ("", KEY),
    "LandingKmsKeyArn": ("", KEY),
    "SubnetIds": ("", "subnet-1,subnet-2"),
    "AlarmEmail": ("", "people@example.com"),
    "Schedules": ("ENABLED", "DISABLED"),
    "Architecture": ("arm64", "x86_64"),
    "SparkJobs": ("", "code/dolmen/0123"),
}
"""The parameters that conditions are about: the default, and what else."""

GIVEN = {
    "SparkApplicationId": "00f1r2a3b4c5d6e7",
    "SparkJobRoleArn": "arn:aws:iam::111122223333:role/jobs",
    "SparkJobs": CHOICES["SparkJobs"][1],
    "PermissionsBoundaryArn": "arn:aws:iam::111122223333:policy/boundary",
    "MaxFileBytes": "1000000",
    "AdoptedFilesArn": "arn:aws:s3:::lake/events/*",
    "GlueDatabase": "lake",
    "MessagesKmsKeyArn": KEY,
    "Tracing": "ENABLED",
}
"""Others, which are given together: an application of others, in the place of one that the stack makes, and what is
decided by itself."""


def all_choices() -> Iterator[dict[str, str]]:
    """Every combination of the parameters that decide conditions, some of them with an existing application."""
    for number, values in enumerate(itertools.product(*CHOICES.values())):
        choice = dict(zip(CHOICES, values, strict=True))
        yield choice | (GIVEN if number % 4 == 0 else {})


OWNERS = {"DatabaseBucketOwner": "111122223333", "LandingBucketOwner": "444455556666"}
"""The accounts of buckets that the stack's own does not own."""


@dataclass(frozen=True)
class Stack:
    """The template with its conditions decided, without the resources that it does not create.

    Args:
        resources: by name.
        functions: ``Globals.Function``.
        outputs: by name.
    """

    resources: dict[str, Any]
    functions: dict[str, Any]
    outputs: dict[str, Any]

    def properties(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.resources[name]["Properties"]
        return found

    def of_type(self, type_: str) -> list[str]:
        return [name for name, resource in self.resources.items() if resource["Type"] == type_]

    def statements(self, role: str) -> dict[str, dict[str, Any]]:
        """The statements of a role by id, with those of shared policies."""
        own = self.properties(role)
        shared = [self.properties(each["Ref"]) for each in own.get("ManagedPolicyArns", ())]
        documents = [policy["PolicyDocument"] for policy in [*own["Policies"], *shared]]
        found = [statement for document in documents for statement in document["Statement"]]
        assert len({statement["Sid"] for statement in found}) == len(found), f"an id stands twice in {role}"
        return {statement["Sid"]: statement for statement in found}

    def allowed(self, role: str) -> dict[str, set[str]]:
        """The actions that a role allows, by statement id."""
        found = self.statements(role)
        assert all(statement["Effect"] == "Allow" for statement in found.values())
        return {sid: set(as_list(statement["Action"])) for sid, statement in found.items()}

    def resources_of(self, role: str, sid: str) -> list[Any]:
        return as_list(self.statements(role)[sid]["Resource"])


def deployed(**parameters: str) -> Stack:
    """The stack with these parameters, and their defaults for all others."""
    return _deployed(tuple(sorted(parameters.items())))


@cache
def _deployed(parameters: tuple[tuple[str, str], ...]) -> Stack:
    values = {name: parameter.get("Default", f"some-{name}") for name, parameter in PARAMETERS.items()}
    values |= dict(parameters)
    conditions = TEMPLATE["Conditions"]

    def decide(expression: Any) -> Any:
        match expression:
            case {"Ref": name}:
                return values[name]
            case {"Condition": name}:
                return decide(conditions[name])
            case {"Fn::Equals": [left, right]}:
                return str(decide(left)) == str(decide(right))
            case {"Fn::And": parts}:
                return all(decide(part) for part in parts)
            case {"Fn::Not": [inner]}:
                return not decide(inner)
            case {"Fn::Join": [separator, {"Ref": name}]}:
                return separator.join(values[name].split(","))
            case str():
                return expression
        raise AssertionError(f"a condition that these tests can't decide: {expression}")

    nothing = object()

    def resolve(value: Any) -> Any:
        match value:
            case {"Fn::If": [condition, then, otherwise]}:
                return resolve(then if decide(conditions[condition]) else otherwise)
            case {"Ref": "AWS::NoValue"}:
                return nothing
            case dict():
                items = ((key, resolve(item)) for key, item in value.items())
                return {key: item for key, item in items if item is not nothing}
            case list():
                return [item for item in map(resolve, value) if item is not nothing]
        return value

    made = {
        name: {key: item for key, item in resource.items() if key != "Condition"}
        for name, resource in TEMPLATE["Resources"].items()
        if "Condition" not in resource or decide(conditions[resource["Condition"]])
    }
    return Stack(resolve(made), resolve(TEMPLATE["Globals"]["Function"]), resolve(TEMPLATE["Outputs"]))


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def sub(text: str) -> dict[str, str]:
    return {"Fn::Sub": text}


def arn(name: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [name, "Arn"]}


def references(value: Any) -> Iterator[str]:
    """Names of what a part of the template refers to: resources, parameters, and CloudFormation's own."""
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "Ref":
                yield item
            elif key == "Fn::GetAtt":
                yield item[0]
            elif key == "Fn::Sub":
                text, named = item if isinstance(item, list) else (item, {})
                found = (name.split(".")[0] for name in re.findall(r"\$\{([^}!]+)\}", text))
                yield from (name for name in found if name not in named)
                yield from references(named)
            elif key == "DependsOn":
                yield from as_list(item)
            else:
                yield from references(item)
