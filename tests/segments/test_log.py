"""What a partition log does while nothing goes wrong. What it does when something does: test_log_faults.py."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dq.engine.errors import (
    BatchTooLarge,
    Closed,
    InvalidInput,
    OffsetMismatch,
    OffsetOutOfRange,
    ProducerFenced,
    SequenceError,
    StaleEpoch,
    WriteFailed,
)
from dq.engine.files import FileSystem, OsFiles
from dq.engine.memory_files import MemoryFiles
from dq.engine.segments.batch import SPARSE, encode
from dq.engine.segments.combiner import Combiner, Request
from dq.engine.segments.compaction import CompactionResult, compact
from dq.engine.segments.compression import NAMES
from dq.engine.segments.config import LogConfig
from dq.engine.segments.log import PartitionLog
from dq.engine.segments.positions import IndexEntry, MemoryIndex
from dq.engine.segments.producers import ALWAYS_KEPT, FORGET_AFTER, WINDOW
from dq.engine.segments.retention import apply_retention
from tests.clocks import ManualClock
from tests.faulty_files import FaultyFiles
from tests.segments.log_tools import (
    IDENTITY,
    NOW,
    SECOND,
    after_sync_flags,
    batch_of,
    delete_checkpoints,
    headers,
    numbered,
    offsets,
    open_log,
    put,
    put_many,
    records,
    segment_path,
    values,
)

DEADLINE = 20.0  # seconds after which a thread that should be done is stuck


@dataclass
class Place:
    """Where a log lives; opening it again there is opening the same log."""

    files: FileSystem
    directory: str
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW))

    def open(self, **settings: Any) -> PartitionLog:
        return open_log(self.files, self.clock, directory=self.directory, **settings)

    def forget_state(self) -> None:
        """All that is left are the segments: everything else has to be found in them."""
        delete_checkpoints(self.files, self.directory)


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "os":
        return Place(OsFiles(), str(tmp_path / "orders-1" / "3"))
    return Place(MemoryFiles(), "/orders-1/3")


@pytest.fixture
def log(place: Place) -> Iterator[PartitionLog]:
    log = place.open()
    yield log
    log.close()


# ---------------------------------------------------------------- appending and reading


def test_a_new_log_is_empty(log: PartitionLog) -> None:
    assert (log.start_offset, log.next_offset, log.visible_end(), log.durable_end) == (0, 0, 0, 0)
    assert records(log) == []
    assert log.offset_at_time(0) == 0


@pytest.mark.parametrize("codec", NAMES.values(), ids=NAMES)
def test_what_was_appended_is_read_back_in_order(place: Place, codec: int) -> None:
    log = place.open()
    put(log, b"a", None, b"c", keys=[b"k", b"l", None], headers=[None, {"h": b"1"}, None], codec=codec)
    put(log, b"d", b"e", timestamps=[NOW + 5, NOW + 3], codec=codec)
    expected = [
        (0, NOW, b"k", b"a", None, 3),
        (1, NOW, b"l", None, {"h": b"1"}, 3),
        (2, NOW, None, b"c", None, 3),
        (3, NOW + 5, None, b"d", None, 3),
        (4, NOW + 3, None, b"e", None, 3),
    ]
    assert records(log) == expected
    log.close()
    log = place.open()
    assert records(log) == expected
    log.close()


def test_reading_can_start_inside_a_batch(log: PartitionLog) -> None:
    put(log, b"0", b"1", b"2")
    put(log, b"3", b"4")
    for start in range(6):
        assert values(log, start) == [b"%d" % number for number in range(start, 5)]


def test_large_batches_and_many_small_ones_are_read_whole(log: PartitionLog) -> None:
    big = bytes(3 << 20)
    expected: list[bytes | None] = [b"x" * (number % 50) for number in range(3000)]
    for start in range(0, 3000, 100):
        log.append([batch_of(value) for value in expected[start : start + 100]])
    put(log, big)
    put(log, b"last")
    assert values(log) == [*expected, big, b"last"]
    assert values(log, 2999) == [expected[-1], big, b"last"]


def test_a_reader_may_begin_while_the_first_batch_is_written() -> None:
    class Growing(PartitionLog):
        """Gets its first batch between two questions of a reader."""

        asked = 0

        def segments(self) -> tuple[int, ...]:
            found = super().segments()
            self.write_once()
            return found

        def visible_end(self) -> int:
            found = super().visible_end()
            self.write_once()
            return found

        def write_once(self) -> None:
            self.asked += 1
            if self.asked == 1:
                put(self, b"first")

    log = Growing(MemoryFiles(), ManualClock(NOW), "/log", IDENTITY, LogConfig(), MemoryIndex())
    assert [raw.header.base_offset for raw in log.cursor(0).read()] == [0]


@pytest.mark.parametrize("offset", [-1, 4, 100])
def test_an_offset_outside_the_log_is_refused(log: PartitionLog, offset: int) -> None:
    put(log, b"0", b"1", b"2")
    with pytest.raises(OffsetOutOfRange) as caught:
        log.cursor(offset)
    assert (caught.value.offset, caught.value.earliest, caught.value.latest) == (offset, 0, 3)


def test_records_are_invisible_until_they_are_durable(log: PartitionLog) -> None:
    log.append([batch_of(b"a"), batch_of(b"b")])
    assert (log.next_offset, log.visible_end(), records(log)) == (2, 0, [])
    log.wait_durable(2)
    assert values(log) == [b"a", b"b"]


@pytest.mark.parametrize("flush", ["interval", "os"])
def test_records_are_visible_at_once_when_the_flush_mode_says_so(place: Place, flush: str) -> None:
    log = place.open(flush=flush)
    log.append([batch_of(b"a")])
    assert (values(log), log.durable_end) == ([b"a"], 0)
    log.sync()
    assert log.durable_end == 1
    log.close()


def test_a_batch_beyond_the_limit_is_refused_and_nothing_is_stored(place: Place) -> None:
    log = place.open(max_batch_bytes=1000)
    with pytest.raises(BatchTooLarge) as caught:
        log.append([batch_of(b"fits"), batch_of(bytes(1000))])
    assert (caught.value.size > 1000, caught.value.limit) == (True, 1000)
    assert put(log, b"next") == 0
    assert values(log) == [b"next"]
    log.close()


def test_a_conditional_append_is_stored_only_at_the_expected_offset(log: PartitionLog) -> None:
    assert log.append([batch_of(b"a", b"b")], expected_offset=0) == [0]
    for wrong in (0, 1, 3):
        with pytest.raises(OffsetMismatch) as caught:
            log.append([batch_of(b"no")], expected_offset=wrong)
        assert (caught.value.expected, caught.value.actual) == (wrong, 2)
    assert log.append([batch_of(b"c")], expected_offset=2) == [2]
    log.sync()
    assert values(log) == [b"a", b"b", b"c"]


def test_of_two_conditional_appends_at_one_offset_one_is_stored(log: PartitionLog) -> None:
    def attempt(number: int) -> bool:
        try:
            log.append_durably([batch_of(b"%d" % number)], expected_offset=0)
        except OffsetMismatch:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
    assert len(values(log)) == 1


def test_a_closed_log_takes_no_more_writes_and_can_be_closed_again(place: Place) -> None:
    log = place.open()
    put(log, b"a")
    log.close()
    log.close()
    for write in (lambda: log.append([batch_of(b"b")]), log.roll, lambda: log.truncate(0)):
        with pytest.raises(Closed):
            write()


def test_opening_after_a_clean_close_reads_no_batches_and_syncs_nothing() -> None:
    files = FaultyFiles()
    log = open_log(files, segment_bytes=500)
    put_many(log, 20)
    log.close()
    files.call_log = []
    log = open_log(files)
    assert (log.recovered.scanned_bytes, log.recovered.closed) == (0, True)
    assert [call for call, _ in files.call_log if call.startswith("sync")] == []
    assert log.next_offset == 20


def test_opening_after_a_crash_reads_only_what_came_after_the_last_checkpoint() -> None:
    files = FaultyFiles()
    log = open_log(files, segment_bytes=1 << 20, checkpoint_batches=100)
    put_many(log, 1050)
    files.kill()
    log = open_log(files)
    assert log.next_offset == 1050
    assert 0 < log.recovered.scanned_bytes < log.size() * 110 / 1050


# ---------------------------------------------------------------- segments


def test_a_segment_is_rolled_when_it_is_full(place: Place) -> None:
    log = place.open(segment_bytes=1000)
    put_many(log, 30, size=100)
    assert log.segments() == tuple(range(0, 30, 4))
    assert offsets(log) == list(range(30))
    put(log, bytes(5000))  # larger than a segment: it gets one of its own
    put(log, b"after")
    assert log.segments()[-2:] == (30, 31)
    assert len(values(log)) == 32
    log.close()


def test_a_segment_is_rolled_when_it_is_old(place: Place) -> None:
    log = place.open(segment_age=10 * SECOND)
    put(log, b"a")
    place.clock.advance(10 * SECOND)
    put(log, b"b")
    assert log.segments() == (0,)
    place.clock.advance(1)
    put(log, b"c")
    assert log.segments() == (0, 2)
    place.clock.jump(-3600 * SECOND)
    put(log, b"d")
    assert log.segments() == (0, 2)
    log.close()


def test_the_age_of_a_segment_survives_reopening(place: Place) -> None:
    log = place.open(segment_age=10 * SECOND)
    put(log, b"a")
    place.clock.advance(6 * SECOND)
    log.close()
    log = place.open(segment_age=10 * SECOND)
    place.clock.advance(6 * SECOND)
    put(log, b"b")
    assert log.segments() == (0, 1)
    log.close()


def test_rolling_an_empty_segment_does_nothing(log: PartitionLog) -> None:
    log.roll()
    put(log, b"a")
    log.roll()
    log.roll()
    assert log.segments() == (0, 1)


# ---------------------------------------------------------------- idempotent producers


def send(log: PartitionLog, sequence: int, *contents: bytes, producer: int = 7, epoch: int = 0) -> int:
    return put(log, *(contents or (b"#%d" % sequence,)), producer=(producer, epoch, sequence))


def test_a_batch_that_is_sent_again_is_answered_with_its_first_offset(log: PartitionLog) -> None:
    put(log, b"of somebody else")
    assert send(log, 0, b"a", b"b") == 1
    assert send(log, 2, b"c") == 3
    assert send(log, 0, b"a", b"b") == 1
    assert send(log, 2, b"c") == 3
    assert log.next_offset == 4


def test_a_duplicate_within_one_append_is_stored_once(log: PartitionLog) -> None:
    first, second = batch_of(b"a", producer=(7, 0, 0)), batch_of(b"b", producer=(7, 0, 1))
    assert log.append([first, first, second, first]) == [0, 0, 1, 0]
    log.sync()
    assert values(log) == [b"a", b"b"]


def test_late_retries_are_known_for_the_last_few_batches_only(log: PartitionLog) -> None:
    for sequence in range(WINDOW + 1):
        send(log, sequence)
    for sequence in range(1, WINDOW + 1):
        assert send(log, sequence) == sequence
    with pytest.raises(SequenceError):
        send(log, 0)
    assert log.next_offset == WINDOW + 1


def test_a_gap_in_the_sequence_is_refused(log: PartitionLog) -> None:
    send(log, 0, b"a", b"b")
    with pytest.raises(SequenceError) as caught:
        send(log, 3)
    assert (caught.value.expected, caught.value.sequence) == (2, 3)
    assert send(log, 2) == 2


def test_a_retry_with_another_count_is_refused(log: PartitionLog) -> None:
    send(log, 0, b"a", b"b")
    with pytest.raises(SequenceError):
        send(log, 0, b"a")


def test_a_producer_is_fenced_by_a_newer_epoch(log: PartitionLog) -> None:
    send(log, 0)
    send(log, 1)
    with pytest.raises(SequenceError):
        send(log, 2, epoch=1)  # a new epoch begins at zero
    assert send(log, 0, epoch=1) == 2
    with pytest.raises(ProducerFenced) as caught:
        send(log, 2, epoch=0)
    assert caught.value.current == 1


def test_a_producer_that_is_not_known_may_begin_anywhere(log: PartitionLog) -> None:
    assert send(log, 1000) == 0
    assert send(log, 1001) == 1


@pytest.mark.parametrize("how", ["closed", "killed", "without checkpoints"])
def test_what_is_known_of_producers_survives_reopening(how: str) -> None:
    files = FaultyFiles()
    log = open_log(files, segment_bytes=400)
    for sequence in range(8):
        send(log, sequence)
        send(log, sequence, producer=8, epoch=2)
    if how == "closed":
        log.close()
    files.kill()
    if how == "without checkpoints":
        delete_checkpoints(files)
    log = open_log(files)
    for sequence in range(3, 8):
        assert send(log, sequence) == 2 * sequence
    with pytest.raises(ProducerFenced):
        send(log, 0, producer=8, epoch=1)
    with pytest.raises(SequenceError):
        send(log, 9)
    assert send(log, 8) == 16


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("kept", range(12))
def test_truncation_takes_back_what_was_known_of_producers(place: Place, kept: int, reopened: bool) -> None:
    log = place.open(segment_bytes=500)
    for sequence in range(12):
        send(log, sequence)
    log.truncate(kept)
    if reopened:
        log.close()
        place.forget_state()
        log = place.open(segment_bytes=500)
    if kept:
        assert send(log, kept - 1) == kept - 1
    assert send(log, kept, b"another") == kept
    assert values(log)[-1] == b"another"
    log.close()


def test_a_refused_batch_leaves_no_trace_in_what_is_known_of_producers(log: PartitionLog) -> None:
    for sequence in range(WINDOW):
        send(log, sequence)
    wrong = batch_of(b"gap", producer=(7, 0, 99))
    right = [batch_of(b"#%d" % n, producer=(7, 0, n)) for n in range(WINDOW, 2 * WINDOW + 2)]
    with pytest.raises(SequenceError):
        log.append([*right, wrong])
    for sequence in range(WINDOW):  # even the oldest batch of the window is still known
        assert send(log, sequence) == sequence
    with pytest.raises(SequenceError):  # also one that had begun a new epoch
        log.append([batch_of(b"new", producer=(7, 1, 0)), batch_of(b"gap", producer=(7, 1, 9))])
    assert send(log, WINDOW) == WINDOW


def test_a_refused_append_does_not_disturb_those_it_is_combined_with(log: PartitionLog) -> None:
    """Threads that append at the same time share one write; the bad request of one is its own affair."""
    send(log, 0, producer=1)
    send(log, 0, producer=2)
    good = batch_of(b"good", producer=(1, 0, 1))
    bad = [batch_of(b"new epoch", producer=(2, 1, 0)), batch_of(b"gap", producer=(2, 1, 5))]
    outcomes = append_together(log, [[good], bad])
    assert outcomes[0] == [2]
    assert isinstance(outcomes[1], SequenceError)
    assert send(log, 1, b"good", producer=1) == 2  # a duplicate, known
    assert send(log, 1, producer=2) == 3
    assert values(log)[2:] == [b"good", b"#1"]


def append_together(log: PartitionLog, appends: list[list[Any]]) -> list[Any]:
    """Runs appends as if their threads had queued up behind a slow one."""
    from dq.engine.segments.stamping import Append

    requests = [Append(batches) for batches in appends]
    log._append_all(requests)
    return [request.error or request.offsets for request in requests]


def test_producers_of_old_records_are_not_forgotten(place: Place) -> None:
    """The time of a record says nothing about when it was written: think of loading last year's data."""
    log = place.open()
    put(log, b"old", timestamp=NOW - 10 * FORGET_AFTER, producer=(7, 0, 0))
    for _ in range(3):
        log.checkpoint()
        log.close()
        log = place.open()
        assert put(log, b"old", timestamp=NOW - 10 * FORGET_AFTER, producer=(7, 0, 0)) == 0
    log.close()


