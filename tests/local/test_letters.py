"""When a file on one machine becomes a message."""

from __future__ import annotations

import os
from pathlib import Path

from dolmen.base.runtime import Runtime
from dolmen.ingest.queues import DirectoryQueue
from dolmen.service.local.pipeline import LandingDirectory


def landing(tmp_path: Path) -> LandingDirectory:
    (tmp_path / "landing").mkdir(exist_ok=True)
    (tmp_path / "state").mkdir(exist_ok=True)
    return LandingDirectory(tmp_path / "landing", tmp_path / "state", Runtime())


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names(directory: LandingDirectory | DirectoryQueue) -> list[str]:
    return [letter.name for letter in directory.receive()]


def test_a_file_that_is_still_being_written_waits_until_two_looks_find_it_the_same(tmp_path: Path) -> None:
    directory, file = landing(tmp_path), tmp_path / "landing" / "events" / "a.csv"
    write(file, "id\n")
    for _ in range(3):
        assert names(directory) == []
        assert directory.has_incomplete
        with file.open("a") as more:
            more.write("1\n")
    assert names(directory) == []
    assert names(directory) == ["events/a.csv"]
    assert not directory.has_incomplete
    assert names(directory) == []


def test_a_file_that_changes_later_is_another_drop(tmp_path: Path) -> None:
    directory, file = landing(tmp_path), tmp_path / "landing" / "events" / "a.csv"
    write(file, "id\n1\n")
    names(directory)
    [first] = directory.receive()
    directory.acknowledge(first)
    write(file, "id\n2\n")
    names(directory)
    [second] = directory.receive()
    assert first.id != second.id
    assert first.body != second.body


def test_a_file_renamed_into_place_while_the_old_one_is_known_is_seen(tmp_path: Path) -> None:
    directory, file = landing(tmp_path), tmp_path / "landing" / "events" / "a.csv"
    write(file, "id\n1\n")
    stat = file.stat()
    names(directory)
    assert names(directory) == ["events/a.csv"]
    write(tmp_path / "new.csv", "id\n2\n")
    os.utime(tmp_path / "new.csv", ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    os.replace(tmp_path / "new.csv", file)
    names(directory)
    assert names(directory) == ["events/a.csv"]


def test_temporary_and_hidden_names_are_left_alone(tmp_path: Path) -> None:
    directory = landing(tmp_path)
    for name in ("events/.a.csv", "events/_a.csv", "events/_temporary/0/a.csv", ".git/a.csv", "events/.x/a.csv"):
        write(tmp_path / "landing" / name, "id\n1\n")
    assert names(directory) == []
    assert not directory.has_incomplete


def test_names_that_are_no_text_and_things_that_are_no_files_are_left_alone(tmp_path: Path) -> None:
    directory = landing(tmp_path)
    write(tmp_path / "landing" / "events" / "a.csv", "id\n1\n")
    os.mkfifo(tmp_path / "landing" / "events" / "pipe.csv")
    with open(os.path.join(os.fsencode(tmp_path / "landing" / "events"), b"\xff.csv"), "w") as file:
        file.write("id\n")
    os.symlink(tmp_path / "nowhere", tmp_path / "landing" / "events" / "dangling.csv")
    names(directory)
    assert names(directory) == ["events/a.csv"]


def test_what_was_done_is_remembered_over_a_restart_and_what_was_not_comes_again(tmp_path: Path) -> None:
    directory = landing(tmp_path)
    for name in "ab":
        write(tmp_path / "landing" / "events" / f"{name}.csv", f"id\n{name}\n")
    names(directory)
    a, b = directory.receive()
    directory.acknowledge(a)
    with (tmp_path / "state" / "landing.jsonl").open("a") as log:
        log.write('["events/b.csv", 1')  # a crash in the middle of a line
    restarted = landing(tmp_path)
    names(restarted)
    [again] = restarted.receive()
    assert (again.name, again.id, again.body) == (b.name, b.id, b.body)


def test_the_memory_forgets_files_that_are_gone(tmp_path: Path) -> None:
    directory, file = landing(tmp_path), tmp_path / "landing" / "events" / "a.csv"
    write(file, "id\n1\n")
    names(directory)
    for letter in directory.receive():
        directory.acknowledge(letter)
    assert (tmp_path / "state" / "landing.jsonl").read_text()
    file.unlink()
    landing(tmp_path)
    assert (tmp_path / "state" / "landing.jsonl").read_text() == ""


def test_a_request_is_claimed_so_that_another_of_its_name_is_another_message(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    directory = DirectoryQueue(queue, Runtime())
    write(queue / "delete.json", "1")
    assert names(directory) == []
    [first] = directory.receive()
    write(queue / "delete.json", "2")
    names(directory)
    [second] = directory.receive()
    assert (first.body, second.body) == ("1", "2")
    assert first.id != second.id
    directory.acknowledge(second)
    [again] = DirectoryQueue(queue, Runtime()).receive()  # after a restart
    assert (again.id, again.name, again.body) == (first.id, first.name, first.body)
    directory.acknowledge(first)
    assert [path for path in queue.rglob("*") if path.is_file()] == []


def test_only_json_files_of_the_queue_are_messages(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    directory = DirectoryQueue(tmp_path / "queue", Runtime())
    for name in ("notes.txt", ".a.json", "below/b.json"):
        write(tmp_path / "queue" / name, "{}")
    names(directory)
    assert names(directory) == []
