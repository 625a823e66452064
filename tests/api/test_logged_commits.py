"""The logger ``dolmen`` tells commits, attempts and conflicts, and no value."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import dolmen
from dolmen import Database
from dolmen.errors import ConflictError
from support.people import people

SECRET = 424242424242


def test_commits_attempts_and_conflicts_are_told_without_values(
    db: Database, table: dolmen.Table, other: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="dolmen")
    note: dict[str, Any] = {"message": "secret message", "metadata": {"secret.key": "secret value"}}
    table.append(people(SECRET, name="a secret"), request="secret request", **note)
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO"]
    assert caplog.messages[1].endswith(": append is in version 2, attempts: 1")

    caplog.clear()
    other.table("people").delete({"id": SECRET + 1})  # the first database does not know of it
    db.table("people").delete("name = 'no secret'")
    assert sum("became another commit's" in message for message in caplog.messages) == 1
    assert caplog.messages[-1].endswith(": delete is in version 4, attempts: 2")

    caplog.clear()
    transaction = db.transaction()
    assert transaction.table("people").count({"id": SECRET}) == 1
    transaction.table("people").append(people(7))
    other.table("people").update({"name": "another secret"}, where={"id": SECRET})
    with pytest.raises(ConflictError):
        transaction.commit()
    assert caplog.messages[-1].endswith(": transaction: ConflictError, attempts: 1")
    everything = " ".join(map(str, [caplog.text, *(record.args for record in caplog.records)]))
    assert str(SECRET) not in everything
    assert "secret" not in everything