def test_a_clock_that_jumps_does_not_make_the_log_forget_producers(place: Place) -> None:
    log = place.open()
    send(log, 0)
    log.checkpoint()
    place.clock.jump(100 * FORGET_AFTER)
    log.checkpoint()
    place.clock.jump(-100 * FORGET_AFTER)
    assert send(log, 0) == 0
    log.close()


def test_the_number_of_silent_producers_that_are_remembered_is_bounded() -> None:
    clock = ManualClock(NOW)
    log = open_log(MemoryFiles(), clock)
    log.append([batch_of(b"x", producer=(number, 0, 0)) for number in range(ALWAYS_KEPT + 100)])
    log.checkpoint()
    clock.advance(FORGET_AFTER + 1)
    send(log, 0, producer=99_999)
    log.checkpoint()
    assert len(log._producers) == ALWAYS_KEPT
    assert send(log, 0, producer=99_999) == ALWAYS_KEPT + 100


# ---------------------------------------------------------------- leader epochs


def test_the_history_of_leader_epochs_survives_reopening(place: Place) -> None:
    log = place.open(segment_bytes=300)
    put(log, b"a", b"b", leader_epoch=1)
    put(log, b"c", leader_epoch=1)
    put(log, b"d", leader_epoch=4)
    put(log, b"e")  # goes on with the latest
    put(log, b"f", leader_epoch=6)
    expected = [(1, 0), (4, 3), (6, 5)]
    assert log.epoch_starts() == expected
    log.close()
    log = place.open()
    assert (log.epoch_starts(), log.leader_epoch) == (expected, 6)
    log.close()
    place.forget_state()
    log = place.open()
    assert (log.epoch_starts(), log.leader_epoch) == (expected, 6)
    # The greatest epoch not above the asked one, and where it ends.
    ends = {epoch: log.epoch_end(epoch) for epoch in range(8)}
    assert ends == {
        0: (0, 0),
        1: (1, 3),
        2: (1, 3),
        3: (1, 3),
        4: (4, 5),
        5: (4, 5),
        6: (6, 6),
        7: (6, 6),
    }
    log.close()


