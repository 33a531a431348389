"""What a partition log does when disks, machines and processes fail. The faults themselves: tests/faulty_files.py.

The tests that try many seeds say in their failures which seed it was; `run_schedule(seed, flush)` replays it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dq.engine.errors import (
    Corruption,
    DiskFull,
    DQError,
    PartitionFailed,
    StorageError,
    WriteFailed,
)
from dq.engine.files import OsFiles
from dq.engine.segments.batch import HEADER_SIZE, Record, encode, pack_header
from dq.engine.segments.compaction import compact
from dq.engine.segments.config import FLUSH_MODES, Flush, LogConfig
from dq.engine.segments.log import PartitionLog
from dq.engine.segments.retention import apply_retention
from dq.engine.segments.segment import SEGMENT_HEADER_SIZE
from tests.clocks import ManualClock
from tests.faulty_files import CrashPoint, FaultyFiles, seed_in_failures
from tests.segments.log_tools import (
    DIRECTORY,
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
    read_on,
    records,
    segment_path,
    values,
)
from tests.segments.partition_model import Partition

QUICK_SEEDS = {"always": 320, "interval": 120, "os": 120}
SOAK_SEEDS = 20_000
DEADLINE = 20.0


@pytest.fixture(autouse=True)
def no_log_output() -> Iterator[None]:
    """Damage is logged, and these tests make a lot of it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# ---------------------------------------------------------------- torn tails


def test_a_torn_tail_is_cut_at_the_last_whole_batch() -> None:
    """Wherever the last write was cut off when the process died."""
    original = FaultyFiles()
    log = open_log(original)
    for base in range(0, 9, 3):
        put(log, *(numbered(base + n) for n in range(3)))
    ends = {position + header.size: header.next_offset for _, position, header in headers(log)}
    size = log.size()
    for cut in range(size + 1):
        files = original.copy()
        delete_checkpoints(files)
        files.cut(segment_path(0), cut)
        log = open_log(files)
        end = max((offset for position, offset in ends.items() if position <= cut), default=0)
        with seed_in_failures(f"cut at {cut}"):
            assert (log.next_offset, offsets(log), log.recovered.damage) == (end, list(range(end)), ())
            assert put(log, b"next") == end
            log.close()
            log = open_log(files)
            assert values(log) == [*(numbered(n) for n in range(end)), b"next"]


def test_a_torn_tail_behind_a_checkpoint_is_cut_at_the_last_whole_batch() -> None:
    original = FaultyFiles()
    log = open_log(original, segment_bytes=400)
    put_many(log, 5)
    log.checkpoint()
    kept = log.next_offset
    last = log.segments()[-1]
    checkpoint_at = log._position
    put_many(log, 1)
    for cut in range(checkpoint_at, log._position):
        files = original.copy()
        files.cut(segment_path(last), cut)
        log = open_log(files)
        with seed_in_failures(f"cut at {cut}"):
            assert (log.next_offset, offsets(log)) == (kept, list(range(kept)))
            assert put(log, b"next") == kept


def test_a_segment_that_was_being_created_is_taken_away() -> None:
    original = FaultyFiles()
    log = open_log(original)
    put_many(log, 3)
    log.roll()
    for cut in range(SEGMENT_HEADER_SIZE):
        files = original.copy()
        files.cut(segment_path(3), cut)
        log = open_log(files)
        assert (log.next_offset, log.segments()) == (3, (0,))
        assert put(log, b"next") == 3
        assert offsets(log) == [0, 1, 2, 3]


def test_offsets_go_on_when_the_header_of_the_only_segment_is_lost() -> None:
    """An offset names one record for ever, also when all records are gone."""
    files, clock = FaultyFiles(), ManualClock(NOW)
    log = open_log(files, clock, retention_age=SECOND)
    put_many(log, 5)
    clock.advance(60 * SECOND)
    apply_retention(log, clock)
    assert log.segments() == (5,)
    log.close()
    delete_checkpoints(files)
    files.flip(segment_path(5), 100)
    for _ in range(3):
        log = open_log(files)
        assert log.next_offset == 5
        log.close()
        files.kill()
        delete_checkpoints(files)
    assert put(open_log(files), b"next") == 5


def test_offsets_go_on_when_all_segments_are_gone() -> None:
    files = FaultyFiles()
    log = open_log(files)
    put_many(log, 5)
    log.close()
    files.remove(segment_path(0))
    log = open_log(files)
    assert (log.next_offset, log.recovered.lost_offsets) == (5, 5)
    assert put(log, b"next") == 5


def test_batches_inside_a_torn_batch_are_not_taken_for_its_followers() -> None:
    """Somebody may keep batches in records: a torn tail must not bring them to life."""
    inner = encode([b"forged"], base_offset=7, timestamp=NOW).to_bytes()
    files = FaultyFiles()
    log = open_log(files)
    put_many(log, 3)
    [(_, position, header)] = headers(log)[-1:]
    end = position + header.size
    put(log, b"before" + inner + b"after")
    files.kill()
    files.cut(segment_path(0), end + HEADER_SIZE + len(inner) + 12)
    log = open_log(files)
    assert (log.next_offset, log.recovered.damage, offsets(log)) == (3, (), [0, 1, 2])


