"""template.yaml: alarms and the dashboard, on figures that the functions really report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dolmen.service.functions.deliveries import FIRST_WAIT_SECONDS, MAX_FAILURES, MAX_WAIT_SECONDS
from support.template import KEY, PARAMETERS, TEMPLATE, deployed, references

ROOT = Path(__file__).resolve().parents[2]
STACK = deployed()
ALARMS = STACK.of_type("AWS::CloudWatch::Alarm")
FUNCTIONS = ["Ingest", "Delete", "Compact", "Gc"]
OWN = {"Ref": "AWS::StackName"}


def on(namespace: Any, metric: str) -> dict[Any, dict[str, Any]]:
    """The alarms on a metric, by the value of their only dimension."""
    found = {}
    for name in ALARMS:
        alarm = STACK.properties(name)
        if (alarm["Namespace"], alarm["MetricName"]) == (namespace, metric):
            (dimension,) = alarm["Dimensions"]
            found[json.dumps([dimension["Name"], dimension["Value"]])] = alarm
    return found


def queue(name: str) -> str:
    return json.dumps(["QueueName", {"Fn::GetAtt": [name, "QueueName"]}])


def function(name: str) -> str:
    return json.dumps(["FunctionName", {"Ref": f"{name}Function"}])


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_says_what_it_means_and_tells_the_topic_both_ways(name: str) -> None:
    alarm = STACK.properties(name)
    assert len(alarm["AlarmDescription"]) > 20
    assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": "AlarmTopic"}]
    assert alarm["TreatMissingData"] in ("notBreaching", "breaching", "ignore")
    assert "AlarmName" not in alarm  # two stacks in one account
    # What CloudWatch takes: a day for periods of minutes, a week for those of an hour.
    periods = alarm["EvaluationPeriods"]
    if isinstance(periods, dict):
        periods = max(one["ErrorPeriods"] for one in TEMPLATE["Mappings"]["VisibilityTimeout"].values())
    assert alarm["Period"] * periods <= (7 * 86400 if alarm["Period"] >= 3600 else 86400)


def test_every_dead_letter_queue_rings_at_its_first_message() -> None:
    alarms = on("AWS/SQS", "ApproximateNumberOfMessagesVisible")
    assert set(alarms) == {queue(f"{name}DeadLetters") for name in FUNCTIONS}
    for alarm in alarms.values():
        assert (alarm["Statistic"], alarm["ComparisonOperator"], alarm["Threshold"]) == (
            "Maximum",
            "GreaterThanThreshold",
            0,
        )


def test_both_queues_ring_when_a_message_waits_too_long() -> None:
    alarms = on("AWS/SQS", "ApproximateAgeOfOldestMessage")
    assert {name: alarm["Threshold"] for name, alarm in alarms.items()} == {
        queue("IngestQueue"): {"Ref": "IngestAgeAlarmSeconds"},
        queue("DeleteQueue"): {"Ref": "DeleteAgeAlarmSeconds"},
    }
    for alarm in alarms.values():
        assert (alarm["Statistic"], alarm["ComparisonOperator"]) == ("Maximum", "GreaterThanThreshold")


@pytest.mark.parametrize("metric", ["Errors", "Throttles"])
def test_every_function_rings_when_it_fails_or_is_throttled(metric: str) -> None:
    alarms = on("AWS/Lambda", metric)
    assert set(alarms) == {function(name) for name in FUNCTIONS}
    for alarm in alarms.values():
        assert (alarm["Statistic"], alarm["ComparisonOperator"], alarm["Threshold"]) == (
            "Sum",
            "GreaterThanThreshold",
            0,
        )
        assert alarm["TreatMissingData"] == "notBreaching"


def test_one_failure_that_is_repeated_is_no_alarm_and_a_failed_round_is() -> None:
    errors, throttles = on("AWS/Lambda", "Errors"), on("AWS/Lambda", "Throttles")
    for alarm in throttles.values():
        assert (alarm["DatapointsToAlarm"], alarm["EvaluationPeriods"]) == (2, 3)
    for name in ("Ingest", "Delete"):
        alarm = errors[function(name)]
        assert alarm["DatapointsToAlarm"] == 2
        periods = {"Fn::FindInMap": ["VisibilityTimeout", {"Ref": f"{name}Timeout"}, "ErrorPeriods"]}
        assert alarm["EvaluationPeriods"] == periods
    for timeout, mapped in TEMPLATE["Mappings"]["VisibilityTimeout"].items():
        # A message of which the function died comes again when its time-out is over: the second death is in the window.
        assert mapped["ErrorPeriods"] * 300 >= mapped["Seconds"] + int(timeout) + 300
    for alarm in (errors[function("Compact")], errors[function("Gc")]):
        assert alarm["EvaluationPeriods"] == 1


def test_a_day_without_compaction_or_collection_rings_by_missing_figures() -> None:
    alarms = on("AWS/Lambda", "Invocations")
    assert set(alarms) == {function("Compact"), function("Gc")}
    for alarm in alarms.values():
        assert (alarm["Statistic"], alarm["ComparisonOperator"], alarm["Threshold"]) == ("Sum", "LessThanThreshold", 1)
        assert alarm["Period"] * alarm["EvaluationPeriods"] == 24 * 3600
        assert alarm.get("DatapointsToAlarm", alarm["EvaluationPeriods"]) == alarm["EvaluationPeriods"]
        assert alarm["TreatMissingData"] == "breaching"


def test_schedules_that_are_switched_off_are_not_missed() -> None:
    missing = set(ALARMS) - set(deployed(Schedules="DISABLED").of_type("AWS::CloudWatch::Alarm"))
    assert missing == {"NoCompactAlarm", "NoGcAlarm"}


def test_a_delete_that_stays_unresolved_rings() -> None:
    ((dimension, alarm),) = on(OWN, "OldestUnresolvedDeleteSeconds").items()
    assert dimension == json.dumps(["service", "compact"])
    assert (alarm["Statistic"], alarm["ComparisonOperator"]) == ("Maximum", "GreaterThanThreshold")
    assert alarm["Threshold"] == {"Ref": "UnresolvedDeleteAlarmSeconds"}
    assert alarm["TreatMissingData"] == "ignore"  # between two rounds nothing is known anew


def test_a_publication_that_lags_behind_rings() -> None:
    ((dimension, alarm),) = on(OWN, "PublicationLagSeconds").items()
    assert dimension == json.dumps(["service", "compact"])
    assert (alarm["Statistic"], alarm["ComparisonOperator"]) == ("Maximum", "GreaterThanThreshold")
    assert alarm["Threshold"] == 6 * 3600
    assert alarm["TreatMissingData"] == "ignore"


def test_an_index_that_never_catches_up_rings() -> None:
    ((dimension, alarm),) = on(OWN, "IndexesBehind").items()
    assert dimension == json.dumps(["service", "compact"])
    assert (alarm["Statistic"], alarm["ComparisonOperator"]) == ("Minimum", "GreaterThanThreshold")
    assert (alarm["Threshold"], alarm["Period"] * alarm["EvaluationPeriods"]) == (0, 6 * 3600)
    assert alarm["TreatMissingData"] == "ignore"


def test_an_erasure_whose_deadline_is_in_danger_rings() -> None:
    ((dimension, alarm),) = on(OWN, "ErasuresInDanger").items()
    assert dimension == json.dumps(["service", "gc"])
    assert (alarm["Statistic"], alarm["ComparisonOperator"], alarm["Threshold"]) == (
        "Maximum",
        "GreaterThanThreshold",
        0,
    )
    assert alarm["TreatMissingData"] == "ignore"  # between two rounds nothing is known anew


def test_a_queue_that_a_function_cannot_reach_rings() -> None:
    alarms = on(OWN, "QueueErrors")
    assert set(alarms) == {json.dumps(["service", name]) for name in ("ingest", "delete")}
    for alarm in alarms.values():
        assert (alarm["Statistic"], alarm["ComparisonOperator"], alarm["Threshold"]) == (
            "Sum",
            "GreaterThanThreshold",
            0,
        )


def test_a_message_that_comes_back_for_too_long_rings_though_each_copy_is_new_to_its_queue() -> None:
    alarms = on(OWN, "OldestUndoneSeconds")
    assert {name: alarm["Threshold"] for name, alarm in alarms.items()} == {
        json.dumps(["service", "ingest"]): {"Ref": "IngestAgeAlarmSeconds"},
        json.dumps(["service", "delete"]): {"Ref": "DeleteAgeAlarmSeconds"},
    }


def test_a_message_is_given_up_after_the_alarm_about_its_age_and_not_before() -> None:
    waits = [min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**n) for n in range(MAX_FAILURES - 1)]
    for name in ("IngestAgeAlarmSeconds", "DeleteAgeAlarmSeconds"):
        assert sum(waits) > 1.5 * PARAMETERS[name]["Default"]


def test_a_rejected_file_rings() -> None:
    ((dimension, alarm),) = on(OWN, "FilesRejected").items()
    assert dimension == json.dumps(["service", "ingest"])
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("GreaterThanThreshold", 0)


def test_alarms_go_to_the_topic_and_by_mail_to_whom_it_may_concern() -> None:
    assert STACK.of_type("AWS::SNS::Topic") == ["AlarmTopic"]
    assert "KmsMasterKeyId" not in STACK.properties("AlarmTopic")
    assert deployed(MessagesKmsKeyArn=KEY).properties("AlarmTopic")["KmsMasterKeyId"] == {"Ref": "MessagesKmsKeyArn"}
    assert STACK.of_type("AWS::SNS::Subscription") == []
    (mail,) = (stack := deployed(AlarmEmail="people@example.com")).of_type("AWS::SNS::Subscription")
    assert stack.properties(mail) == {
        "TopicArn": {"Ref": "AlarmTopic"},
        "Protocol": "email",
        "Endpoint": {"Ref": "AlarmEmail"},
    }


# ---- what is looked at really exists --------------------------------------------------------------------------------


def dashboard() -> dict[str, Any]:
    body: dict[str, Any] = json.loads(STACK.properties("Dashboard")["DashboardBody"]["Fn::Sub"])
    return body


def shown() -> Iterator[tuple[str, str, str]]:
    """Namespace, metric and dimension value of every line of the dashboard, its shorthands written out."""
    for widget in dashboard()["widgets"]:
        last: list[str] = []
        for line in widget["properties"]["metrics"]:
            said = [part for part in line if isinstance(part, str)]
            if said[0] == "...":
                said = [*last[: len(last) - len(said) + 1], *said[1:]]
            last = [last[place] if part == "." else part for place, part in enumerate(said)]
            namespace, metric, _, value = last
            yield namespace, metric, value


def reported() -> dict[str, set[str]]:
    """The names that each function's code gives to figures of its own."""
    telling = (ROOT / "shared/dolmen/maintenance/round.py").read_text()
    of_debt, of_collection = telling.index("def measures_of_debt"), telling.index("def measures_of_collection")
    folder = ROOT / "shared/dolmen/service/functions"
    deliveries = (folder / "deliveries.py").read_text()
    code = {name: (folder / f"{name}_function.py").read_text() + deliveries for name in ("ingest", "delete")}
    code["compact"] = (folder / "scheduled_functions.py").read_text() + telling[:of_collection]
    code["gc"] = telling[of_collection:]
    assert 0 < of_debt < of_collection
    found = {name: set(re.findall(r'"([A-Z][A-Za-z]+)"', text)) for name, text in code.items()}
    (rows,) = re.findall(r'for name in \(([^()]+)\):\s+counts\[f"Rows\{name.capitalize\(\)\}"\]', code["ingest"])
    found["ingest"] |= {f"Rows{name.capitalize()}" for name in re.findall(r"\w+", rows)}
    return found


