"""docs/security.md names limits with the numbers that the code has."""

from __future__ import annotations

import importlib
import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from support.template import KEY, as_list, deployed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
LIMITS = re.findall(r"^\| [^|]+ \| ([\d,]+)[^|]* \| `(dolmen[\w.]+)\.([A-Z_]+)`", PAGE, re.MULTILINE)


def test_the_page_has_limits() -> None:
    assert len(LIMITS) >= 20


@pytest.mark.parametrize(("number", "module", "name"), LIMITS, ids=[f"{module}.{name}" for _, module, name in LIMITS])
def test_each_limit_is_the_one_of_the_code(number: str, module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) == int(number.replace(",", ""))


def test_what_the_page_points_at_is_there() -> None:
    for path in re.findall(r"`((?:dolmen|tests|docs)/[\w./]+\.(?:py|md))`", PAGE):
        assert (ROOT / path).is_file() or (ROOT / "shared" / path).is_file(), path
    for name, path in re.findall(r"`(\w+)`(?:, `\w+`)? in `(dolmen/[\w/]+\.py)`", PAGE):
        assert re.search(rf"\b{name}\b", (ROOT / "shared" / path).read_text()), f"{name} in {path}"


def test_the_key_policy_of_the_page_lets_every_service_use_the_key_that_the_stack_gives_it_to() -> None:
    [block] = [text for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "EncryptLogs" in text]
    statements = {statement["Sid"]: statement for statement in json.loads(block)["Statement"]}
    named = {service for one in statements.values() for service in as_list(one["Principal"].get("Service", []))}
    assert named == set(re.findall(r"^\| `([\w.]+\.amazonaws\.com)`", PAGE, re.MULTILINE))
    using = {"cloudwatch.amazonaws.com", "logs.REGION.amazonaws.com"}  # the topic and the log groups
    for choice in ("yes", "no"):
        stack = deployed(CreateLandingBucket=choice, MessagesKmsKeyArn=KEY)
        for policy in stack.of_type("AWS::SQS::QueuePolicy"):
            senders = stack.properties(policy)["PolicyDocument"]["Statement"]
            using |= {one["Principal"]["Service"] for one in senders if one["Effect"] == "Allow"}
    assert named == using
    group = deployed().properties("DeleteLogs")["LogGroupName"]["Fn::Sub"].replace("${AWS::StackName}", "STACK")
    [pattern] = statements["EncryptLogs"]["Condition"]["ArnLike"].values()
    assert fnmatchcase(f"arn:aws:logs:REGION:ACCOUNT:log-group:{group}", pattern)
