"""A data directory over time: closed and opened again, by this process and by others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest

import dq


def run_python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_everything_is_there_after_reopening(path: Path) -> None:
    with dq.open(path) as log:
        topic = log.create_topic("t", partitions=3, retention=timedelta(days=3), segment_bytes=8192)
        for number in range(300):
            topic.append_many([b"%d" % number], keys=[b"k%d" % (number % 10)])
        consumer = topic.consumer("c")
        consumer.poll(max_records=100)
        consumer.commit()
        before = list(topic.read())
        positions = consumer.positions()
    with dq.open(path) as log:
        topic = log.topic("t")
        assert topic.config.retention == 3 * 24 * 3600 * 1_000_000
        assert list(topic.read()) == before
        consumer = topic.consumer("c")
        assert consumer.positions() == positions
        assert len(consumer.poll(max_records=1000)) == 200
        assert topic.append(b"more", partition=0).offset == topic.describe().partitions[0].next_offset - 1


def test_the_flush_mode_may_change_from_one_opening_to_the_next(path: Path) -> None:
    for turn, flush in enumerate(["os", "always", "interval", "os", "always"]):
        with dq.open(path, flush=flush) as log:  # type: ignore[arg-type]
            topic = log.create_topic("t", exist_ok=True)
            topic.append(b"%d" % turn)
            assert [record.value for record in topic.read()] == [b"%d" % number for number in range(turn + 1)]


def test_interval_flush_makes_records_durable_by_itself(path: Path) -> None:
    with dq.open(path, flush="interval", flush_interval_ms=5) as log:
        topic = log.create_topic("t")
        topic.append(b"x")
        partition = topic.log(0)
        assert isinstance(partition, dq.engine.segments.log.PartitionLog)
        for _ in range(1000):
            if partition.durable_end == 1:
                break
            partition.wait_for(5, 0.01)
        assert partition.durable_end == 1


def test_a_second_writer_is_refused_and_told_who_writes(path: Path) -> None:
    with dq.open(path) as log:
        log.create_topic("t")
        with pytest.raises(dq.DirectoryLocked, match=str(os.getpid())):
            dq.open(path)
        result = run_python("import dq, sys; dq.open(sys.argv[1])", path)
        assert "DirectoryLocked" in result.stderr
        assert str(os.getpid()) in result.stderr
    dq.open(path).close()


def test_the_lock_is_gone_with_its_process(path: Path) -> None:
    code = """
        import dq, os, sys
        log = dq.open(sys.argv[1]); log.create_topic("t").append(b"x"); os._exit(1)
    """
    run_python(code, path)
    with dq.open(path) as log:
        assert [record.value for record in log.topic("t").read()] == [b"x"]


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(dq.NotADataDirectory, match="not empty"):
        dq.open(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious.txt"]
    with pytest.raises(dq.NotADataDirectory, match="file"):
        dq.open(tmp_path / "precious.txt")
    with pytest.raises(dq.NotADataDirectory, match="does not exist"):
        dq.open(tmp_path / "missing", create=False)
    with pytest.raises(dq.NotADataDirectory, match="does not exist"):
        dq.open(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()


def test_a_format_from_the_future_is_refused(path: Path) -> None:
    dq.open(path).close()
    marker = json.loads((path / "dq.json").read_text())
    (path / "dq.json").write_text(json.dumps({**marker, "format": 2}))
    with pytest.raises(dq.FormatTooNew, match="upgrade"):
        dq.open(path)
    (path / "dq.json").write_text("garbage")
    with pytest.raises(dq.NotADataDirectory, match="cannot be read"):
        dq.open(path)


@pytest.mark.parametrize(
    "options",
    [
        {"flush": "never"},
        {"flush_interval_ms": 0},
        {"flush_interval_ms": "5"},
        {"max_open_partitions": 0},
        {"max_open_partitions": "x"},
    ],
)
def test_bad_options_are_refused(path: Path, options: dict[str, object]) -> None:
    with pytest.raises(dq.InvalidConfig, match="allowed"):
        dq.open(path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("nowhere", [None, 5, b"bytes"])
def test_a_path_is_a_str_or_a_path(nowhere: object) -> None:
    with pytest.raises(dq.InvalidConfig, match="path"):
        dq.open(nowhere)  # type: ignore[arg-type]


def test_an_opening_that_fails_gives_back_the_lock_and_every_file_handle(path: Path) -> None:
    with dq.open(path) as log:
        log.create_topic("t").append(b"x")
    (partition,) = (path / "topics").glob("__metadata-*/0")
    kept = partition.rename(path / "kept")
    partition.write_text("a file in the place of a directory")
    handles = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError):
            dq.open(path)
    assert len(os.listdir("/proc/self/fd")) <= handles
    partition.unlink()
    kept.rename(partition)
    with dq.open(path) as log:
        assert [record.value for record in log.topic("t").read()] == [b"x"]


def test_a_program_that_does_not_close_its_producer_loses_nothing(path: Path) -> None:
    program = "import sys, dq; dq.open(sys.argv[1]).create_topic('t').producer(linger_ms=60000).send(b'x')"
    subprocess.run([sys.executable, "-c", program, path], check=True)
    with dq.open(path) as log:
        assert [record.value for record in log.topic("t").read()] == [b"x"]


def test_a_consumer_passes_over_nothing_when_another_partition_is_damaged(path: Path) -> None:
    with dq.open(path) as log:
        topic = log.create_topic("t", partitions=2)
        for number in range(10):
            topic.append(b"%d" % number, partition=number % 2)
        directory = path / "topics" / topic.directory_name
    (segment,) = (directory / "1").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1  # the body of the last batch, after a clean shutdown
    segment.write_bytes(data)
    with dq.open(path) as log:
        consumer = log.topic("t").consumer("c")
        seen: list[bytes | None] = []
        with pytest.raises(dq.Corruption):
            for _ in range(20):
                seen += [record.value for record in consumer.poll()]
        assert sorted(seen, key=lambda value: value or b"") == [b"%d" % number for number in range(9)]
        assert consumer.positions() == {0: 5, 1: 4}


def test_a_moved_directory_opens_elsewhere(path: Path, tmp_path: Path) -> None:
    with dq.open(path) as log:
        log.create_topic("t").append(b"x")
    shutil.move(path, tmp_path / "elsewhere")
    with dq.open(tmp_path / "elsewhere") as log:
        assert [record.value for record in log.topic("t").read()] == [b"x"]


def test_derived_files_can_be_deleted_at_any_time(path: Path) -> None:
    with dq.open(path) as log:
        topic = log.create_topic("t", segment_bytes=8192)
        for number in range(500):
            topic.append_many([b"%d" % number * 10])
        consumer = topic.consumer("c")
        consumer.poll(max_records=123)
        consumer.commit()
        before = list(topic.read())
    for derived in ("checkpoint", "checkpoint.unsynced", "visible", "*.snapshot"):
        for file in path.rglob(derived):
            file.unlink()
    shutil.rmtree(path / "index", ignore_errors=True)
    with dq.open(path, read_only=True) as log:
        assert list(log.topic("t").read()) == before
    with dq.open(path) as log:
        topic = log.topic("t")
        assert list(topic.read()) == before
        assert next(topic.read(0, 321)).offset == 321
        assert topic.consumer("c").positions() == {0: 123}


def test_a_deletion_that_a_crash_interrupted_is_finished(path: Path) -> None:
    with dq.open(path) as log:
        log.create_topic("t").append(b"x")
        kept = log.create_topic("kept")
        kept.append(b"y")
        (directory,) = (path / "topics").glob("t-*")
        shutil.copytree(directory, path / "copy")
        log.delete_topic("t")
        assert not directory.exists()
    shutil.move(path / "copy", directory)
    with dq.open(path) as log:
        assert not directory.exists()
        assert [record.value for record in log.topic("kept").read()] == [b"y"]


def test_a_directory_of_an_unknown_topic_is_never_deleted(path: Path) -> None:
    dq.open(path).close()
    stranger = path / "topics" / "stranger-01234567" / "0"
    stranger.mkdir(parents=True)
    (stranger / "file").write_text("x")
    dq.open(path).close()
    assert (stranger / "file").exists()


# ---------------------------------------------------------------- other processes


def test_another_process_reads_what_is_there_and_cannot_write(path: Path) -> None:
    with dq.open(path) as log:
        topic = log.create_topic("t", partitions=2)
        topic.append_many([b"a", b"b"], partition=0)
        with dq.open(path, read_only=True) as reader:
            other = reader.topic("t")
            assert [record.value for record in other.read()] == [b"a", b"b"]
            assert other.describe().records == 2
            for use in (
                lambda: other.append(b"x"),
                lambda: other.producer(),
                lambda: reader.create_topic("u"),
                lambda: reader.delete_topic("t"),
                lambda: other.consumer("new"),
            ):
                with pytest.raises(dq.ReadOnly):
                    use()
            topic.append(b"c", partition=1)
            log.create_topic("later")
            assert sorted(record.value or b"" for record in other.read()) == [b"a", b"b", b"c"]
            assert [item.name for item in reader.topics()] == ["later", "t"]


FOLLOWER = """
    import dq, sys
    with dq.open(sys.argv[1], read_only=True) as log:
        print("ready", flush=True)
        for record in log.topic("t").read(0, "earliest", follow=True, timeout=30):
            if record.value == b"end":
                break
            print(record.offset, record.value.decode(), flush=True)