def test_an_older_leader_is_refused(log: PartitionLog) -> None:
    put(log, b"a", leader_epoch=5)
    with pytest.raises(StaleEpoch) as caught:
        put(log, b"b", leader_epoch=4)
    assert (caught.value.epoch, caught.value.current) == (4, 5)
    assert log.next_offset == 1


def test_truncation_and_retention_cut_the_history_of_epochs(place: Place) -> None:
    log = place.open(segment_bytes=300, retention_bytes=250)
    for epoch in range(1, 7):
        put(log, bytes(100), leader_epoch=epoch)
    log.truncate(4)
    assert log.epoch_starts() == [(1, 0), (2, 1), (3, 2), (4, 3)]
    apply_retention(log, place.clock)
    assert log.start_offset == 2
    assert log.epoch_starts() == [(3, 2), (4, 3)]
    log.close()


def test_a_failed_append_does_not_forget_an_epoch_of_which_nothing_is_left() -> None:
    files, clock = FaultyFiles(), ManualClock(NOW)
    log = open_log(files, clock, retention_age=SECOND)
    put(log, b"a", leader_epoch=3)
    clock.advance(60 * SECOND)
    apply_retention(log, clock)
    assert (log.start_offset, log.next_offset) == (1, 1)
    files.fail("write", where=".seg")
    with pytest.raises(WriteFailed):
        put(log, b"b")
    assert log.leader_epoch == 3


