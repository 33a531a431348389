"""`dq events` and `dq state`, run as the commands they are."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dq
from dq.engine.raft.changes import BrokerRegistered, TokenGranted


def run(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dq.cli", *arguments, "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=data,
        env={**os.environ, "COLUMNS": "200"},
    )


def lines_of_json(data: Path, *arguments: str) -> list[dict[str, Any]]:
    result = run(data, *arguments, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def json_of(data: Path, *arguments: str) -> Any:
    result = run(data, *arguments, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six events: two topics, one of them configured and deleted, and a consumer that commits."""
    path = tmp_path_factory.mktemp("data")
    with dq.open(path) as log:
        orders = log.create_topic("orders", partitions=2, retention=3600)
        log.create_topic("logs")
        log.configure_topic("logs", compact=True)
        orders.append(b"x", partition=0)
        consumer = orders.consumer("billing")
        consumer.poll()
        consumer.commit()
        log.delete_topic("logs")
    return path


TYPES = [
    "topic_created",
    "topic_created",
    "topic_configured",
    "consumer_registered",
    "positions_committed",
    "topic_deleted",
]


# ---------------------------------------------------------------- dq events


def test_events_are_listed_in_order(data: Path) -> None:
    result = run(data, "events")
    assert result.returncode == 0
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["offset", "time", "event", "actor", "what"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert [row.split()[2] for row in rows] == TYPES
    assert "topic=orders" in rows[0]
    assert 'config={"retention":3600000000}' in rows[0]


def test_events_as_json_have_everything(data: Path) -> None:
    events = lines_of_json(data, "events")
    assert [event["type"] for event in events] == TYPES
    assert set(events[0]) == {"offset", "time", "type", "actor", "id", "data"}
    assert len({event["id"] for event in events}) == 6
    assert events[4]["data"]["positions"] == {"0": 1}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", events[0]["time"])


@pytest.mark.parametrize(
    "arguments, offsets",
    [
        (["--type", "topic_deleted"], [5]),
        (["--type", "topic_*"], [0, 1, 2, 5]),
        (["--type", "topic_configured", "--type", "positions_*"], [2, 4]),
        (["--topic", "orders"], [0, 3, 4]),
        (["--topic", "orders", "--type", "topic_*"], [0]),
        (["--actor", "nobody"], []),
        (["--since", "1h"], [0, 1, 2, 3, 4, 5]),
        (["--until", "1h"], []),
        (["--since", "2100-01-01T00:00:00Z"], []),
        (["--max", "2"], [0, 1]),
    ],
)
def test_events_are_chosen(data: Path, arguments: list[str], offsets: list[int]) -> None:
    assert [event["offset"] for event in lines_of_json(data, "events", *arguments)] == offsets


def test_events_are_chosen_by_who_did_them_and_when(data: Path) -> None:
    events = lines_of_json(data, "events")
    assert lines_of_json(data, "events", "--actor", events[0]["actor"]) == events
    chosen = lines_of_json(data, "events", "--since", events[2]["time"], "--until", events[4]["time"])
    assert chosen == events[2:4]


@pytest.mark.parametrize(
    "arguments, message",
    [(["--type", "topic_lost"], "topic_created"), (["--since", "yesterday"], "is no time")],
)
def test_a_filter_that_makes_no_sense_is_told(data: Path, arguments: list[str], message: str) -> None:
    result = run(data, "events", *arguments)
    assert result.returncode == 2
    assert message in result.stderr


def test_following_shows_events_as_they_come(tmp_path: Path) -> None:
    with dq.open(tmp_path) as log:
        log.create_topic("first")
        follower = subprocess.Popen(
            [sys.executable, "-m", "dq.cli", "events", "--follow", "--json", "--data", str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        try:
            assert follower.stdout is not None
            assert json.loads(follower.stdout.readline())["data"]["topic"] == "first"
            log.create_topic("second")
            assert json.loads(follower.stdout.readline())["data"]["topic"] == "second"
        finally:
            follower.send_signal(signal.SIGINT)
            follower.communicate(timeout=30)
        assert follower.returncode == 130


def test_following_ends_after_the_last_one_wanted(data: Path) -> None:
    assert len(lines_of_json(data, "events", "--follow", "--max", "3")) == 3
    assert len(lines_of_json(data, "events", "--follow", "--timeout", "0.1")) == 6


# ---------------------------------------------------------------- dq state


def test_the_state_shows_what_there_is_now(data: Path) -> None:
    result = run(data, "state")
    assert result.returncode == 0
    assert result.stdout.startswith("as of event 5, ")
    assert "orders" in result.stdout
    assert "billing" in result.stdout
    assert "0:1 1:0" in result.stdout
    assert "logs" not in result.stdout


def test_the_state_as_json(data: Path) -> None:
    state = json_of(data, "state")
    assert state["event"] == 5
    assert len(state["state_hash"]) == 64
    assert list(state["topics"]) == ["orders"]
    assert state["topics"]["orders"]["consumers"]["billing"]["positions"] == {"0": 1, "1": 0}
    assert list(state["deleted"].values()) == ["logs"]


def test_the_state_as_of_an_event_is_the_one_after_it(data: Path) -> None:
    assert json_of(data, "state", "--as-of", "0")["event"] == 0
    assert list(json_of(data, "state", "--as-of", "0")["topics"]) == ["orders"]
    assert json_of(data, "state", "--as-of", "2")["topics"]["logs"]["config"] == {"compact": True}
    assert json_of(data, "state", "--as-of", "5") == json_of(data, "state")


def test_the_state_as_of_a_time(data: Path) -> None:
    events = lines_of_json(data, "events")
    for event in events:
        found = json_of(data, "state", "--as-of", event["time"])
        assert found == json_of(data, "state", "--as-of", str(event["offset"]))
    assert json_of(data, "state", "--as-of", "1h")["event"] is None


def test_a_state_that_never_was_is_one_line_of_error(data: Path) -> None:
    result = run(data, "state", "--as-of", "6")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "offset 6 is out of range" in result.stderr
    assert run(data, "state", "--as-of", "some day").returncode == 2
    assert run(data, "state", "--as-of", "1", "--diff", "1", "2").returncode == 2


def test_what_differs_between_two_points(data: Path) -> None:
    found = json_of(data, "state", "--diff", "3", "now")
    assert [(item["kind"], item["path"][:2]) for item in found] == [
        ("removed", ["topics", "logs"]),
        ("changed", ["topics", "orders"]),
        ("added", ["deleted", next(iter(json_of(data, "state")["deleted"]))]),
    ]
    assert (found[1]["path"][2:], found[1]["before"], found[1]["after"]) == (
        ["consumers", "billing", "positions", "0"],
        0,
        1,
    )
    text = run(data, "state", "--diff", "3", "4").stdout
    assert "changed" in text
    assert "topics/orders/consumers/billing/positions/0" in text
    assert run(data, "state", "--diff", "4", "4").stdout == "Nothing is different.\n"


def test_brokers_and_tokens_are_shown_and_markup_in_them_is_not(tmp_path: Path) -> None:
    with dq.open(tmp_path) as log:
        log.propose(BrokerRegistered(broker_id=1, address="[red]http://b", epoch=0, rack="r1"))
        log.propose(TokenGranted(token_id="ci", secret_hash=bytes(32), permissions={"produce": ("orders", "log*")}))
    text = run(tmp_path, "state").stdout
    assert "[red]http://b" in text
    assert "produce log* orders" in text
    assert "[red]http://b" in run(tmp_path, "events").stdout


def test_an_empty_directory_has_no_events(tmp_path: Path) -> None:
    dq.open(tmp_path).close()
    assert run(tmp_path, "state").stdout == "There are no events yet.\n"
    assert lines_of_json(tmp_path, "events") == []
    assert json_of(tmp_path, "state")["topics"] == {}


def test_what_is_no_data_directory_is_one_line_of_error(tmp_path: Path) -> None:
    for command in ("events", "state"):
        result = run(tmp_path, command)
        assert result.returncode == 1
        assert result.stderr.startswith("error: ")