def test_the_dashboard_and_alarms_show_only_figures_that_the_functions_report() -> None:
    known = reported()
    own = [(metric, value) for namespace, metric, value in shown() if namespace == "${AWS::StackName}"]
    assert len(own) > 20
    for name in ALARMS:
        alarm = STACK.properties(name)
        if alarm["Namespace"] == OWN:
            own.append((alarm["MetricName"], alarm["Dimensions"][0]["Value"]))
    for metric, service in own:
        assert metric in known[service], f"{service} reports no {metric}"


def test_the_dashboard_shows_every_queue_and_every_function() -> None:
    lines = list(shown())
    assert {value for _, metric, value in lines if metric == "ApproximateNumberOfMessagesVisible"} == {
        f"${{{name}.QueueName}}" for name in STACK.of_type("AWS::SQS::Queue")
    }
    for metric in ("Errors", "Throttles", "Duration"):
        assert {value for _, found, value in lines if found == metric} == {f"${{{name}Function}}" for name in FUNCTIONS}


def test_the_dashboards_widgets_have_titles_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for widget in dashboard()["widgets"]:
        assert widget["properties"]["title"]
        assert widget["properties"]["region"] == "${AWS::Region}"
        place = {
            (x, y)
            for x in range(widget["x"], widget["x"] + widget["width"])
            for y in range(widget["y"], widget["y"] + widget["height"])
        }
        assert not taken & place
        assert max(x for x, _ in place) < 24
        taken |= place
    assert set(references(STACK.resources["Dashboard"])) >= {f"{name}Function" for name in FUNCTIONS}