# ---------------------------------------------------------------- what followers do


def stamped(*batches: tuple[int, int, list[bytes]]) -> list[Any]:
    """(offset, leader epoch, values) as a leader sends them."""
    encoded = [
        encode(content, timestamp=NOW, base_offset=offset, leader_epoch=epoch) for offset, epoch, content in batches
    ]
    return [(batch.header, batch.body) for batch in encoded]


def test_a_follower_stores_batches_where_its_leader_has_them(log: PartitionLog) -> None:
    log.append_stamped(stamped((0, 1, [b"a", b"b"]), (2, 1, [b"c"])))
    log.append_stamped(stamped((3, 2, [b"d"])))
    log.sync()
    assert values(log) == [b"a", b"b", b"c", b"d"]
    assert log.epoch_starts() == [(1, 0), (2, 3)]
    with pytest.raises(OffsetMismatch):
        log.append_stamped(stamped((5, 2, [b"e"])))
    with pytest.raises(OffsetMismatch):
        log.append_stamped(stamped((4, 2, [b"e"]), (6, 2, [b"f"])))
    with pytest.raises(StaleEpoch):
        log.append_stamped(stamped((4, 3, [b"e"]), (5, 2, [b"f"])))
    assert (log.next_offset, log.leader_epoch) == (4, 2)


def test_a_follower_says_by_itself_what_was_synced_before_a_batch(place: Place) -> None:
    leader = place.open()
    put_many(leader, 4)
    assert after_sync_flags(leader) == [True] * 4
    copied = [(raw.header, bytes(raw.body)) for raw in leader.cursor(0).read()]
    leader.close()
    follower = open_log(MemoryFiles())
    follower.append_stamped(copied[:2])
    follower.append_stamped(copied[2:3])
    follower.sync()
    follower.append_stamped(copied[3:])
    assert after_sync_flags(follower) == [True, False, False, True]


# ---------------------------------------------------------------- truncation


@pytest.mark.parametrize("offset", range(31))
def test_truncation_removes_every_batch_that_reaches_beyond_the_offset(place: Place, offset: int) -> None:
    log = place.open(segment_bytes=600)
    for base in range(0, 30, 3):
        put(log, *(numbered(base + n, 40) for n in range(3)), timestamp=NOW + base)
    log.truncate(offset)
    end = offset // 3 * 3
    assert (log.next_offset, log.visible_end(), log.durable_end) == (end, end, end)
    assert offsets(log) == list(range(end))
    assert log.offset_at_time(NOW + 1000) == end
    put(log, b"next")
    assert values(log, end) == [b"next"]
    log.close()
    place.forget_state()
    log = place.open()
    assert values(log) == [*(numbered(n, 40) for n in range(end)), b"next"]
    log.close()


def test_truncation_outside_the_log_is_refused(place: Place) -> None:
    log = place.open(segment_bytes=200, retention_bytes=1)
    put_many(log, 10)
    apply_retention(log, place.clock)
    for offset in (log.start_offset - 1, 11):
        with pytest.raises(OffsetOutOfRange):
            log.truncate(offset)
    log.truncate(10)
    assert log.next_offset == 10
    log.close()


def test_truncation_makes_what_is_left_durable_and_visible(log: PartitionLog) -> None:
    put(log, b"0")
    log.append([batch_of(b"1"), batch_of(b"2")])
    assert log.visible_end() == 1
    log.truncate(2)
    assert (log.durable_end, log.visible_end(), values(log)) == (2, 2, [b"0", b"1"])


