"""``make bench-quick``: it counts the same requests and bytes each time, and says what got worse."""

from __future__ import annotations

import json

import pytest
from bench.quick import RECORDED, counts, worse


def test_the_same_operations_send_the_same_requests_and_bytes_and_those_that_are_recorded() -> None:
    counted, recorded = counts(), json.loads(RECORDED.read_text())["counts"]
    assert counted == counts()
    for name, sent in counted.items():
        assert (name, sent["puts"], sent["gets"]) == (name, recorded[name]["puts"], recorded[name]["gets"])
    assert counted["the same again"]["gets"] == 1  # the pointer


@pytest.mark.parametrize(
    ("ratio", "sent", "said"),
    [
        (1.3, {"gets": 2, "up": 1_010}, []),
        (1.5, {"gets": 2, "up": 1_000}, ["scan: 1.50, recorded 1.00"]),
        (0.5, {"gets": 3, "up": 900}, ["append: 3 gets, recorded 2"]),
        (0.5, {"gets": 1, "up": 1_100}, ["append: 1,100 up, recorded 1,000"]),
    ],
)
def test_what_is_worse_than_recorded_is_named(ratio: float, sent: dict[str, int], said: list[str]) -> None:
    recorded = {"ratios": {"scan": 1.0}, "counts": {"append": {"gets": 2, "up": 1_000}}}
    assert [*worse(recorded, {"scan": ratio, "new": 9.0}, {"append": sent, "new": {"gets": 9}})] == said