def test_batches_inside_a_damaged_body_are_not_taken_for_its_followers() -> None:
    inner = encode([b"forged"], base_offset=1, timestamp=NOW).to_bytes()
    files = FaultyFiles()
    log = open_log(files)
    put(log, b"before" + inner + b"after")
    put(log, b"genuine")
    files.flip(segment_path(0), (SEGMENT_HEADER_SIZE + HEADER_SIZE) * 8)
    found, damage = read_on(log)
    assert [record.value for record in found] == [b"genuine"]
    assert [(error.offset, error.resume_offset) for error in damage] == [(0, 1)]
    files.kill()
    delete_checkpoints(files)
    found, _ = read_on(open_log(files))
    assert [record.value for record in found] == [b"genuine"]


# ---------------------------------------------------------------- flipped bits


def bits_of(log: PartitionLog, number: int) -> tuple[str, range, int, int]:
    """The bits of a batch, and the offsets it covers."""
    base, position, header = headers(log)[number]
    return segment_path(base), range(position * 8, (position + header.size) * 8), header.base_offset, header.next_offset


def log_of_nine(files: FaultyFiles) -> PartitionLog:
    """Three segments of three batches of two records each."""
    log = open_log(files, segment_bytes=520)
    for base in range(0, 18, 2):
        put(log, numbered(base), numbered(base + 1), keys=[b"k%d" % base, None])
    assert log.segments() == (0, 6, 12)
    return log


@pytest.mark.parametrize("batch", [0, 2, 4, 7, 8], ids="batch{}".format)
def test_no_flipped_bit_is_ever_read_as_data_and_none_costs_other_batches(batch: int) -> None:
    """First and last of a sealed segment, in the middle of one, in the active one, the last of all."""
    files = FaultyFiles()
    log_of_nine(files).close()
    log = open_log(files)
    everything = records(log)
    path, bits, first, end = bits_of(log, batch)
    others = [record for record in everything if not first <= record.offset < end]
    for bit in bits:
        files.flip(path, bit)
        with seed_in_failures(f"bit {bit}"):
            found, damage = read_on(log)
            assert found == others
            assert [(error.offset, error.file) for error in damage] == [(first, path)]
            assert damage[0].resume_offset == (end if end < 18 else None)
            if bit % 37 == 0:
                check_reading_around(log, others, first, end)
        files.flip(path, bit)
    assert records(log) == everything


@pytest.mark.parametrize("batch", [0, 4, 7, 8], ids="batch{}".format)
@pytest.mark.parametrize("checkpoints", ["kept", "lost"])
def test_recovery_cuts_nothing_on_account_of_a_flipped_bit_unless_it_is_the_last_batch(
    batch: int, checkpoints: str
) -> None:
    original = FaultyFiles()
    log = log_of_nine(original)
    everything = records(log)
    path, bits, first, end = bits_of(log, batch)
    others = [record for record in everything if not first <= record.offset < end]
    for bit in bits[::3]:
        files = original.copy()
        if checkpoints == "lost":
            delete_checkpoints(files)
        files.flip(path, bit)
        log = open_log(files)
        with seed_in_failures(f"bit {bit}"):
            assert read_on(log)[0] == others
            # Nothing tells a damaged last batch from a torn tail.
            assert log.next_offset == (16 if batch == 8 else 18)
            assert put(log, b"next") == log.next_offset - 1
            assert [record.value for record in read_on(log)[0]] == [*(record.value for record in others), b"next"]


def check_reading_around(log: PartitionLog, others: list[Record], first: int, end: int) -> None:
    """A reader that begins in the damage, or anywhere behind it, is not held up either."""
    resume = end if end < 18 else None
    for start in range(first, 19):
        found, damage = read_on(log, start)
        assert found == [record for record in others if record.offset >= start]
        assert [error.resume_offset for error in damage] == ([resume] if start < end else [])


def test_a_flipped_bit_in_the_header_of_a_segment_costs_nothing() -> None:
    original = FaultyFiles()
    everything = records(log_of_nine(original))
    for base in (0, 6, 12):
        for bit in range(base % 5, SEGMENT_HEADER_SIZE * 8, 3):
            for checkpoints in ("kept", "lost"):
                files = original.copy()
                if checkpoints == "lost":
                    delete_checkpoints(files)
                files.flip(segment_path(base), bit)
                log = open_log(files)
                with seed_in_failures(f"bit {bit} of segment {base}, checkpoints {checkpoints}"):
                    assert records(log) == everything
                    assert log.offset_at_time(NOW) == 0
                    assert log.offset_at_time(NOW + 1) == 18
                    assert put(log, b"next") == 18