def test_a_sync_under_way_cannot_call_durable_what_is_truncated_meanwhile() -> None:
    files = FaultyFiles()
    log = open_log(files)
    put_many(log, 10)
    syncing, go_on = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        if threading.current_thread() is writer and not syncing.is_set():
            syncing.set()
            assert go_on.wait(DEADLINE)

    files.on_sync = hold
    writer = threading.Thread(target=lambda: put_many(log, 5))
    truncating = threading.Thread(target=lambda: log.truncate(3))
    writer.start()
    assert syncing.wait(DEADLINE)
    truncating.start()
    go_on.set()
    writer.join(DEADLINE)
    truncating.join(DEADLINE)
    files.on_sync = None
    assert log.durable_end <= log.next_offset
    assert log.visible_end() <= log.next_offset
    log.append([batch_of(b"new")])
    assert log.durable_end < log.next_offset
    log.sync()
    assert offsets(log) == list(range(log.next_offset))


# ---------------------------------------------------------------- retention


def test_retention_by_size_keeps_whole_segments_that_hold_at_least_the_limit(place: Place) -> None:
    log = place.open(segment_bytes=1000, retention_bytes=1500)
    put_many(log, 60, size=100)
    before = dict(zip(offsets(log), values(log), strict=True))
    removed = apply_retention(log, place.clock)
    assert removed == sorted(removed)
    assert log.start_offset > 0
    kept = sum(header.size for _, _, header in headers(log))
    first = sum(header.size for base, _, header in headers(log) if base == log.start_offset)
    assert kept - first < 1500 <= kept
    assert dict(zip(offsets(log), values(log), strict=True)) == {
        offset: value for offset, value in before.items() if offset >= log.start_offset
    }
    with pytest.raises(OffsetOutOfRange) as caught:
        log.cursor(log.start_offset - 1)
    assert caught.value.earliest == log.start_offset
    assert apply_retention(log, place.clock) == []
    log.close()


def test_retention_by_age_goes_by_the_latest_record_of_a_segment(place: Place) -> None:
    log = place.open(retention_age=100 * SECOND)
    for minute, stamp in enumerate([0, 50, 10, 20, 90]):
        put(log, b"%d" % minute, timestamp=NOW + stamp * SECOND)
        log.roll()
    place.clock.time = NOW + 149 * SECOND
    assert apply_retention(log, place.clock) == [0]
    place.clock.time = NOW + 151 * SECOND
    assert apply_retention(log, place.clock) == [1, 2, 3]
    assert values(log) == [b"4"]
    log.close()


def test_retention_empties_a_log_that_is_too_old_and_offsets_go_on(place: Place) -> None:
    log = place.open(retention_age=100 * SECOND)
    put_many(log, 5)
    place.clock.advance(101 * SECOND)
    assert apply_retention(log, place.clock) == [0]
    assert (log.start_offset, log.next_offset, records(log)) == (5, 5, [])
    log.close()
    place.forget_state()
    log = place.open()
    assert put(log, b"next") == 5
    log.close()


def test_retention_without_limits_removes_nothing(log: PartitionLog, place: Place) -> None:
    put_many(log, 5)
    log.roll()
    place.clock.advance(10**15)
    assert apply_retention(log, place.clock) == []


def test_retention_may_run_in_several_threads(place: Place) -> None:
    log = place.open(segment_bytes=300, retention_bytes=500)
    for _ in range(10):
        put_many(log, 20, size=100)
        with ThreadPoolExecutor(4) as pool:
            removed = [
                base for found in pool.map(lambda _: apply_retention(log, place.clock), range(4)) for base in found
            ]
        assert len(removed) == len(set(removed)) > 0
    assert offsets(log) == list(range(log.start_offset, 200))
    log.close()


def test_a_reader_that_retention_overtakes_is_told(place: Place) -> None:
    log = place.open(segment_bytes=300, retention_bytes=1)
    put_many(log, 10, size=100)
    cursor = log.cursor(0)
    apply_retention(log, place.clock)
    with pytest.raises(OffsetOutOfRange) as caught:
        cursor.read()
    assert caught.value.earliest == log.start_offset
    log.close()


def test_producers_known_only_from_removed_segments_are_still_known() -> None:
    files, clock = FaultyFiles(), ManualClock(NOW)
    log = open_log(files, clock, segment_bytes=300, retention_bytes=1)
    send(log, 0, epoch=4)
    put_many(log, 10, size=100)
    log.roll()
    apply_retention(log, clock)
    assert log.start_offset > 0
    files.kill()
    log = open_log(files, clock)
    assert send(log, 0, epoch=4) == 0
    with pytest.raises(ProducerFenced):
        send(log, 0, epoch=3)


# ---------------------------------------------------------------- compaction


def put_keyed(log: PartitionLog, *pairs: tuple[bytes | None, bytes | None], **columns: Any) -> int:
    return put(log, *(value for _, value in pairs), keys=[key for key, _ in pairs], **columns)


def run_compaction(log: PartitionLog, clock: ManualClock, **options: Any) -> CompactionResult:
    log.roll()
    return compact(log, clock, **options)


def test_compaction_keeps_the_latest_record_of_each_key_at_its_offset(place: Place) -> None:
    log = place.open(segment_bytes=400)
    put_keyed(log, (b"a", b"1"), (b"b", b"2"), (None, b"3"))
    put_keyed(log, (b"a", b"4"))
    put_keyed(log, (b"c", b"5"), (b"b", b"6"), (b"c", b"7"))
    put(log, b"8")
    result = run_compaction(log, place.clock)
    expected = [(2, None, b"3"), (3, b"a", b"4"), (5, b"b", b"6"), (6, b"c", b"7"), (7, None, b"8")]
    assert [(record.offset, record.key, record.value) for record in records(log)] == expected
    assert result.records_removed == 3
    assert (log.start_offset, log.next_offset) == (0, 8)
    log.close()
    place.forget_state()
    log = place.open()
    assert [(record.offset, record.key, record.value) for record in records(log)] == expected
    assert put(log, b"9") == 8
    log.close()


