"""What the tests of the index share: entries whose every field follows from the offset, logs, and child processes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from dq.engine.files import OsFiles
from dq.engine.index.environment import IndexEnvironment
from dq.engine.segments.batch import encode
from dq.engine.segments.config import LogConfig
from dq.engine.segments.log import Identity, PartitionLog
from dq.engine.segments.positions import IndexEntry, PositionIndex
from tests.clocks import ManualClock

BOOT = "boot-1"
TOPIC = bytes(range(16))
OTHER_TOPIC = bytes(range(16, 32))
SPACE = 100  # offsets from one entry to the next


def entry_of(offset: int) -> IndexEntry:
    return IndexEntry(offset, offset // 10_000 * 10_000, offset * 7 + 64, offset * 3)


def fill(index: PositionIndex, first: int, count: int) -> None:
    for number in range(first, first + count):
        index.add(entry_of(number * SPACE))


def environment(data: Path, *, boot: str = BOOT, read_only: bool = False) -> IndexEnvironment:
    return IndexEnvironment(f"{data}/index", boot, read_only=read_only)


def assert_never_wrong(index: PositionIndex, count: int) -> int:
    """Whatever is found is an entry that was added, and not beyond what was asked for; returns how many were found."""
    found = 0
    for number in range(-1, count):
        for offset in (number * SPACE, number * SPACE + 50):
            entry = index.floor(offset)
            assert entry is None or (entry == entry_of(entry.offset) and entry.offset <= offset)
            found += entry is not None and offset - entry.offset < SPACE
            entry = index.floor_time(offset * 3)
            assert entry is None or (entry == entry_of(entry.offset) and entry.max_timestamp < offset * 3)
    return found // 2


# ---------------------------------------------------------------- logs

RECORDS = 4  # in a batch
VALUE = 16 << 10  # bytes, so that about every batch has an entry


def open_log(data: Path, index: PositionIndex) -> PartitionLog:
    config = LogConfig(flush="os", segment_bytes=1 << 20)
    return PartitionLog(OsFiles(), ManualClock(), f"{data}/log", Identity(TOPIC, 3), config, index)


def append(log: PartitionLog, batches: int) -> None:
    """Record n has the value n and the timestamp 1000 n."""
    for _ in range(batches):
        numbers = range(log.next_offset, log.next_offset + RECORDS)
        values = [str(number).encode().ljust(VALUE) for number in numbers]
        log.append([encode(values, timestamps=[1000 * number for number in numbers])])


def assert_answers(log: PartitionLog, end: int) -> None:
    """Reading from any place and looking up any time gives what `append` put there."""
    assert (log.start_offset, log.next_offset) == (0, end)
    for offset in range(0, end, 7):
        cursor = log.cursor(offset)
        batch = cursor.read()[0]
        cursor.close()
        assert batch.header.base_offset == offset - offset % RECORDS
        assert int(batch.decode().values[offset % RECORDS]) == offset
        assert log.offset_at_time(1000 * offset - 1) == offset
        assert log.offset_at_time(1000 * offset) == offset
    assert log.offset_at_time(1000 * end) == end


# ---------------------------------------------------------------- processes


def start_child(work: Callable[[], object]) -> int:
    """Runs a function in a forked process; returns its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait_for_child(pid: int) -> int:
    """The exit status; minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(work: Callable[[], object]) -> None:
    """Runs a function in a process of its own, so that one that dies of a signal is a failed test and no more."""
    status = wait_for_child(start_child(work))
    assert status == 0, signal.Signals(-status).name if status < 0 else f"exit status {status}"


def in_killed_child(work: Callable[[], object]) -> None:
    """Runs a function in a process that is then killed: whatever it has open stays as it is."""

    def work_and_die() -> None:
        work()
        os.kill(os.getpid(), signal.SIGKILL)

    assert wait_for_child(start_child(work_and_die)) == -signal.SIGKILL