"""


@pytest.mark.parametrize("flush", ["always", "os"])
def test_another_process_follows_while_this_one_writes_and_rolls(
    path: Path, flush: dq.engine.segments.config.Flush
) -> None:
    with dq.open(path, flush=flush) as log:
        topic = log.create_topic("t", segment_bytes=4096)
        topic.append(b"0")
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(FOLLOWER), str(path)], stdout=subprocess.PIPE, text=True
        ) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "ready\n"
            for number in range(1, 400):
                topic.append(b"%d" % number)
            topic.append(b"end")
            lines = follower.stdout.read().splitlines()
    assert lines == [f"{number} {number}" for number in range(400)]


def test_a_reader_keeps_up_with_retention(path: Path) -> None:
    with dq.open(path, flush="os") as log, dq.open(path, read_only=True) as reader:
        topic = log.create_topic("t", segment_bytes=4096, retention_bytes=8192)
        topic.append(b"x" * 500)
        other = reader.topic("t")
        assert len(list(other.read())) == 1
        for _ in range(100):
            topic.append(b"x" * 500)
        start = topic.describe().partitions[0].start_offset
        assert start > 0
        assert [record.offset for record in other.read()] == list(range(start, 101))
        with pytest.raises(dq.OffsetOutOfRange):
            other.read(0, 0)


def test_a_reader_never_sees_what_is_not_durable_yet(path: Path) -> None:
    with dq.open(path, flush="always") as log, dq.open(path, read_only=True) as reader:
        topic = log.create_topic("t")
        topic.append(b"durable")
        (pending,) = topic.submit([b"not yet"])
        other = reader.topic("t")
        assert [record.value for record in other.read()] == [b"durable"]
        assert [record.value for record in topic.read()] == [b"durable"]
        pending.result()
        assert [record.value for record in other.read()] == [b"durable", b"not yet"]


# ---------------------------------------------------------------- many partitions


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_idle_partition_costs_no_file_handle(path: Path) -> None:
    with dq.open(path, flush="os", max_open_partitions=10) as log:
        topic = log.create_topic("t", partitions=200)
        before = open_files()
        for partition in range(200):
            topic.append(b"%d" % partition, partition=partition)
        assert open_files() - before < 40
        for partition in range(200):
            topic.append(b"again", partition=partition)
        assert open_files() - before < 40
        assert len(list(topic.read())) == 400
    with dq.open(path, flush="os") as log:
        before = open_files()
        log.topic("t")
        assert open_files() - before < 5
        assert len(list(log.topic("t").read())) == 400