def test_compaction_leaves_no_holes_between_batches(place: Place) -> None:
    log = place.open(segment_bytes=2000)
    for number in range(100):
        put_keyed(log, (b"k%d" % (number % 7), b"%d" % number), (b"once", b"x"))
    run_compaction(log, place.clock)
    expected = 0
    for _, _, header in headers(log):
        assert header.base_offset == expected
        expected = header.next_offset
    assert expected == log.next_offset == 200
    assert any(header.flags & SPARSE and header.count == 0 for _, _, header in headers(log))
    log.close()


def test_a_compacted_log_can_be_read_from_any_offset(place: Place) -> None:
    log = place.open(segment_bytes=2000)
    for number in range(60):
        put_keyed(log, (b"k%d" % (number % 11), b"%d" % number), (None if number % 9 == 0 else b"once", b"x"))
    run_compaction(log, place.clock)
    everything = records(log)
    for start in range(log.next_offset + 1):
        assert records(log, start) == [record for record in everything if record.offset >= start]
    log.close()


def test_headers_timestamps_and_compression_survive_compaction(place: Place) -> None:
    log = place.open()
    put(
        log,
        b"old" * 50,
        b"stays" * 50,
        keys=[b"a", b"b"],
        timestamps=[NOW + 9, NOW + 1],
        headers=[None, {"name": b"value"}],
        codec=NAMES["zstd"],
    )
    put_keyed(log, (b"a", b"new"), timestamp=NOW + 2)
    run_compaction(log, place.clock)
    assert records(log) == [
        (1, NOW + 1, b"b", b"stays" * 50, {"name": b"value"}, 3),
        (2, NOW + 2, b"a", b"new", None, 3),
    ]
    log.close()


def test_a_deletion_goes_when_it_is_old_enough_and_takes_what_it_deleted(place: Place) -> None:
    log = place.open(tombstone_age=100 * SECOND)
    put_keyed(log, (b"a", b"1"), (b"b", b"2"))
    put_keyed(log, (b"a", None))
    run_compaction(log, place.clock)
    assert [(record.key, record.value) for record in records(log)] == [(b"b", b"2"), (b"a", None)]
    place.clock.advance(101 * SECOND)
    run_compaction(log, place.clock)
    assert [(record.key, record.value) for record in records(log)] == [(b"b", b"2")]
    assert log.next_offset == 3
    log.close()


def test_the_active_segment_is_not_compacted(place: Place) -> None:
    log = place.open()
    put_keyed(log, (b"a", b"1"))
    put_keyed(log, (b"a", b"2"))
    assert compact(log, place.clock).records_removed == 0
    assert values(log) == [b"1", b"2"]
    log.close()


def test_compacting_again_changes_nothing(place: Place) -> None:
    log = place.open(segment_bytes=500)
    for number in range(50):
        put_keyed(log, (b"k%d" % (number % 5), b"%d" % number))
    run_compaction(log, place.clock)
    everything = records(log)
    again = run_compaction(log, place.clock)
    assert (again.segments_rewritten, again.records_removed) == (0, 0)
    assert records(log) == everything
    log.close()


def test_nothing_is_removed_on_account_of_records_that_may_be_rolled_back(place: Place) -> None:
    log = place.open(segment_bytes=150)
    put_keyed(log, (b"a", b"committed"))
    put_keyed(log, (b"a", b"not yet"))
    run_compaction(log, place.clock, below=1)
    assert values(log) == [b"committed", b"not yet"]
    run_compaction(log, place.clock)
    assert values(log) == [b"not yet"]
    log.close()


def test_a_producer_is_known_after_compaction_has_removed_its_records(place: Place) -> None:
    log = place.open(segment_bytes=300)
    for sequence in range(6):
        put_keyed(log, (b"key", b"%d" % sequence), producer=(7, 3, sequence))
    put_keyed(log, (b"key", b"of somebody else"))
    run_compaction(log, place.clock)
    assert values(log) == [b"of somebody else"]
    log.close()
    place.forget_state()
    log = place.open()
    assert put_keyed(log, (b"key", b"5"), producer=(7, 3, 5)) == 5
    with pytest.raises(ProducerFenced):
        send(log, 6, epoch=2)
    with pytest.raises(SequenceError):
        send(log, 7, epoch=3)
    assert send(log, 6, epoch=3) == 7
    log.close()


def test_truncation_behind_compacted_segments_knows_their_producers(place: Place) -> None:
    log = place.open()
    for sequence in range(20):
        put_keyed(log, (b"key", b"%d" % sequence), producer=(7, 0, sequence))
    log.roll()
    for sequence in range(20, 20 + 2 * WINDOW):
        log.append([batch_of(b"x", producer=(7, 0, sequence))])
    compact(log, place.clock)
    log.truncate(20)
    assert put_keyed(log, (b"key", b"19"), producer=(7, 0, 19)) == 19
    assert send(log, 20) == 20
    log.close()


def test_only_a_sealed_segment_can_be_replaced(log: PartitionLog) -> None:
    put(log, b"a")
    with pytest.raises(InvalidInput):
        log.replace_segment(0, "anything", 1)


def test_a_reader_is_not_disturbed_by_compaction(place: Place) -> None:
    log = place.open(segment_bytes=1000)
    for number in range(100):
        put_keyed(log, (b"k%d" % (number % 3), b"%d" % number))
    cursor = log.cursor(0)
    seen = [raw.header.base_offset for raw in cursor.read()]
    run_compaction(log, place.clock)
    while batches := cursor.read():
        seen += [raw.header.base_offset for raw in batches]
    cursor.close()
    assert seen == sorted(set(seen))
    assert cursor.offset == log.next_offset
    log.close()


