"""The index between processes: readers beside a writer, forks, and readers that may not write even a lock file."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dq.engine.index import handle
from tests.index.index_tools import (
    SPACE,
    TOPIC,
    assert_never_wrong,
    entry_of,
    environment,
    fill,
    in_child,
    in_killed_child,
    start_child,
    wait_for_child,
)

DEADLINE = 20.0  # seconds


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def follow(data: Path, count: int) -> None:
    """Reads until the last of so many entries is there; everything that is found has to be right."""
    reader = environment(data, read_only=True)
    index = reader.partition(TOPIC, 0)
    last = (count - 1) * SPACE
    at = 0

    def sees_the_last() -> bool:
        nonlocal at
        for _ in range(100):
            at = (at * 31 + 7) % count
            entry = index.floor(at * SPACE + 50)
            assert entry is None or entry == entry_of(entry.offset)
            entry = index.floor_time(at * SPACE * 3 + 1)
            assert entry is None or (entry == entry_of(entry.offset) and entry.offset <= at * SPACE)
        return index.floor(last) == entry_of(last)

    wait_until(sees_the_last)
    assert index.floor_time(last * 3) == entry_of(last - SPACE)
    reader.close()


def test_readers_in_other_processes_follow_a_growing_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "SMALLEST_MAP", 1 << 20)
    count = 100_000
    code = f"""
from pathlib import Path
from tests.index.test_index_processes import follow
follow(Path({str(tmp_path)!r}), {count})
"""
    started = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    forked = start_child(lambda: follow(tmp_path, count))
    env = environment(tmp_path)
    fill(env.partition(TOPIC, 0), 0, count)
    env.flush()
    assert started.wait(DEADLINE) == 0
    assert wait_for_child(forked) == 0
    assert env.statistics().map_size > 4 << 20
    env.close()


def test_a_reader_follows_when_the_writer_starts_anew(tmp_path: Path) -> None:
    reader = environment(tmp_path, read_only=True)
    index = reader.partition(TOPIC, 0)
    for turn in range(3):
        first = turn * 300

        def write(first: int = first) -> None:
            shutil.rmtree(tmp_path / "index", ignore_errors=True)
            env = environment(tmp_path)
            fill(env.partition(TOPIC, 0), first, 300)
            env.close()

        in_child(write)
        assert index.floor(1 << 40) == entry_of((first + 299) * SPACE)
        assert index.floor((first - 1) * SPACE) is None
    shutil.rmtree(tmp_path / "index")
    assert index.floor(1 << 40) is None
    reader.close()


def test_a_reader_stays_right_while_the_writer_comes_and_goes(tmp_path: Path) -> None:
    """Closed, open, killed, salvaged: a reader that lives through all of it never gets a wrong entry."""
    reader = environment(tmp_path, read_only=True)
    index = reader.partition(TOPIC, 0)

    def write(first: int, close: bool) -> None:
        env = environment(tmp_path)
        fill(env.partition(TOPIC, 0), first, 100)
        env.flush()
        if close:
            env.close()

    for turn, close in enumerate([True, False, False, True, False, True]):
        (in_child if close else in_killed_child)(lambda turn=turn, close=close: write(100 * turn, close))
        assert assert_never_wrong(index, 100 * (turn + 1)) == 100 * (turn + 1)
    reader.close()


def test_a_writer_killed_at_any_moment_leaves_no_wrong_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "SMALLEST_MAP", 64 << 10)  # so that it grows again and again

    def write() -> None:
        env = environment(tmp_path)
        index = env.partition(TOPIC, 0)
        while True:
            fill(index, 0, 5000)
            index.forget_segment(10_000, 200_000)
            index.cut(300_000)

    for turn in range(8):
        child = start_child(write)
        wait_until((tmp_path / "index/state").exists)
        time.sleep(0.01 * turn)  # the moment is what the test varies
        os.kill(child, signal.SIGKILL)
        assert wait_for_child(child) == -signal.SIGKILL

        def read() -> None:
            for read_only in (True, False):
                env = environment(tmp_path, read_only=read_only)
                assert_never_wrong(env.partition(TOPIC, 0), 500)
                env.close()

        in_child(read)


def test_a_killed_reader_does_not_keep_the_index_from_using_its_pages_again(tmp_path: Path) -> None:
    env = environment(tmp_path)
    index = env.partition(TOPIC, 0)
    fill(index, 0, 1000)
    env.flush()

    def die_in_a_transaction() -> None:
        reader = environment(tmp_path, read_only=True)
        reader._store.read(lambda txn: os.kill(os.getpid(), signal.SIGKILL))

    for _ in range(5):
        assert wait_for_child(start_child(die_in_a_transaction)) == -signal.SIGKILL
    for _ in range(400):
        index.cut(0)
        fill(index, 0, 1000)
        env.flush()
    assert env.statistics().map_size <= 2 * handle.SMALLEST_MAP
    env.close()


# ---------------------------------------------------------------- forks


def test_a_forked_child_reads_and_does_not_disturb_its_parent(tmp_path: Path) -> None:
    env = environment(tmp_path)
    index = env.partition(TOPIC, 0)
    fill(index, 0, 300)
    env.flush()

    def read_in_child() -> None:
        assert assert_never_wrong(index, 300) >= 300
        fill(index, 5000, 300)  # of no effect
        index.cut(0)
        assert index.floor(1 << 40) != entry_of(5299 * SPACE)
        env.close()

    for turn in range(10):
        child = start_child(read_in_child)
        fill(index, 300 + 30 * turn, 30)
        env.flush()
        assert wait_for_child(child) == 0
        assert assert_never_wrong(index, 300 + 30 * (turn + 1)) == 300 + 30 * (turn + 1)
    env.close()
    env = environment(tmp_path)
    assert env.statistics().entries == 600
    env.close()


def test_forks_while_threads_read_and_write(tmp_path: Path) -> None:
    env = environment(tmp_path)
    index = env.partition(TOPIC, 0)
    fill(index, 0, 1000)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(do: Callable[[int], None]) -> None:
        turn = 0
        try:
            while not stop.is_set():
                do(turn)
                turn += 1
        except BaseException as error:
            failures.append(error)

    def read(turn: int) -> None:
        at = turn * 31 % 1000
        assert index.floor(at * SPACE) == entry_of(at * SPACE)

    def write(turn: int) -> None:
        fill(env.partition(TOPIC, 1), turn * 10, 10)
        env.flush()

    def read_all(count: int) -> None:
        assert assert_never_wrong(index, count) == count

    threads = [threading.Thread(target=work, args=[do]) for do in (read, read, write)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            in_child(lambda: read_all(200))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    env.close()


def test_a_reader_opened_before_a_fork_works_in_parent_and_children(tmp_path: Path) -> None:
    env = environment(tmp_path)
    fill(env.partition(TOPIC, 0), 0, 300)
    env.close()
    reader = environment(tmp_path, read_only=True)
    index = reader.partition(TOPIC, 0)
    assert assert_never_wrong(index, 300) == 300

    def read() -> None:
        assert assert_never_wrong(index, 300) == 300

    children = [start_child(read) for _ in range(4)]
    read()
    assert [wait_for_child(child) for child in children] == [0, 0, 0, 0]
    reader.close()


# ---------------------------------------------------------------- without permission to write


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory that every user may read."""
    folder = Path(tempfile.mkdtemp(prefix="dq-test-"))
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(stat.S_IRWXU)
    shutil.rmtree(folder)