def test_damage_before_batches_that_followed_a_sync_is_reported_and_not_cut() -> None:
    """Even after a power loss and without any checkpoint, when pages may be missing anywhere."""
    original = FaultyFiles()
    log = open_log(original)
    log.append([batch_of(b"0"), batch_of(b"1"), batch_of(b"2")])
    log.sync()
    put(log, b"3")
    log.append([batch_of(b"4"), batch_of(b"5")])
    log.sync()
    assert after_sync_flags(log) == [True, False, False, True, True, False]
    places = headers(log)
    for number in range(6):
        files = original.copy()
        files.power_loss()
        delete_checkpoints(files)
        _, position, header = places[number]
        files.flip(segment_path(0), (position + HEADER_SIZE) * 8)
        log = open_log(files)
        expected = [b"%d" % n for n in range(6) if n != number]
        if number >= 4:  # no batch behind it says that it had been synced: this is what a torn tail looks like
            assert (log.recovered.damage, values(log)) == ((), expected[:number])
            continue
        [damage] = log.recovered.damage
        assert (damage.file, damage.position) == (segment_path(0), position)
        assert (damage.offset, damage.resume_offset) == (header.base_offset, header.next_offset)
        assert [record.value for record in read_on(log)[0]] == expected
        assert put(log, b"next") == 6


def test_damage_without_a_power_loss_is_never_cut_while_anything_follows() -> None:
    files = FaultyFiles()
    log = open_log(files, flush="os")
    log.append([batch_of(b"%d" % n) for n in range(5)])
    log.append([batch_of(b"5")])
    assert after_sync_flags(log)[1:] == [False] * 5
    _, position, _ = headers(log)[1]
    files.kill()
    files.flip(segment_path(0), (position + 20) * 8)
    log = open_log(files, flush="os")
    assert log.next_offset == 6
    assert [record.offset for record in read_on(log)[0]] == [0, 2, 3, 4, 5]


def test_a_whole_damaged_segment_between_others_is_passed_over() -> None:
    files = FaultyFiles()
    log_of_nine(files)
    files.kill()
    delete_checkpoints(files)
    for bit in range(0, 400 * 8, 97):
        files.flip(segment_path(6), bit)
    log = open_log(files)
    assert log.next_offset == 18
    found, damage = read_on(log)
    assert [record.offset for record in found] == [0, 1, 2, 3, 4, 5, *range(12, 18)]
    assert [(error.offset, error.resume_offset) for error in damage] == [(6, 12)]


def test_looking_up_a_time_in_a_damaged_segment_says_where_the_damage_is() -> None:
    files = FaultyFiles()
    log = open_log(files)
    for number in range(5):
        put(log, b"%d" % number, timestamp=NOW + number)
    _, position, _ = headers(log)[2]
    files.flip(segment_path(0), position * 8)
    assert log.offset_at_time(NOW + 1) == 1
    with pytest.raises(Corruption) as caught:
        log.offset_at_time(NOW + 3)
    assert (caught.value.offset, caught.value.resume_offset) == (2, 3)


def test_files_that_somebody_cut_are_noticed_and_old_checkpoints_do_not_come_back() -> None:
    files = FaultyFiles()
    log = open_log(files)
    put_many(log, 10)
    log.close()
    files.cut(segment_path(0), SEGMENT_HEADER_SIZE)
    log = open_log(files)
    assert (log.next_offset, log.recovered.lost_offsets) == (0, 10)
    for number in range(14):  # beyond where the old checkpoint stood, at other batch boundaries
        put(log, b"%d" % number * 3)
    files.kill()
    log = open_log(files)
    assert values(log) == [b"%d" % number * 3 for number in range(14)]


# ---------------------------------------------------------------- seeded schedules