# ---------------------------------------------------------------- by time


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_time_names_the_first_record_that_is_not_older(place: Place, with_index: bool, compacted: bool) -> None:
    """Timestamps come from producers and need not grow."""
    stamps = [5, 3, 9, 9, 1, 12, 2, 20, 15, 15, 4, 21, 30, 6, 6, 25]
    index = MemoryIndex()
    log = place.open(segment_bytes=1 << 18, index=index)
    for number, stamp in enumerate(stamps):
        put(
            log,
            bytes(30_000),
            b"b",
            timestamps=[NOW + stamp, NOW + stamp // 2],
            keys=[b"k%d" % (number % 6), None],
        )
    if compacted:
        run_compaction(log, place.clock)
    assert len(log.segments()) > 1
    everything = records(log)
    if not with_index:
        index.cut(0)
    for wanted in range(-1, 33):
        first = next((record.offset for record in everything if record.timestamp >= NOW + wanted), log.next_offset)
        assert log.offset_at_time(NOW + wanted) == first
    log.close()


def test_a_time_is_looked_up_among_visible_records_only(log: PartitionLog) -> None:
    put(log, b"a", timestamp=NOW)
    log.append([batch_of(b"b", timestamp=NOW + 5)])
    assert log.offset_at_time(NOW + 1) == 1 == log.visible_end()
    log.sync()
    assert log.offset_at_time(NOW + 6) == 2
    assert log.offset_at_time(NOW + 1) == 1


def test_a_header_that_promises_a_later_time_than_its_records_have_does_no_harm(log: PartitionLog) -> None:
    batch = batch_of(b"a", b"b", timestamps=[NOW, NOW + 1])
    log.append([batch._replace(header=batch.header._replace(last_timestamp=NOW + 100))])
    put(log, b"c", timestamp=NOW + 50)
    assert log.offset_at_time(NOW + 20) == 2


def test_the_index_may_shrink_while_it_is_asked() -> None:
    index = MemoryIndex()
    shrunk: list[bool] = []

    class Shrinking(IndexEntry):
        """While a reader looks at it, another thread truncates the log."""

        @property
        def offset(self) -> int:
            if not shrunk:
                shrunk.append(True)
                index.cut(0)
            return self[0]

    index._entries = [Shrinking(number, 0, number, number) for number in range(100)]
    entry = index.floor(90)
    assert entry is None or entry[0] <= 90


def test_the_index_may_be_lost_at_any_time(place: Place) -> None:
    index = MemoryIndex()
    log = place.open(segment_bytes=1 << 20, index=index)
    for number in range(60):
        put(log, bytes(50_000), numbered(number))
    assert len(index) >= 30
    index.cut(0)
    assert [record.offset for record in records(log, 77)] == list(range(77, 120))
    log.close()


# ---------------------------------------------------------------- threads


def test_many_threads_share_syncs_and_every_record_is_stored_once() -> None:
    files = FaultyFiles()
    log = open_log(files, segment_bytes=4000)
    files.call_log = []
    count, each = 8, 50

    def write(thread: int) -> list[int]:
        stored = []
        for number in range(each):
            [offset] = log.append([batch_of(b"%d %d" % (thread, number))])
            log.wait_durable(offset + 1)
            assert log.durable_end > offset
            assert log.visible_end() > offset
            stored.append(offset)
        return stored

    with ThreadPoolExecutor(count) as pool:
        stored = list(pool.map(write, range(count)))
    assert sorted(offset for offsets_ in stored for offset in offsets_) == list(range(count * each))
    found = values(log)
    for thread, places in enumerate(stored):
        assert places == sorted(places)
        assert [found[offset] for offset in places] == [b"%d %d" % (thread, number) for number in range(each)]
    log.close()
    files.power_loss()
    assert values(open_log(files)) == found


def test_those_who_come_during_a_sync_are_served_by_the_next_one() -> None:
    files = FaultyFiles()
    log = open_log(files)
    put(log, b"first")
    syncs = 0
    syncing, go_on = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        nonlocal syncs
        syncs += path.endswith(".seg")
        if syncs == 1:
            syncing.set()
            assert go_on.wait(DEADLINE)

    files.on_sync = hold
    with ThreadPoolExecutor(10) as pool:
        leader = pool.submit(put, log, b"leader")
        assert syncing.wait(DEADLINE)
        written = threading.Semaphore(0)

        def follow(number: int) -> None:
            log.append([batch_of(b"%d" % number)])
            written.release()
            log.wait_durable(log.next_offset)

        followers = [pool.submit(follow, number) for number in range(9)]
        for _ in followers:
            assert written.acquire(timeout=DEADLINE)
        assert log.visible_end() == 1  # nothing is shown before its sync is done
        go_on.set()
        leader.result(DEADLINE)
        for follower in followers:
            follower.result(DEADLINE)
    assert syncs <= 3  # one for the leader, and one or two for all the others
    assert log.durable_end == log.visible_end() == 11


def test_appends_of_many_threads_are_combined_and_each_gets_its_own_offsets() -> None:
    log = open_log(MemoryFiles())

    def write(thread: int) -> list[tuple[int, bytes]]:
        stored = []
        for number in range(100):
            value = b"%d %d" % (thread, number)
            [first, second] = log.append_durably([batch_of(value), batch_of(value + b"'")])
            assert second == first + 1
            stored.append((first, value))
        return stored

    with ThreadPoolExecutor(6) as pool:
        stored = [pair for pairs in pool.map(write, range(6)) for pair in pairs]
    found = values(log)
    assert len(found) == 1200
    assert all(found[offset] == value and found[offset + 1] == value + b"'" for offset, value in stored)


def interrupt_main_thread(once: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not once() and time.monotonic() < deadline:
        time.sleep(0.001)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_a_waiting_thread_that_is_interrupted_does_not_hold_up_the_others() -> None:
    serving, go_on = threading.Event(), threading.Event()

    def serve(requests: list[Request]) -> None:
        serving.set()
        assert go_on.wait(DEADLINE)

    combiner: Combiner[Request] = Combiner(serve)
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(combiner.run, Request())
        assert serving.wait(DEADLINE)
        interrupted = Request()
        with pytest.raises(KeyboardInterrupt):
            pool.submit(interrupt_main_thread, lambda: interrupted.wake is not None and interrupted.wake.locked())
            combiner.run(interrupted)
        go_on.set()
        leader.result(DEADLINE)
        pool.submit(combiner.run, Request()).result(DEADLINE)


def test_an_interrupt_at_any_moment_leaves_nobody_in_the_lead() -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    combiner: Combiner[Request] = Combiner(lambda requests: None)
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupts = 0
    try:
        while interrupts < 3000:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + interrupts % 100 * 1e-6)
                while True:
                    combiner.run(Request())
            except KeyboardInterrupt:
                interrupts += 1
                assert (combiner._busy, combiner._queue, combiner._mutex.locked()) == (False, [], False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("flush", ["always", "interval"])
def test_upkeep_does_not_disturb_writers_and_readers(place: Place, flush: str) -> None:
    log = place.open(flush=flush, segment_bytes=20_000, checkpoint_bytes=5000)
    writing = threading.Event()
    writing.set()
    count = 400

    def write(thread: int) -> None:
        for number in range(count):
            key = b"%d/%d" % (thread, number % 40)
            log.append_durably([batch_of(b"%d" % number, keys=[key], producer=(thread, 0, number))])

    def read() -> int:
        cursor = log.cursor(0)
        seen = 0
        while writing.is_set() or cursor.offset < log.next_offset:
            for raw in cursor.read():
                assert raw.header.base_offset <= seen < raw.header.next_offset or raw.header.base_offset == seen
                seen = raw.header.next_offset
                raw.decode()
            log.wait_for(cursor.offset, 0.01)
        cursor.close()
        return seen

    def upkeep() -> None:
        while writing.is_set():
            log.roll()
            compact(log, place.clock)
            log.checkpoint()
            apply_retention(log, place.clock)
            log.park()

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        keeper = pool.submit(upkeep)
        try:
            for writer in [pool.submit(write, thread) for thread in range(3)]:
                writer.result(60)
        finally:
            writing.clear()
        keeper.result(60)
        log.sync()
        assert [reader.result(60) for reader in readers] == [3 * count] * 2
    log.close()
    place.forget_state()
    log = place.open()
    latest = {record.key: record.value for record in records(log)}
    assert latest == {b"%d/%d" % (t, k): b"%d" % (count - 40 + k) for t in range(3) for k in range(40)}
    for thread in range(3):
        assert put(log, b"next", producer=(thread, 0, count)) == log.next_offset - 1
    log.close()


class InterruptingIndex(MemoryIndex):
    """Raises when it is told of a batch: right after the write, and before the log has taken note of it."""

    __slots__ = ("armed",)

    def add(self, entry: IndexEntry) -> None:
        if getattr(self, "armed", False):
            self.armed = False
            raise KeyboardInterrupt
        super().add(entry)


def test_what_an_interrupted_append_has_written_is_taken_back_by_the_next() -> None:
    files, index = FaultyFiles(), InterruptingIndex()
    log = open_log(files, index=index)
    put(log, bytes(100_000))
    index.armed = True
    with pytest.raises(KeyboardInterrupt):
        log.append([batch_of(b"interrupted %d" % number) for number in range(3)])
    put(log, b"short")
    files.kill()
    log = open_log(files)
    assert log.recovered.damage == ()
    assert values(log)[1:] == [b"short"]


def test_a_sync_that_is_interrupted_is_made_up_for() -> None:
    files = FaultyFiles()
    log = open_log(files)
    put(log, b"a")

    def interrupt(path: str) -> None:
        files.on_sync = None
        raise KeyboardInterrupt

    log.append([batch_of(b"b")])
    files.on_sync = interrupt
    with pytest.raises(KeyboardInterrupt):
        log.wait_durable(2)
    assert (log.durable_end, log.visible_end()) == (1, 1)
    files.call_log = []
    log.wait_durable(2)
    assert ("sync", segment_path(0)) in files.call_log
    files.power_loss()
    assert values(open_log(files)) == [b"a", b"b"]


# ---------------------------------------------------------------- waiting, parking


def test_a_reader_is_woken_when_the_record_it_waits_for_is_visible(log: PartitionLog) -> None:
    put(log, b"0")
    assert log.wait_for(0, 0)
    assert not log.wait_for(1, 0.01)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.wait_for, 1, DEADLINE)
        put(log, b"1")
        assert waiting.result(DEADLINE)


def test_a_reader_that_waits_is_woken_when_the_log_is_closed(place: Place) -> None:
    log = place.open()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.wait_for, 0, DEADLINE)
        log.close()
        assert waiting.result(DEADLINE / 2) is False


