"""The `dq` command as people and scripts use it: real processes, pipes, signals and terminals."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dq

COMMAND = [sys.executable, "-m", "dq.cli"]
DEADLINE = 60

# Appends every line of its standard input to a topic, and answers with the offset. Keeps the directory open.
WRITER = """
import sys, dq
with dq.open(sys.argv[1]) as log:
    topic = log.create_topic("live", exist_ok=True)
    print("ready", flush=True)
    for line in sys.stdin:
        print(topic.append(line.strip().encode()).offset, flush=True)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run_command(
        *arguments: str, stdin: str | bytes = "", status: int = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        raw = stdin if isinstance(stdin, bytes) else stdin.encode()
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=raw,
            capture_output=True,
            env=environment(data, **variables),
            cwd=tmp_path,
            timeout=DEADLINE,
        )
        out, err = done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode()
        assert done.returncode == status, f"{arguments}: exit code {done.returncode}\n{out}\n{err}"
        if status == 0:
            assert err == ""
        assert "\x1b" not in out + err, "colours without a terminal"
        return subprocess.CompletedProcess(arguments, done.returncode, out, err)

    return run_command


Run = Callable[..., subprocess.CompletedProcess[str]]


def environment(data: Path, **variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DQ_") and name != "COLUMNS"}
    return {**kept, "DQ_DATA": str(data), **variables}


def create(data: Path, *names: str, **settings: Any) -> None:
    with dq.open(data) as log:
        for name in names:
            log.create_topic(name, **settings)


@pytest.fixture
def orders(data: Path) -> str:
    """A topic of 300 numbered records in several segments; returns the directory of its partition."""
    with dq.open(data) as log:
        topic = log.create_topic("orders", segment_bytes=4096)
        for first in range(0, 300, 10):
            topic.append_many([b"value %d" % number + b"." * 50 for number in range(first, first + 10)])
        return f"{data}/topics/{topic.directory_name}/0"


def flip(path: str | Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def segments(partition: str) -> list[str]:
    return sorted(f"{partition}/{name}" for name in os.listdir(partition) if name.endswith(".seg"))


@contextlib.contextmanager
def started(data: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is still running; killed at the end if it has not ended by itself."""
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(data, **variables)
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def writer(data: Path) -> Iterator[Callable[[str], int]]:
    """Another process that has the directory open for writing; call it to append a line."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        assert stdout.readline() == "ready\n"

        def append(line: str) -> int:
            stdin.write(line + "\n")
            stdin.flush()
            return int(stdout.readline())

        try:
            yield append
        finally:
            stdin.close()


def in_terminal(data: Path, *arguments: str, columns: int = 80) -> str:
    """What a command shows in a terminal, without the escape sequences of colours and of moving about."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    variables = {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=child, stdout=child, stderr=child, env=environment(data, **variables)
    )
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody is at the other end any more
        while part := os.read(parent, 65536):
            shown += part
    os.close(parent)
    process.wait(DEADLINE)
    assert b"\x1b[" in shown, "there are no colours"
    return shown.decode().replace("\r\n", "\n")


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


# ---------------------------------------------------------------- topics


def test_topics_are_created_listed_described_configured_and_deleted(run: Run, data: Path) -> None:
    created = run("topics", "create", "orders", "--partitions", "3", "--retention", "7d", "--compression", "zstd")
    assert created.stdout == f"topic orders with 3 partitions in {data}\n"
    run("topics", "create", "users", "--compact", "--segment-bytes", "64k")
    assert [topic["name"] for topic in json.loads(run("topics", "--json").stdout)] == ["orders", "users"]
    assert "latest per key" in run("topics", "list").stdout
    run("topics", "configure", "orders", "--retention", "none", "--retention-bytes", "10MB")
    described = json.loads(run("topics", "describe", "orders", "--json").stdout)
    assert described["config"]["retention_seconds"] is None
    assert described["config"]["retention_bytes"] == 10_000_000
    assert described["config"]["compression"] == "zstd"
    assert len(described["partitions"]) == 3
    asked = run("topics", "delete", "users", stdin="n\n", status=1)
    assert "Delete topic users with 0 records" in asked.stdout
    run("topics", "delete", "users", "--yes")
    with dq.open(data, read_only=True) as log:
        assert [topic.name for topic in log.topics()] == ["orders"]


def test_the_data_directory_may_be_named_in_several_ways(run: Run, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    run("topics", "create", "a", "--data", elsewhere)
    assert [topic["name"] for topic in json.loads(run("--data", elsewhere, "topics", "--json").stdout)] == ["a"]


# ---------------------------------------------------------------- produce and consume


def test_what_is_produced_from_arguments_pipes_and_files_is_consumed(run: Run, data: Path, tmp_path: Path) -> None:
    create(data, "t")
    told = run("produce", "t", "one", "two").stdout
    assert re.fullmatch(r"2 records \(6 B\) in .*, [\d,]+ records/s\n", told)
    run("produce", "t", stdin="three\nfour")
    (tmp_path / "lines").write_bytes(b"five\n\nseven\n")
    run("produce", "t", "--from-file", "lines")
    assert run("consume", "t", "--from", "2000-01-01").stdout == "one\ntwo\nthree\nfour\nfive\n\nseven\n"
    assert run("consume", "t", "--from", "2", "--max", "2", "--offsets").stdout == "0:2\tthree\n0:3\tfour\n"
    assert run("consume", "t", "--from", "latest").stdout == ""


def test_bytes_that_are_no_text_come_out_escaped_or_as_they_went_in(run: Run, data: Path) -> None:
    create(data, "t")
    value = bytes(byte for byte in range(256) if byte != 10) + "ä€😀".encode()
    run("produce", "t", stdin=value)
    shown = run("consume", "t").stdout
    assert shown.endswith("\\xffä€😀\n")
    assert "\\x00\\x01" in shown
    assert "\\x1b" in shown
    assert shown.count("\n") == 1
    raw = subprocess.run([*COMMAND, "consume", "t", "--raw"], capture_output=True, env=environment(data), check=True)
    assert raw.stdout == value + b"\n"


def test_json_lines_go_in_and_come_out_and_go_in_again(run: Run, data: Path) -> None:
    create(data, "t", "copy", partitions=2)
    records = [
        {"key": "k", "value": "v", "headers": {"trace": "abc"}, "timestamp": "2026-01-31T12:00:00.000001Z"},
        {"key": {"base64": "/w=="}, "value": {"base64": "AP8="}, "timestamp": 1_700_000_000_000_000},
        {"value": {"id": 7, "name": "ä"}},
    ]
    run("produce", "t", "--json", "--partition", "1", stdin="\n".join(map(json.dumps, records)))
    out = run("consume", "t", "--json").stdout
    first, second, third = map(json.loads, out.splitlines())
    assert first == {"partition": 1, "offset": 0, **records[0]}
    assert (second["key"], second["value"]) == ({"base64": "/w=="}, {"base64": "AP8="})
    assert second["timestamp"] == "2023-11-14T22:13:20.000000Z"
    assert third["value"] == '{"id":7,"name":"ä"}'
    run("produce", "copy", "--json", "--partition", "1", stdin=out)
    assert run("consume", "copy", "--json").stdout == out


@pytest.mark.parametrize(
    "line, said", [("not json", "error: line 2 is not JSON"), ('{"value": "", "ky": ""}', "line 2: unknown field 'ky'")]
)
def test_a_line_that_is_no_record_is_named(run: Run, data: Path, line: str, said: str) -> None:
    create(data, "t")
    assert said in run("produce", "t", "--json", stdin='{"value": "good"}\n' + line, status=1).stderr


def test_keys_are_split_off_and_put_back(run: Run, data: Path) -> None:
    create(data, "t", partitions=4)
    run("produce", "t", "--key-separator", ":", stdin="a:1\nb:2\na:3:4\n")
    run("produce", "t", "--key", "a", "5")
    assert sorted(run("consume", "t", "--key-separator", "=").stdout.split()) == ["a=1", "a=3:4", "a=5", "b=2"]


def test_a_named_consumer_goes_on_where_it_was(run: Run, orders: str) -> None:
    first = run("consume", "orders", "--consumer", "billing", "--max", "100").stdout.splitlines()
    lag = json.loads(run("topics", "describe", "orders", "--json").stdout)["consumers"][0]
    assert (lag["name"], lag["lag_records"]) == ("billing", 200)
    rest = run("consume", "orders", "--consumer", "billing").stdout.splitlines()
    assert [line.split()[1].rstrip(".") for line in first + rest] == [str(number) for number in range(300)]


# ---------------------------------------------------------------- beside a running writer


def test_reading_commands_work_beside_a_running_writer(run: Run, data: Path) -> None:
    with writer(data) as append, started(data, "consume", "live", "--follow", "--max", "3") as follower:
        append("one")
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"one\n"
        append("two")
        assert follower.stdout.readline() == b"two\n"
        assert json.loads(run("topics", "--json").stdout)[0]["records"] == 2
        assert json.loads(run("verify", "--json").stdout)["ok"]
        assert "two" in run("cat", "live").stdout
        checks = {check["name"]: check for check in _doctor(run)}
        assert re.fullmatch(r"process \d+ has it open", checks["writer"]["detail"])
        for arguments in (["produce", "live", "x"], ["repair", "--apply"]):
            refused = run(*arguments, status=1)
            assert refused.stderr.count("\n") == 1
            assert "is open for writing in another place (process" in refused.stderr
        append("three")
        assert follower.wait(DEADLINE) == 0
        assert follower.stdout.read() == b"three\n"


def _doctor(run: Run) -> list[dict[str, Any]]:
    checks: list[dict[str, Any]] = json.loads(run("doctor", "--json").stdout)
    return checks


def test_ctrl_c_ends_quietly(data: Path, orders: str) -> None:
    with started(data, "consume", "orders", "--follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(300):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130
        assert process.stderr.read() == b""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_ends_quietly(data: Path, unbuffered: str) -> None:
    create(data, "t")
    with dq.open(data) as log:
        log.topic("t").append_many([b"line"] * 100_000)
    with started(data, "consume", "t", PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.wait(DEADLINE) == 141
        assert process.stderr.read() == b""


# ---------------------------------------------------------------- errors


def test_an_error_is_one_line_that_says_what_to_do(run: Run, data: Path) -> None:
    failed = run("consume", "orders", status=1)
    assert failed.stderr.startswith(f"error: {data} is not a DQ data directory: it does not exist (")
    assert failed.stderr.count("\n") == 1
    create(data, "orders")
    failed = run("consume", "order", status=1)
    expected = "error: there is no topic 'order' (`dq topics` lists them, `dq topics create order` makes it)\n"
    assert failed.stderr == expected
    assert "Traceback" in run("consume", "order", status=1, DQ_DEBUG="1").stderr
    assert run("topics", "create", "a/b", status=1).stderr.startswith("error: invalid name 'a/b'")


@pytest.mark.parametrize(
    "arguments",
    [["bogus"], ["consume", "t", "--from", "yesterday"], ["topics", "create", "t", "--retention", "soon"]],
    ids=" ".join,
)
def test_wrong_usage_has_an_exit_code_of_its_own(run: Run, arguments: list[str]) -> None:
    assert run(*arguments, status=2).stdout == ""


def test_the_command_says_what_to_install_when_its_packages_are_missing() -> None:
    code = "import sys; sys.modules['typer'] = None; from dq.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 1
    assert done.stderr == "error: the dq command needs typer and rich: pip install 'dqsegments[cli]'\n"


def test_the_version_is_told(run: Run) -> None:
    assert run("--version").stdout == f"dq {dq.__version__}\n"


# ---------------------------------------------------------------- damage


def test_damage_is_verified_shown_repaired_and_gone(run: Run, data: Path, orders: str) -> None:
    assert "all is well" in run("verify").stdout
    flip(segments(orders)[1], 300)
    failed = run("consume", "orders", status=1)
    assert failed.stderr.count("\n") == 1
    assert "the CRC of the body does not match (`dq verify` shows all damage" in failed.stderr
    report = json.loads(run("verify", str(data), "--json", status=1).stdout)
    [finding] = [finding for partition in report["partitions"] for finding in partition["findings"]]
    assert (finding["kind"], finding["file"]) == ("damage", segments(orders)[1])
    assert "1 problem found" in run("verify", status=1).stdout
    assert "10 offsets would be lost" in run("repair", status=1).stdout
    plan = json.loads(run("repair", "--json", status=1).stdout)
    assert (plan["applied"], plan["lost_offsets"]) == (False, 10)
    assert "repaired. 10 offsets lost" in run("repair", "--apply").stdout
    run("verify")
    assert len(run("consume", "orders").stdout.splitlines()) == 290
    kept = [name for _, _, names in os.walk(data / "repair") for name in names]
    assert kept == [f"{os.path.basename(segments(orders)[1])}@{finding['position']}.bin"]


def test_verify_says_when_it_cannot_look(run: Run, tmp_path: Path) -> None:
    failed = run("verify", str(tmp_path), status=2)
    assert failed.stderr.startswith(f"error: {tmp_path} is not a DQ data directory")


def test_after_a_kill_nothing_that_was_acknowledged_is_missing(run: Run, data: Path) -> None:
    code = """
import sys, dq
log = dq.open(sys.argv[1])
topic = log.create_topic("t")
while True:
    print(topic.append(b"x" * 1000).offset, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(data)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        process.kill()
        lines = process.stdout.read().splitlines(keepends=True)
    acknowledged = 50 + len([line for line in lines if line.endswith(b"\n")])
    # Part of a write that nobody was told of: what a crash of the machine may leave.
    with open(segments(str(next((data / "topics").glob("t-*"))) + "/0")[-1], "ab") as file:
        file.write(b"DQRB torn")
    verified = run("verify").stdout
    assert "torn tail" in verified
    assert "all is well" in verified
    assert any(check["state"] == "warn" and "not closed cleanly" in check["detail"] for check in _doctor(run))
    assert "nothing to repair" in run("repair", "--apply").stdout
    assert len(run("consume", "t").stdout.splitlines()) >= acknowledged


def test_cat_shows_records_and_batch_headers_and_goes_on_behind_damage(run: Run, data: Path, orders: str) -> None:
    first, second, *_ = segments(orders)
    by_file = run("cat", first, second).stdout.splitlines()
    by_name = run("cat", "orders").stdout.splitlines()
    assert by_name[: len(by_file)] == by_file
    assert len(by_name) == 300
    assert re.fullmatch(r"0:0\t\d{4}-\d\d-\d\dT[\d:.]+Z\t\tvalue 0\.+", by_name[0])
    headers = [json.loads(line) for line in run("cat", "orders", "--headers", "--json").stdout.splitlines()]
    assert [header["base_offset"] for header in headers] == list(range(0, 300, 10))
    assert {"position", "next_offset", "leader_epoch", "producer_id", "codec", "size", "flags", "crc"} <= set(
        headers[0]
    )
    flip(first, 300)
    damaged = run("cat", "orders", status=1)
    assert len(damaged.stdout.splitlines()) == 290
    assert damaged.stderr.startswith(f"damaged: {first} at byte 64 up to ")
    assert "offsets 0 to 9: the CRC of the body does not match" in damaged.stderr
    assert "the CRC of the body does not match" in run("cat", first, "--headers", status=1).stdout


# ---------------------------------------------------------------- doctor


def test_the_doctor_looks_at_everything(run: Run, data: Path, orders: str) -> None:
    checks = {check["name"]: check for check in _doctor(run)}
    assert {check["state"] for check in checks.values()} <= {"ok", "warn"}
    assert checks["CRC-32C"]["detail"] == "by the crc32c package"
    assert checks["writer"]["detail"] == "none"
    assert checks["checkpoints"]["detail"] == "closed cleanly"
    (data / "topics" / "lost-0123abcd" / "0").mkdir(parents=True)
    (data / "dq.json").write_text("{}")
    assert "fail" in run("doctor", status=1).stdout
    (data / "dq.json").write_text('{"format": 1, "id": "x", "created": 0}')
    checks = {check["name"]: check for check in _doctor(run)}
    assert (checks["unknown topics"]["state"], checks["unknown topics"]["detail"]) == ("warn", "1: lost-0123abcd")


# ---------------------------------------------------------------- terminals, and the tour


@pytest.mark.parametrize(
    "arguments",
    [["topics"], ["topics", "describe", "orders"], ["repair"], ["doctor"]],
    ids=" ".join,
)
def test_what_a_terminal_shows_fits_into_eighty_columns(data: Path, orders: str, arguments: list[str]) -> None:
    if arguments == ["repair"]:
        flip(segments(orders)[1], 300)
    shown = plain(in_terminal(data, *arguments))
    assert max(len(line.rpartition("\r")[2].rstrip()) for line in shown.splitlines()) <= 80


def test_the_tour_ends_by_itself_and_finds_everything_in_order(run: Run, tmp_path: Path) -> None:
    begin = time.monotonic()
    out = run("demo", "--data", str(tmp_path / "tour"), "--records", "20000").stdout
    assert time.monotonic() - begin < 20
    assert "OffsetMismatch" in out
    assert "kill -9" in out
    assert "every CRC matches" in out
    assert "recovery after kill -9" in out
