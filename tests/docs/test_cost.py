"""docs/cost.md says what the code does now, and what the template sets up."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from bench.cost import PAGE
from bench.cost_model import Load, batches, bill, uploads
from bench.cost_page import page
from bench.requests import Measured, Requests, measure

from support.template import PARAMETERS, deployed


@pytest.fixture(scope="module")
def counted() -> Measured:
    return measure()


@pytest.mark.slow
def test_every_figure_of_the_page_follows_from_counted_requests(counted: Measured) -> None:
    assert page(counted) == PAGE.read_text(), "write it anew: make cost"


@pytest.mark.slow
def test_what_readme_and_design_promise_is_what_is_counted(counted: Measured) -> None:
    assert counted.ingest + counted.ingest_file == Requests(3, 2), "data, manifest, pointer"
    assert counted.delete.puts == 3
    assert counted.delete_message == Requests(0, 0), "however many messages: one commit"
    assert counted.query_warm + counted.query_file_warm == Requests(0, 1), "the pointer, to see whether it moved"


def test_a_bill_grows_with_what_there_is_to_do(counted: Measured) -> None:
    def puts(**changes: Any) -> float:
        return sum(line.requests.puts for line in bill(Load(**changes), counted))

    assert puts(bytes_in=12e12) > 1.5 * puts()
    assert puts(delete_messages=100_000) == puts(delete_messages=1_000_000), "their number does not matter"
    assert (batches(1_000, 100, 10), batches(5, 100, 10), batches(10**7, 100, 10)) == (1_000, 5, 10**5)
    assert (uploads(64 << 20, 16 << 20), uploads((64 << 20) + 1, 16 << 20)) == (1, 7)


class _AnyTag(yaml.SafeLoader):
    """Reads plain values, which parameters have."""


_AnyTag.add_multi_constructor("!", lambda loader, suffix, node: None)


def test_the_example_is_of_the_stack_as_the_template_sets_it_up() -> None:
    template = yaml.load((PAGE.parents[1] / "template.yaml").read_text(), _AnyTag)
    defaults = {name: parameter.get("Default") for name, parameter in template["Parameters"].items()}
    load = Load()
    assert (load.ingest_batch, load.ingest_window) == (defaults["IngestBatchSize"], defaults["IngestWindowSeconds"])
    assert (load.delete_batch, load.delete_window) == (defaults["DeleteBatchSize"], defaults["DeleteWindowSeconds"])
    assert defaults["CompactRate"] == f"rate({24 * 60 // load.rounds} minutes)"
    assert defaults["GcRate"] == f"rate({24 // load.collections} hours)"
    assert load.memory_gb == defaults["MemorySize"] / 1024 == defaults["MaintenanceMemorySize"] / 1024


def test_the_landing_place_and_the_watching_are_those_of_the_template() -> None:
    load = Load()
    days = [int(PARAMETERS[name]["Default"]) for name in ("LandingExpireDays", "LandingOverwrittenDays")]
    assert load.landing_days == sum(days)
    assert load.alarms == len(deployed().of_type("AWS::CloudWatch::Alarm"))
