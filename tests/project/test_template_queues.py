"""template.yaml: the queues, and what becomes of messages that fail."""

from __future__ import annotations

import pytest

from dolmen.ingest.batch import MAX_TABLE_TRIES
from dolmen.service.functions.deliveries import FIRST_WAIT_SECONDS
from support.template import KEY, PARAMETERS, TEMPLATE, arn, deployed, sub

STACK = deployed()
BATCHING_WINDOW_MAX_SECONDS = 60
QUEUES = {
    "IngestFunction": ("IngestQueue", "IngestDeadLetters"),
    "DeleteFunction": ("DeleteQueue", "DeleteDeadLetters"),
}


def test_these_are_all_queues() -> None:
    assert set(STACK.of_type("AWS::SQS::Queue")) == {
        *(queue for pair in QUEUES.values() for queue in pair),
        "CompactDeadLetters",
        "GcDeadLetters",
    }


@pytest.mark.parametrize(("queue", "dead_letters"), list(QUEUES.values()))
def test_a_poison_message_ends_in_the_dead_letter_queue_which_keeps_it_longest(queue: str, dead_letters: str) -> None:
    redrive = STACK.properties(queue)["RedrivePolicy"]
    assert redrive["deadLetterTargetArn"] == arn(dead_letters)
    assert 3 <= redrive["maxReceiveCount"] <= 10
    assert STACK.properties(dead_letters)["MessageRetentionPeriod"] == 14 * 24 * 3600
    assert STACK.properties(queue)["MessageRetentionPeriod"] <= 4 * 24 * 3600


def test_a_drop_without_a_table_is_rejected_before_its_message_would_be_given_up() -> None:
    """Also where SQS counts, because the function cannot send messages anew; the alarms of age come later."""
    assert STACK.properties("IngestQueue")["RedrivePolicy"]["maxReceiveCount"] > MAX_TABLE_TRIES
    waits = sum(FIRST_WAIT_SECONDS << number for number in range(MAX_TABLE_TRIES - 1))
    assert waits < PARAMETERS["IngestAgeAlarmSeconds"]["Default"] / 10


@pytest.mark.parametrize(("queue", "dead_letters"), list(QUEUES.values()))
def test_a_dead_letter_queue_takes_from_its_own_queue_only_and_gives_back_to_it(queue: str, dead_letters: str) -> None:
    name = STACK.properties(queue)["QueueName"]["Fn::Sub"]
    assert STACK.properties(dead_letters)["RedriveAllowPolicy"] == {
        "redrivePermission": "byQueue",
        "sourceQueueArns": [sub(f"arn:${{AWS::Partition}}:sqs:${{AWS::Region}}:${{AWS::AccountId}}:{name}")],
    }


@pytest.mark.parametrize("dead_letters", ["CompactDeadLetters", "GcDeadLetters"])
def test_no_queue_may_take_a_schedules_dead_letters_for_its_own(dead_letters: str) -> None:
    assert STACK.properties(dead_letters)["RedriveAllowPolicy"] == {"redrivePermission": "denyAll"}
    assert STACK.properties(dead_letters)["MessageRetentionPeriod"] == 14 * 24 * 3600


@pytest.mark.parametrize("queue", STACK.of_type("AWS::SQS::Queue"))
def test_a_queue_is_encrypted_and_bears_the_stacks_name(queue: str) -> None:
    assert STACK.properties(queue)["SqsManagedSseEnabled"] is True
    with_key = deployed(MessagesKmsKeyArn=KEY).properties(queue)
    assert (with_key["SqsManagedSseEnabled"], with_key["KmsMasterKeyId"]) == (False, {"Ref": "MessagesKmsKeyArn"})
    assert STACK.properties(queue)["QueueName"]["Fn::Sub"].startswith("${AWS::StackName}-")


def test_no_two_queues_have_one_name() -> None:
    names = [STACK.properties(queue)["QueueName"]["Fn::Sub"] for queue in STACK.of_type("AWS::SQS::Queue")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("queue", STACK.of_type("AWS::SQS::Queue"))
def test_a_queue_is_reached_by_tls_only(queue: str) -> None:
    policy = STACK.properties(f"{queue}Policy")
    assert policy["Queues"] == [{"Ref": queue}]  # a second policy would replace the first
    (deny,) = (one for one in policy["PolicyDocument"]["Statement"] if one["Effect"] == "Deny")
    assert deny == {
        "Sid": "OnlyTls",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:*",
        "Resource": arn(queue),
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


def test_no_queue_has_two_policies() -> None:
    assert len(STACK.of_type("AWS::SQS::QueuePolicy")) == len(STACK.of_type("AWS::SQS::Queue"))


@pytest.mark.parametrize("function", QUEUES)
def test_a_message_stays_hidden_for_six_time_outs_and_the_batching_window(function: str) -> None:
    queue, _ = QUEUES[function]
    timeout = STACK.properties(function)["Timeout"]["Ref"]
    assert STACK.properties(queue)["VisibilityTimeout"] == {
        "Fn::FindInMap": ["VisibilityTimeout", {"Ref": timeout}, "Seconds"]
    }
    (event,) = STACK.properties(function)["Events"].values()
    window = PARAMETERS[event["Properties"]["MaximumBatchingWindowInSeconds"]["Ref"]]
    assert window["MaxValue"] <= BATCHING_WINDOW_MAX_SECONDS
    visibility = TEMPLATE["Mappings"]["VisibilityTimeout"]
    assert list(visibility) == PARAMETERS[timeout]["AllowedValues"]
    for seconds, mapped in visibility.items():
        assert mapped["Seconds"] >= 6 * int(seconds) + BATCHING_WINDOW_MAX_SECONDS


@pytest.mark.parametrize("function", QUEUES)
def test_a_function_takes_batches_and_hands_back_what_failed(function: str) -> None:
    queue, _ = QUEUES[function]
    (event,) = STACK.properties(function)["Events"].values()
    assert event["Type"] == "SQS"
    source = event["Properties"]
    assert source["Queue"] == arn(queue)
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    size = PARAMETERS[source["BatchSize"]["Ref"]]
    window = PARAMETERS[source["MaximumBatchingWindowInSeconds"]["Ref"]]
    assert size["Default"] >= 100  # many events, one commit
    assert size["MaxValue"] <= 10_000
    assert window["MinValue"] >= 1  # batches of more than ten ask for it


@pytest.mark.parametrize("function", QUEUES)
def test_how_many_functions_run_at_once_is_bounded(function: str) -> None:
    (event,) = STACK.properties(function)["Events"].values()
    name, parameter, key = event["Properties"]["ScalingConfig"]["MaximumConcurrency"]["Fn::FindInMap"]
    choices = TEMPLATE["Mappings"][name]
    assert {int(value): chosen[key] for value, chosen in choices.items()} == {
        int(value): int(value) for value in choices
    }
    assert PARAMETERS[parameter["Ref"]]["AllowedValues"] == list(choices)
    assert min(map(int, choices)) >= 2  # SQS takes no less