class Schedule:
    """A random life of a partition: what writers, operators, disks and machines do to it, from one seed."""

    def __init__(self, seed: int, flush: Flush, *, faults: bool = False) -> None:
        self.random = random.Random(seed)
        choose = self.random.choice
        self.files = FaultyFiles(seed, page=choose([64, 256, 4096]))
        self.faults = faults
        self.partition = Partition(
            self.files,
            LogConfig(
                flush=flush,
                segment_bytes=choose([600, 2000, 10_000]),
                checkpoint_bytes=choose([300, 2000, 1 << 20]),
                retention_bytes=choose([1500, 5000]),
                tombstone_age=3600 * SECOND,
            ),
        )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            roll = self.random.random()
            if roll < 0.03:
                self.partition.reopen_cleanly()
            elif roll < 0.08:
                self._crash_and_reopen()
            elif roll < 0.16:
                self._crash_in_the_middle()
            elif roll < 0.22 and self.faults:
                self._errors_for_a_while()
            else:
                self._step()
        self.partition.check()

    def _step(self) -> None:
        partition, chance = self.partition, self.random
        end = partition.log.next_offset
        actions: list[tuple[int, Callable[[], object]]] = [
            (8, lambda: self._append(wait=True)),
            (4, lambda: self._append(wait=False)),
            (2, partition.roll),
            (1, partition.sync),
            (1, partition.checkpoint),
            (1, lambda: partition.truncate(chance.randint(max(end - 8, 0), end))),
            (1, partition.apply_retention),
            (1, partition.compact),
            (2, lambda: partition.retry(chance.choice([1, 2]))),
            (1, partition.check),
            (1, lambda: partition.check_time(partition.clock.now() + chance.randint(-100, 100) * SECOND)),
            (1, lambda: partition.check_read_from(chance.randint(0, end))),
            (1, lambda: partition.clock.advance(chance.choice([1, SECOND, 3600 * SECOND]))),
        ]
        [(_, action)] = chance.choices(actions, [weight for weight, _ in actions])
        action()

    def _append(self, *, wait: bool) -> None:
        chance = self.random
        count = chance.randint(1, 3)
        self.partition.append(
            [chance.randint(8, 400) for _ in range(count)],
            keys=[chance.choice([None, b"a", b"b", b"c"]) for _ in range(count)] if chance.random() < 0.7 else None,
            tombstones=chance.random() < 0.1,
            timestamp=self.partition.clock.now() + (chance.randint(-100, 100) * SECOND if chance.random() < 0.3 else 0),
            producer=chance.choice([None, 1, 2]),
            epoch=self.partition.log.leader_epoch + (chance.random() < 0.1),
            batches=chance.choice([1, 1, 2, 3, 7]),
            wait=wait,
        )

    def _crash_in_the_middle(self) -> None:
        self.files.crash_at(self.random.randint(1, 20))
        try:
            for _ in range(30):
                self._step()
            self.files.crash_at(None)
        except CrashPoint:
            pass
        self._crash_and_reopen()

    def _crash_and_reopen(self) -> None:
        partition, chance = self.partition, self.random
        chance.choice([partition.kill, partition.power_loss])()
        if chance.random() < 0.2:
            partition.delete_checkpoints()
        if chance.random() < 0.3:
            partition.forget_index()
        while True:
            # Opening may crash, too, and be tried again.
            if chance.random() < 0.3:
                self.files.crash_at(chance.randint(1, 8))
            try:
                partition.reopen()
                self.files.crash_at(None)
                return
            except CrashPoint:
                chance.choice([partition.kill, partition.power_loss])()

    def _errors_for_a_while(self) -> None:
        partition, chance = self.partition, self.random
        # With flush="os" nothing is written a second time after a failed sync: see `_write_again`.
        calls = ["full", "write", "rename", "truncate", "remove", "create"]
        call = chance.choice(calls if partition.config.flush == "os" else [*calls, "sync", "sync", "sync_directory"])
        if call == "full":
            self.files.fill_up(chance.randint(0, 1500))
        else:
            self.files.fail(call)
            if call == "write" and chance.random() < 0.3:
                self.files.fail("truncate")
        for _ in range(chance.randint(1, 8)):
            try:
                self._step()
            except PartitionFailed:
                break
            except (WriteFailed, OSError):
                partition.check()
            except StorageError as error:
                assert "is not compacted" in str(error)  # noqa: PT017
        self.files.stop_failing()
        self.files.fill_up(None)
        if partition.log.closed:
            partition.failed()
            if chance.random() < 0.5:
                partition.log.close()
            self._crash_and_reopen()
        else:
            partition.check()


def run_schedule(seed: int, flush: Flush, *, faults: bool = False, steps: int = 40) -> None:
    with seed_in_failures(f"{seed}, flush={flush!r}, faults={faults}"):
        Schedule(seed, flush, faults=faults).run(steps)


@pytest.mark.parametrize("flush", FLUSH_MODES)
def test_crashes_lose_nothing_that_was_promised_and_need_no_repair(flush: Flush) -> None:
    for seed in range(QUICK_SEEDS[flush]):
        run_schedule(seed, flush)