def as_somebody_else(data: Path, work: Callable[[], object]) -> None:
    """Runs a function in a process that may read the index but not write it."""

    def drop_rights_and_work() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        else:
            for path in [data / "index", *(data / "index").iterdir()]:
                path.chmod(path.stat().st_mode & 0o555)
        assert not os.access(data / "index", os.W_OK)
        work()

    in_child(drop_rights_and_work)


def found_by_a_reader(data: Path, count: int) -> int:
    reader = environment(data, read_only=True)
    found = assert_never_wrong(reader.partition(TOPIC, 0), count)
    reader.close()
    return found


def test_a_closed_index_is_read_without_permission_to_write(data: Path) -> None:
    env = environment(data)
    fill(env.partition(TOPIC, 0), 0, 300)
    env.close()

    def read() -> None:
        assert found_by_a_reader(data, 300) == 300

    as_somebody_else(data, read)


def test_an_index_that_is_being_written_is_left_alone_without_permission_to_write(data: Path) -> None:
    env = environment(data)
    fill(env.partition(TOPIC, 0), 0, 300)
    env.flush()

    def read() -> None:
        assert found_by_a_reader(data, 300) == 0

    as_somebody_else(data, read)
    env.close()


def test_an_index_left_by_a_kill_is_copied_without_permission_to_write(data: Path) -> None:
    def write() -> None:
        env = environment(data)
        fill(env.partition(TOPIC, 0), 0, 300)
        env.flush()

    in_killed_child(write)

    def read() -> None:
        can_start_python = os.access(sys.executable, os.X_OK)
        assert found_by_a_reader(data, 300) == (300 if can_start_python else 0)

    as_somebody_else(data, read)


def test_a_reader_without_permission_lets_go_when_a_writer_comes(data: Path) -> None:
    env = environment(data)
    fill(env.partition(TOPIC, 0), 0, 300)
    env.close()
    told, tell = os.pipe()
    heard, answer = os.pipe()

    def read() -> None:
        reader = environment(data, read_only=True)
        index = reader.partition(TOPIC, 0)
        assert index.floor(100) == entry_of(100)
        os.write(tell, b"x")
        os.read(heard, 1)
        assert index.floor(100) is None
        os.write(tell, b"x")
        os.read(heard, 1)
        wait_until(lambda: index.floor(100) == entry_of(100))
        reader.close()

    reading = threading.Thread(target=as_somebody_else, args=[data, read])
    reading.start()
    os.read(told, 1)
    env = environment(data)
    fill(env.partition(TOPIC, 0), 300, 300)
    env.flush()
    os.write(answer, b"x")
    os.read(told, 1)
    env.close()
    os.write(answer, b"x")
    reading.join()
    for fd in (told, tell, heard, answer):
        os.close(fd)


def test_a_full_disk_costs_the_index_and_nothing_else(tmp_path: Path) -> None:
    import resource

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        env = environment(tmp_path)
        for first in range(0, 20_000, 1000):
            fill(env.partition(TOPIC, 0), first, 1000)
            assert_never_wrong(env.partition(TOPIC, 0), 100)
        env.close()

    in_child(write)
    env = environment(tmp_path)
    fill(env.partition(TOPIC, 0), 0, 300)
    assert assert_never_wrong(env.partition(TOPIC, 0), 300) == 300
    env.close()