def test_a_parked_log_holds_no_files_and_works_on() -> None:
    files = FaultyFiles()
    log = open_log(files, segment_bytes=300)
    put_many(log, 10)
    assert files.open_files == 1
    log.park()
    assert files.open_files == 0
    log.park()
    assert offsets(log) == list(range(10))
    assert files.open_files == 0
    put_many(log, 3)
    assert files.open_files == 1
    log.append([batch_of(b"parked before its sync")])
    log.park()
    log.sync()
    assert files.open_files == 0
    files.power_loss()
    log = open_log(files)
    assert log.next_offset == 14
    log.close()
    assert files.open_files == 0


def test_a_log_can_be_parked_while_it_is_synced() -> None:
    files = FaultyFiles()
    log = open_log(files)
    syncing, go_on = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        if path.endswith(".seg") and writer.is_alive():
            syncing.set()
            assert go_on.wait(DEADLINE)

    writer = threading.Thread(target=lambda: None)
    put(log, b"0")
    files.on_sync = hold
    writer = threading.Thread(target=lambda: put(log, b"1"))
    writer.start()
    assert syncing.wait(DEADLINE)
    log.park()
    go_on.set()
    writer.join(DEADLINE)
    assert (log.durable_end, values(log)) == (2, [b"0", b"1"])