@pytest.mark.parametrize("flush", FLUSH_MODES)
def test_crashes_and_errors_together_lose_nothing_that_was_promised(flush: Flush) -> None:
    for seed in range(QUICK_SEEDS[flush] // 2):
        run_schedule(seed, flush, faults=True)


@pytest.mark.soak
@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("flush", FLUSH_MODES)
def test_far_more_crashes_lose_nothing_that_was_promised(flush: Flush, faults: bool) -> None:
    for seed in range(10_000, 10_000 + SOAK_SEEDS):
        run_schedule(seed, flush, faults=faults, steps=100)


# ---------------------------------------------------------------- what the flush modes promise


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("flush", FLUSH_MODES)
def test_a_killed_process_loses_nothing_that_it_wrote(flush: Flush, seed: int) -> None:
    files = FaultyFiles(seed)
    log = open_log(files, flush=flush, segment_bytes=1000)
    for number in range(50):
        log.append([batch_of(b"%d" % number)])
    files.kill()
    assert values(open_log(files, flush=flush)) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("flush", ["interval", "os"])
def test_a_power_loss_takes_at_most_what_came_after_the_last_sync(flush: Flush, seed: int) -> None:
    files = FaultyFiles(seed, page=256)
    log = open_log(files, flush=flush, segment_bytes=1000)
    for number in range(60):
        log.append([batch_of(b"%d" % number)])
        if number in (20, 40):
            log.sync()
    files.power_loss()
    log = open_log(files, flush=flush)
    assert 41 <= log.next_offset <= 60
    assert log.recovered.damage == ()
    assert values(log) == [b"%d" % number for number in range(log.next_offset)]


@pytest.mark.parametrize("seed", range(20))
def test_a_new_segment_is_as_durable_as_what_is_in_it(seed: int) -> None:
    """Syncing a file is not enough while its name is not synced."""
    files = FaultyFiles(seed)
    log = open_log(files, flush="os")
    log.append([batch_of(b"a")])
    log.sync()
    log.roll()
    log.append([batch_of(b"b")])
    log.sync()
    files.power_loss()
    assert values(open_log(files)) == [b"a", b"b"]


@pytest.mark.parametrize("seed", range(30))
def test_a_name_that_a_killed_process_left_unsynced_is_synced_by_the_next(seed: int) -> None:
    files = FaultyFiles(seed)
    log = open_log(files)
    put(log, b"a")
    files.call_log = []
    log.roll()
    created = [call for call, _ in files.call_log].index("sync_directory") + 1
    for calls in range(1, created + 1):
        with seed_in_failures(f"{seed}, crash in call {calls}"):
            files = FaultyFiles(seed)
            log = open_log(files)
            put(log, b"a")
            files.crash_at(calls)
            with pytest.raises(CrashPoint):
                log.roll()
            files.kill()
            log = open_log(files)
            put(log, b"b")
            files.power_loss()
            assert values(open_log(files)) == [b"a", b"b"]


def test_what_a_torn_tail_leaves_behind_does_not_come_back() -> None:
    """Segments that recovery has removed must stay removed when the power fails once more."""
    for seed in range(200):
        with seed_in_failures(seed):
            files = FaultyFiles(seed, page=64)
            log = open_log(files, segment_bytes=500)
            put_many(log, 3)
            for number in range(3, 15):
                log.append([batch_of(b"lost %d" % number, producer=(1, 0, number - 3))])
            files.power_loss()
            log = open_log(files, segment_bytes=500)
            survived = log.next_offset
            for number in range(survived, 15):
                put(log, b"lost %d" % number, producer=(1, 0, number - 3))
            before = values(log)
            files.power_loss()
            log = open_log(files)
            assert values(log) == before
            assert len(set(before)) == 15


@pytest.mark.parametrize("flush", FLUSH_MODES)
@pytest.mark.parametrize("crash", ["kill", "power_loss"])
def test_a_batch_that_a_crash_kept_from_being_written_is_not_taken_for_a_duplicate(crash: str, flush: Flush) -> None:
    """Whatever call the process died in, also when the append had to begin a new segment."""
    for call in range(1, 20):
        files = FaultyFiles(call)
        log = open_log(files, flush=flush, segment_bytes=300, checkpoint_bytes=1)
        put(log, numbered(0, 100), producer=(7, 0, 0))
        log.sync()
        files.crash_at(call)
        with contextlib.suppress(CrashPoint):
            put(log, numbered(1, 100), producer=(7, 0, 1))
        getattr(files, crash)()
        log = open_log(files, flush=flush)
        with seed_in_failures(f"{call}"):
            assert put(log, numbered(1, 100), producer=(7, 0, 1)) == 1
            assert values(log) == [numbered(0, 100), numbered(1, 100)]


# ---------------------------------------------------------------- failed syncs


@pytest.mark.parametrize("seed", range(30))
def test_a_failed_sync_closes_the_partition_for_writing(seed: int) -> None:
    files = FaultyFiles(seed, page=64)
    log = open_log(files)
    put_many(log, 5)
    log.append([batch_of(b"not acknowledged")])
    files.fail("sync")
    with pytest.raises(PartitionFailed):
        log.wait_durable(6)
    for write in (lambda: log.append([batch_of(b"x")]), log.roll, log.checkpoint, log.sync, lambda: log.truncate(0)):
        with pytest.raises(PartitionFailed):
            write()
    assert offsets(log) == list(range(5))  # what was visible can still be read
    log.wait_durable(5)
    log.close()
    files.kill()
    log = open_log(files)
    shown = values(log)
    assert shown[:5] == [numbered(number) for number in range(5)]
    put(log, b"after")
    files.power_loss()
    assert values(open_log(files)) == [*shown, b"after"]


@pytest.mark.parametrize("flush", ["always", "interval"])
def test_after_a_failed_sync_nothing_becomes_visible_and_then_vanishes(flush: Flush) -> None:
    """The page cache shows what the disk never got, and the next sync says that all is well."""
    for seed in range(100):
        with seed_in_failures(seed):
            files = FaultyFiles(seed, page=64)
            log = open_log(files, flush=flush, segment_bytes=400)
            put_many(log, 4)
            log.sync()
            for number in range(4, 12):  # over several segments
                log.append([batch_of(numbered(number))])
            files.fail("sync", times=1 + seed % 3)
            with pytest.raises(PartitionFailed):
                log.sync()
            if seed % 2:
                log.close()
            files.kill()
            log = open_log(files, flush=flush)
            shown = values(log)
            assert shown == [numbered(number) for number in range(len(shown))]
            assert len(shown) >= (4 if flush == "always" else 12)
            files.power_loss()
            assert values(open_log(files, flush=flush)) == shown


def test_every_thread_that_waits_learns_of_a_failed_sync() -> None:
    files = FaultyFiles()
    log = open_log(files)
    put(log, b"first")
    syncing, go_on = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        syncing.set()
        assert go_on.wait(DEADLINE)

    files.on_sync = hold
    files.fail("sync")

    def write(number: int) -> str:
        try:
            log.append([batch_of(b"%d" % number)])
            written.release()
            log.wait_durable(log.next_offset)
        except PartitionFailed:
            return "failed"
        return "acknowledged"

    written = threading.Semaphore(0)
    with ThreadPoolExecutor(8) as pool:
        outcomes = [pool.submit(write, 0)]
        assert syncing.wait(DEADLINE)
        outcomes += [pool.submit(write, number) for number in range(1, 8)]
        for _ in range(8):
            assert written.acquire(timeout=DEADLINE)
        go_on.set()
        assert {outcome.result(DEADLINE) for outcome in outcomes} == {"failed"}
    with pytest.raises(PartitionFailed):
        log.append([batch_of(b"x")])
    assert values(log) == [b"first"]
    assert log.wait_for(1, DEADLINE) is False


# ---------------------------------------------------------------- full disks and failing writes


@pytest.mark.parametrize("flush", FLUSH_MODES)
@pytest.mark.parametrize("free", [*range(0, 700, 13), 5000])
def test_a_full_disk_refuses_appends_until_there_is_space_and_loses_nothing(free: int, flush: Flush) -> None:
    files = FaultyFiles(free)
    log = open_log(files, flush=flush, segment_bytes=500)
    put_many(log, 3, size=100)
    stored = values(log)
    files.fill_up(free)
    full = False
    for number in range(3, 12):
        value = numbered(number, 100)
        try:
            put(log, value, producer=(7, 0, len(stored)))
            stored.append(value)
        except DiskFull as error:
            full = True
            assert error.cause.errno == errno.ENOSPC  # noqa: PT017
        assert values(log) == stored
    assert full == (free < 5000)
    files.fill_up(None)
    put(log, b"there is space again", producer=(7, 0, len(stored)))
    stored.append(b"there is space again")
    assert values(log) == stored
    files.kill()
    assert values(open_log(files, flush=flush)) == stored


@pytest.mark.parametrize("call", ["write", "create", "truncate", "sync", "sync_directory"])
def test_an_error_while_a_segment_is_created_leaves_the_log_usable(call: str) -> None:
    for seed in range(20):
        files = FaultyFiles(seed)
        log = open_log(files, segment_bytes=600)
        put_many(log, 3)
        files.fail(call, where=DIRECTORY if call == "sync_directory" else segment_path(log.next_offset))
        with pytest.raises(WriteFailed):
            log.roll()
        assert log.segments() == (0,)
        put_many(log, 7)
        assert offsets(log) == list(range(10))
        files.power_loss()
        assert offsets(open_log(files)) == list(range(10))


def test_a_segment_that_can_neither_be_created_nor_removed_stops_the_partition() -> None:
    """It would otherwise lie between the batches that are written from there on."""
    files = FaultyFiles()
    log = open_log(files)
    put_many(log, 3)
    files.fail("write", where=segment_path(3))
    files.fail("remove", where=segment_path(3))
    with pytest.raises(WriteFailed):
        log.roll()
    with pytest.raises(PartitionFailed):
        put(log, b"x")
    files.kill()
    log = open_log(files)
    put_many(log, 3)
    assert offsets(log) == list(range(6))


@pytest.mark.parametrize("seed", range(20))
def test_a_write_that_fails_is_taken_back(seed: int) -> None:
    files = FaultyFiles(seed)
    log = open_log(files)
    put_many(log, 3)
    files.fail("write", where=".seg")
    with pytest.raises(WriteFailed) as caught:
        log.append([batch_of(b"no", producer=(7, 0, 0)), batch_of(b"no", producer=(7, 0, 1))])
    assert (caught.value.cause.errno, log.next_offset) == (errno.EIO, 3)
    assert put(log, b"yes", producer=(7, 0, 0)) == 3
    files.kill()
    assert values(open_log(files))[3:] == [b"yes"]


@pytest.mark.parametrize("seed", range(20))
def test_a_write_that_cannot_be_taken_back_stops_the_partition(seed: int) -> None:
    files = FaultyFiles(seed)
    log = open_log(files)
    put_many(log, 3)
    files.fail("write", where=".seg")
    files.fail("truncate", where=".seg")
    with pytest.raises(PartitionFailed):
        log.append([batch_of(b"perhaps")])
    with pytest.raises(PartitionFailed):
        log.append([batch_of(b"no")])
    files.kill()
    log = open_log(files)
    assert values(log) in ([numbered(n) for n in range(3)], [*(numbered(n) for n in range(3)), b"perhaps"])


@pytest.mark.parametrize("call", ["write", "create", "truncate", "sync", "rename", "sync_directory", "remove"])
@pytest.mark.parametrize("number", range(4))
def test_a_truncation_that_fails_half_way_leaves_a_log_that_can_be_opened(call: str, number: int) -> None:
    for seed in range(10):
        with seed_in_failures(seed):
            files = FaultyFiles(seed)
            log = open_log(files, segment_bytes=400)
            put_many(log, 12)
            files.fail(call, times=number + 1)
            for _ in range(number):  # so that it is not always the first call that fails
                files.chance.random()
            try:
                log.truncate(4)
            except PartitionFailed:
                pass
            except DQError as error:
                raise AssertionError("only a failed partition tells that nobody knows") from error
            files.kill()
            log = open_log(files, segment_bytes=400)
            end = log.next_offset
            assert 4 <= end <= 12
            assert values(log) == [numbered(n) for n in range(end)]
            # Beyond where any checkpoint of the former life stood, with batches of other sizes.
            put_many(log, 15, size=23)
            before = values(log)
            files.kill()
            assert values(open_log(files)) == before


def test_a_compaction_that_cannot_write_its_checkpoint_does_not_begin() -> None:
    """Older checkpoints name places in the files that it would replace."""
    files, clock = FaultyFiles(), ManualClock(NOW)
    log = open_log(files, clock, segment_bytes=400)
    for number in range(20):
        put(log, numbered(number), keys=[b"k"])
    before = records(log)
    files.fail("write", where="checkpoint")
    with pytest.raises(StorageError):
        compact(log, clock)
    assert records(log) == before
    assert compact(log, clock).records_removed > 0


def test_a_compaction_that_fills_the_disk_takes_its_file_away() -> None:
    files, clock = FaultyFiles(), ManualClock(NOW)
    log = open_log(files, clock, segment_bytes=2000)
    for number in range(40):
        put(log, numbered(number, 50), keys=[b"k%d" % (number % 9)])
    before = records(log)
    files.fail("write", where=".compacted", number=errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        compact(log, clock)
    assert [name for name in files.list(DIRECTORY) if name.endswith(".compacted")] == []
    assert records(log) == before


def test_what_a_crash_left_of_a_compaction_is_taken_away() -> None:
    files, clock = FaultyFiles(), ManualClock(NOW)
    log = open_log(files, clock, segment_bytes=2000)
    for number in range(40):
        put(log, numbered(number, 50), keys=[b"k%d" % (number % 9)])
    files.call_log = []
    files.crash_at(12)
    with pytest.raises(CrashPoint):
        compact(log, clock)
    files.kill()
    assert [name for name in files.list(DIRECTORY) if name.endswith(".compacted")]
    open_log(files)
    assert [name for name in files.list(DIRECTORY) if name.endswith(".compacted")] == []


def test_retention_that_cannot_remove_a_file_leaves_no_hole() -> None:
    files, clock = FaultyFiles(), ManualClock(NOW)
    log = open_log(files, clock, segment_bytes=400, retention_bytes=1)
    put_many(log, 12)
    files.fail("remove", where=segment_path(0))
    with pytest.raises(OSError, match="Input/output"):
        apply_retention(log, clock)
    assert log.start_offset == 0
    assert offsets(log) == list(range(12))
    assert apply_retention(log, clock)[0] == 0


# ---------------------------------------------------------------- a crash in every single call


def eventful_life(partition: Partition) -> None:
    """Everything that changes files, in an order in which each finds something to do."""
    for number in range(6):
        partition.append([60, 20], keys=[b"a", b"b"], producer=1, epoch=1 + number // 3)
    partition.append([30], keys=[b"c"], wait=False)
    partition.roll()
    partition.append([40], producer=2, batches=3)
    partition.checkpoint()
    partition.append([40], keys=[b"b"], producer=2, batches=2, wait=False)
    partition.truncate(partition.log.next_offset - 1)
    partition.append([50, 50], keys=[b"a", b"c"], producer=1)
    partition.roll()
    partition.compact()
    for _ in range(8):
        partition.append([80], keys=[b"a"], producer=2)
    partition.apply_retention()
    partition.sync()
    partition.compact()
    partition.append([70], producer=1)
    partition.truncate(partition.log.segments()[-1])
    partition.append([70], producer=1)
    partition.reopen_cleanly()
    partition.append([70], producer=1)
    partition.check()


def partition_for_life(seed: int, flush: Flush) -> Partition:
    config = LogConfig(flush=flush, segment_bytes=600, retention_bytes=1500, checkpoint_bytes=1000)
    return Partition(FaultyFiles(seed, page=64), config)


@pytest.mark.parametrize("crash", ["kill", "power_loss"])
@pytest.mark.parametrize("flush", FLUSH_MODES)
def test_after_a_crash_in_any_single_call_all_promises_hold(flush: Flush, crash: str) -> None:
    healthy = partition_for_life(0, flush)
    eventful_life(healthy)
    calls = healthy.files.calls
    assert calls > 150
    for call in range(1, calls + 1):
        for seed in range(2):
            with seed_in_failures(f"{seed}, crash in call {call}"):
                partition = partition_for_life(1000 * call + seed, flush)
                partition.files.crash_at(call)
                try:
                    eventful_life(partition)
                except CrashPoint:
                    pass
                getattr(partition, crash)()
                partition.reopen()
                partition.append([33], producer=1)
                partition.retry(1)
                partition.retry(2)
                partition.check()
                # And once more, so that what the first recovery wrote is tried as well.
                partition.power_loss()
                partition.reopen()


@pytest.mark.soak
@pytest.mark.parametrize("flush", FLUSH_MODES)
def test_after_crashes_in_any_two_calls_all_promises_hold(flush: Flush) -> None:
    healthy = partition_for_life(0, flush)
    eventful_life(healthy)
    for call in range(1, healthy.files.calls + 1):
        for second in range(1, 25):
            with seed_in_failures(f"crash in call {call} and then in call {second} of opening and going on"):
                partition = partition_for_life(100 * call + second, flush)
                partition.files.crash_at(call)
                try:
                    eventful_life(partition)
                except CrashPoint:
                    pass
                partition.files.chance.choice([partition.kill, partition.power_loss])()
                partition.files.crash_at(second)
                try:
                    partition.reopen()
                    eventful_life(partition)
                except CrashPoint:
                    pass
                partition.files.chance.choice([partition.kill, partition.power_loss])()
                partition.reopen()


# ---------------------------------------------------------------- the real file system, with short reads and writes


def test_short_reads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    chance = random.Random(1)
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, chance.randint(1, max(size, 1)), at))
    log = open_log(OsFiles(), directory=str(tmp_path / "log"), segment_bytes=50_000)
    expected: list[bytes | None] = [chance.randbytes(chance.randint(0, 9000)) for _ in range(40)]
    for value in expected:
        put(log, value)
    assert values(log) == expected
    log.close()
    log = open_log(OsFiles(), directory=str(tmp_path / "log"))
    assert values(log) == expected
    log.close()


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    chance = random.Random(1)

    def short(fd: int, buffers: Any, position: int) -> int:
        joined = b"".join(buffers)
        return real(fd, [joined[: chance.randint(1, len(joined))]], position)

    monkeypatch.setattr(os, "pwritev", short)
    log = open_log(OsFiles(), directory=str(tmp_path / "log"))
    expected: list[bytes | None] = [chance.randbytes(chance.randint(0, 9000)) for _ in range(20)]
    log.append([batch_of(value) for value in expected])
    log.sync()
    assert values(log) == expected
    log.close()


def test_the_format_survives_what_a_bad_producer_sends_in_a_header() -> None:
    """A header may lie about its body; a reader then gets an error and goes on behind it."""
    log = open_log(FaultyFiles())
    good = batch_of(b"a", b"b")
    lying = good._replace(header=good.header._replace(count=1, span=1))
    log.append([good])
    log.append([lying])
    log.append([good])
    log.sync()
    found, damage = read_on(log)
    assert [record.offset for record in found] == [0, 1, 3, 4]
    assert [(error.offset, error.resume_offset) for error in damage] == [(2, 3)]
    assert pack_header(lying.header) != pack_header(good.header)


def test_what_was_never_synced_is_not_all_written_again_when_it_is_a_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a log that somebody wrote with flush="os" must not take as long as writing it."""
    files = FaultyFiles()
    log = open_log(files, flush="os", segment_bytes=2000)
    put_many(log, 100, size=100)
    files.kill()
    monkeypatch.setattr("dq.engine.segments.log.MOST_REWRITTEN", 3000)
    files.call_log = []
    log = open_log(files)
    assert log.durable_end == 100
    assert {path for call, path in files.call_log if call == "sync"} == {segment_path(base) for base in log.segments()}
    assert len({path for call, path in files.call_log if call == "write" and path.endswith(".seg")}) <= 2
