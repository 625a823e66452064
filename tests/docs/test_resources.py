"""docs/resources.md lists every resource of template.yaml, in its parts and its order, and says when it is made."""

from __future__ import annotations

import re
from pathlib import Path

from support.template import PARAMETERS, TEMPLATE, deployed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "resources.md").read_text()
TEXT = (ROOT / "template.yaml").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| `([\w:]+)` \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)


def parts(text: str, heading: str, resource: str) -> dict[str, list[str]]:
    """The names of resources by the heading that they are under, both as these patterns find them."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if named := re.match(heading, line):
            found[named[1].lower()] = []
        elif (named := re.match(resource, line)) and found:
            found[list(found)[-1]].append(named[1])
    return {name: some for name, some in found.items() if some}


def test_the_page_lists_every_resource_in_the_parts_and_the_order_of_the_template() -> None:
    resources = TEXT.partition("\nResources:\n")[2].partition("\nOutputs:\n")[0]
    there = parts(resources, r"  # ==== \d\. (\w+)", r"  (\w+):$")
    assert [name for some in there.values() for name in some] == list(TEMPLATE["Resources"])
    assert parts(PAGE, r"## (.+)", r"\| `(\w+)` \|") == there
    assert list(there) == ["storage", "functions", "watching", "people"]


def test_the_page_says_the_type_and_the_template_s_description_of_each() -> None:
    for name, type_, _, purpose in ROWS:
        resource = TEMPLATE["Resources"][name]
        assert f"AWS::{type_}" == resource["Type"]
        properties = resource["Properties"]
        described = properties.get("AlarmDescription") or properties.get("Description")
        if described is not None and name != "LandingRule":
            assert purpose.rstrip(".") == described


def test_the_page_says_on_which_parameters_a_resource_depends() -> None:
    for name, _, when, _ in ROWS:
        condition = TEMPLATE["Resources"][name].get("Condition")
        if condition is None:
            assert when == "always", name
            continue
        named = re.findall(r"`(\w+)(?:=(\S+))?`", when)
        assert named, name
        values = {parameter: value or "some" for parameter, value in named if parameter in PARAMETERS}
        without = re.findall(r"without `(\w+)`", when)
        given = {parameter: value for parameter, value in values.items() if parameter not in without}
        assert name in deployed(**given).resources
        for parameter in values:
            other = {key: value for key, value in given.items() if key != parameter}
            default = str(PARAMETERS[parameter].get("Default", ""))
            changed = {parameter: "other" if default == given.get(parameter) else default}
            changed = {parameter: "some"} if parameter in without else changed
            assert name not in deployed(**other | changed).resources


def test_the_page_names_what_sam_makes_of_the_functions() -> None:
    for name, resource in TEMPLATE["Resources"].items():
        for event in resource["Properties"].get("Events", {}):
            assert f"`{name}{event}`" in PAGE
        if "EventInvokeConfig" in resource["Properties"]:
            assert f"`{name}EventInvokeConfig`" in PAGE
