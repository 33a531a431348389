"""The index in one process: it behaves as the one in memory does, and outlives whatever happens to its directory."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dq.engine.index import environment as environment_module
from dq.engine.index import handle, lmdb_index, store
from dq.engine.index.rebuild import rebuild
from dq.engine.index.state import Verdict, inspect
from dq.engine.segments.positions import IndexEntry, MemoryIndex, PositionIndex
from tests.index.index_tools import (
    BOOT,
    OTHER_TOPIC,
    SPACE,
    TOPIC,
    append,
    assert_answers,
    assert_never_wrong,
    entry_of,
    environment,
    fill,
    in_child,
    open_log,
)

# ---------------------------------------------------------------- the same answers as in memory

OFFSETS = st.integers(0, 60)
PARTITIONS = st.integers(0, 2)
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), PARTITIONS, st.integers(1, 5), st.integers(1, 6)),
    st.tuples(st.just("add"), PARTITIONS, OFFSETS),
    st.tuples(st.sampled_from(["floor", "floor_time", "cut", "drop"]), PARTITIONS, OFFSETS),
    st.tuples(st.just("forget_segment"), PARTITIONS, OFFSETS, OFFSETS),
    st.tuples(st.sampled_from(["flush", "reopen"])),
)


class Pair:
    """The same partition in memory and in LMDB."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.memory = MemoryIndex()
        self.stored: PositionIndex = MemoryIndex()
        self.next_offset = 0
        self.writes = 0

    def both(self, operation: str, *arguments: Any) -> None:
        expected = getattr(self.memory, operation)(*arguments)
        assert getattr(self.stored, operation)(*arguments) == expected

    def add(self, offset: int) -> None:
        """An entry for an offset; positions change from one time to the next, timestamps only grow with the offset."""
        self.writes += 1
        self.both("add", IndexEntry(offset, self.number, self.writes, offset // 4 * 5 - 20))
        self.next_offset = max(self.next_offset, offset)

    def append(self, step: int, count: int) -> None:
        for _ in range(count):
            self.add(self.next_offset + step)

    def compare(self) -> None:
        for at in range(-1, self.next_offset + 2):
            self.both("floor", at)
            self.both("floor_time", at // 4 * 5 - 20)


@given(st.lists(OPERATIONS, max_size=40))
@settings(max_examples=60, deadline=None)
def test_it_answers_as_the_index_in_memory_does(operations: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment_module, "WORTH_OPENING", 0)
        patch.setattr(lmdb_index, "MOST_PENDING", 7)
        pairs = [Pair(number) for number in range(3)]
        index = environment(Path(folder))
        for operation, *arguments in [("reopen",), *operations, ("flush",), ("reopen",)]:
            if operation == "reopen":
                index.close()
                index = environment(Path(folder))
                for pair in pairs:
                    pair.stored = index.partition(TOPIC, pair.number)
            elif operation == "flush":
                index.flush()
            elif operation in ("append", "add"):
                getattr(pairs[arguments[0]], operation)(*arguments[1:])
            else:
                pairs[arguments[0]].both(operation, *arguments[1:])
        for pair in pairs:
            pair.compare()
        index.close()


def test_a_time_is_found_among_many_entries_with_the_same_timestamp(tmp_path: Path) -> None:
    env = environment(tmp_path)
    index, memory = env.partition(TOPIC, 0), MemoryIndex()
    for number in range(2000):
        entry = IndexEntry(number**2, 0, number, (number // 300) * 10)
        index.add(entry)
        memory.add(entry)
    env.flush()
    for timestamp in range(-1, 75):
        assert index.floor_time(timestamp) == memory.floor_time(timestamp)
    env.close()


# ---------------------------------------------------------------- when it is opened and written


def test_a_short_session_leaves_lmdb_alone(tmp_path: Path) -> None:
    env = environment(tmp_path)
    index = env.partition(TOPIC, 0)
    fill(index, 0, 10)
    index.flush()
    index.cut(500)
    index.drop(100)
    assert index.floor(450) == entry_of(400)
    assert index.floor(50) is None
    env.close()
    assert os.listdir(tmp_path) == []


def test_entries_are_there_after_reopening(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for round_number in range(3):
        env = environment(tmp_path)
        index = env.partition(TOPIC, 0)
        assert assert_never_wrong(index, 100 * round_number) == 100 * round_number
        fill(index, 100 * round_number, 100)
        env.close()
    assert caplog.messages == []


def test_other_users_see_entries_of_all_partitions_when_enough_have_come_together(tmp_path: Path) -> None:
    writer, reader = environment(tmp_path), environment(tmp_path, read_only=True)
    fill(writer.partition(TOPIC, 0), 0, 200)
    fill(writer.partition(TOPIC, 1), 0, 55)
    assert reader.partition(TOPIC, 0).floor(0) is None
    fill(writer.partition(TOPIC, 2), 0, 1)
    for partition in range(3):
        assert reader.partition(TOPIC, partition).floor(0) == entry_of(0)
    writer.close()
    reader.close()


def test_other_users_see_entries_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = environment(tmp_path), environment(tmp_path, read_only=True)
    fill(writer.partition(TOPIC, 0), 0, 100)
    monkeypatch.setattr(lmdb_index, "LONGEST_PENDING", -1.0)
    fill(writer.partition(TOPIC, 0), 100, 1)
    assert reader.partition(TOPIC, 0).floor(10_000) == entry_of(10_000)
    writer.close()
    reader.close()


def test_read_only_it_writes_nothing(tmp_path: Path) -> None:
    env = environment(tmp_path)
    fill(env.partition(TOPIC, 0), 0, 100)
    env.close()
    before = (tmp_path / "index/data.mdb").read_bytes(), (tmp_path / "index/state").read_bytes()
    reader = environment(tmp_path, read_only=True)
    index = reader.partition(TOPIC, 0)
    fill(index, 100, 300)
    index.cut(50)
    index.drop(5000)
    index.forget_segment(0, 10_000)
    index.flush()
    reader.forget_topic(TOPIC)
    assert assert_never_wrong(index, 100) == 100
    assert index.floor(1 << 40) == entry_of(9900)
    reader.close()
    assert before == ((tmp_path / "index/data.mdb").read_bytes(), (tmp_path / "index/state").read_bytes())


def test_without_a_directory_a_reader_finds_nothing_and_makes_nothing(tmp_path: Path) -> None:
    reader = environment(tmp_path, read_only=True)
    assert reader.partition(TOPIC, 0).floor(10) is None
    assert reader.partition(TOPIC, 0).floor_time(10) is None
    assert reader.statistics() == (0, 0, 0, 0)
    assert os.listdir(tmp_path) == []
    writer = environment(tmp_path)
    fill(writer.partition(TOPIC, 0), 0, 100)
    writer.flush()
    assert reader.partition(TOPIC, 0).floor(10) == entry_of(0)
    writer.close()
    reader.close()


def test_users_in_one_process_share_one_environment(tmp_path: Path) -> None:
    data, alias = tmp_path / "data", tmp_path / "alias"
    data.mkdir()
    alias.symlink_to(data)
    first = environment(data)
    fill(first.partition(TOPIC, 0), 0, 100)
    first.close()
    reader = environment(alias, read_only=True)
    assert reader.partition(TOPIC, 0).floor(100) == entry_of(100)  # opened to read,
    writer = environment(data)
    fill(writer.partition(TOPIC, 0), 100, 100)  # then to write
    writer.flush()
    assert reader.partition(TOPIC, 0).floor(15_000) == entry_of(15_000)
    writer.close()
    assert reader.partition(TOPIC, 0).floor(15_000) == entry_of(15_000)  # and to read again
    again = environment(data)
    assert again.partition(TOPIC, 0).floor(15_000) == entry_of(15_000)
    reader.close()
    again.close()


def test_statistics_count_entries_and_bytes(tmp_path: Path) -> None:
    env = environment(tmp_path)
    fill(env.partition(TOPIC, 0), 0, 300)
    found = env.statistics()
    assert (found.entries, found.pending) == (256, 44)
    assert found.bytes == os.path.getsize(tmp_path / "index/data.mdb")
    assert found.map_size == handle.SMALLEST_MAP
    env.close()


def test_a_topic_is_forgotten_with_all_its_partitions(tmp_path: Path) -> None:
    env = environment(tmp_path)
    for topic in (TOPIC, OTHER_TOPIC):
        for partition in range(3):
            fill(env.partition(topic, partition), 0, 50)
    env.flush()
    fill(env.partition(TOPIC, 0), 50, 10)
    env.forget_topic(TOPIC)
    for partition in range(3):
        assert env.partition(TOPIC, partition).floor(10_000) is None
        assert env.partition(OTHER_TOPIC, partition).floor(10_000) == entry_of(4900)
    env.close()


# ---------------------------------------------------------------- growth


def test_the_map_grows_while_threads_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "SMALLEST_MAP", 1 << 20)
    monkeypatch.setattr(lmdb_index, "MOST_PENDING", 2000)
    env = environment(tmp_path)
    index = env.partition(TOPIC, 0)
    written = [0]
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        at = seed
        try:
            while written[0] < 120_000:
                at = (at * 31 + 7) % max(written[0], 1)
                assert index.floor(at * SPACE + 50) == (entry_of(at * SPACE) if written[0] else None)
                assert index.floor_time(at * SPACE * 3 + 1) == (entry_of(at * SPACE) if written[0] else None)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=[seed]) for seed in range(3)]
    fill(index, 0, 1)
    written[0] = 1
    for thread in threads:
        thread.start()
    for first in range(1, 120_000, 1000):
        fill(index, first, 1000)
        written[0] = first + 1000
    for thread in threads:
        thread.join()
    assert failures == []
    env.flush()
    statistics = env.statistics()
    assert statistics.entries == written[0]
    assert statistics.map_size >= statistics.bytes > 4 << 20
    env.close()


def test_many_threads_append_to_their_partitions(tmp_path: Path) -> None:
    env = environment(tmp_path)
    threads = [threading.Thread(target=fill, args=[env.partition(TOPIC, number), 0, 2000]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    env.close()
    env = environment(tmp_path)
    assert env.statistics().entries == 16_000
    for number in range(8):
        assert assert_never_wrong(env.partition(TOPIC, number), 100) == 100
    env.close()


# ---------------------------------------------------------------- trouble while it runs


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RETRY_AFTER", 0.0)


@pytest.mark.usefixtures("no_waiting")
def test_a_damaged_entry_is_no_answer_and_the_index_starts_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = environment(tmp_path)
    index = env.partition(TOPIC, 0)
    fill(index, 0, 256)
    key, value = lmdb_index.entries.pack(lmdb_index.entries.prefix_of(TOPIC, 0), entry_of(700))
    with env._store.writing:
        env._store.write(lambda txn: txn.put(key, b"\xff" + value[1:]), create=False)
    assert index.floor(650) == entry_of(600)
    assert index.floor(750) is None
    assert len(caplog.messages) == 1
    assert "CRC" in caplog.messages[0]
    assert index.floor(650) is None
    fill(index, 0, 256)
    assert assert_never_wrong(index, 256) == 256
    env.close()


@pytest.mark.usefixtures("no_waiting")
def test_an_error_of_lmdb_costs_the_index_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise lmdb.CorruptedError("made up", 0)

    env = environment(tmp_path)
    index = env.partition(TOPIC, 0)
    for failing in (env._store.read, lambda change: env._store.write(change, create=True)):
        fill(index, 0, 256)
        assert index.floor(100) == entry_of(100)
        failing(fail)
        assert index.floor(100) is None
    assert len(caplog.messages) == 2
    fill(index, 0, 256)
    env.close()
    env = environment(tmp_path)
    assert assert_never_wrong(env.partition(TOPIC, 0), 256) == 256
    env.close()


def test_entries_that_cannot_be_deleted_go_with_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(tmp_path)
    fill(env.partition(TOPIC, 0), 0, 300)
    env.close()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(store, "open_writable", fail)
    env = environment(tmp_path)
    env.partition(TOPIC, 0).cut(1000)
    env.close()
    monkeypatch.undo()
    env = environment(tmp_path)
    assert env.partition(TOPIC, 0).floor(1 << 40) is None
    env.close()


def test_entries_cut_after_the_directory_was_removed_are_gone(tmp_path: Path) -> None:
    env = environment(tmp_path)
    index = env.partition(TOPIC, 0)
    fill(index, 0, 256)
    shutil.rmtree(tmp_path / "index")
    index.cut(1000)
    entry = index.floor(1 << 40)
    assert entry is None or entry.offset < 1000
    env.close()


def test_an_environment_that_was_never_closed_does_not_stand_in_the_way(tmp_path: Path) -> None:
    env = environment(tmp_path)
    fill(env.partition(TOPIC, 0), 0, 256)
    del env
    gc.collect()
    env = environment(tmp_path)
    assert assert_never_wrong(env.partition(TOPIC, 0), 256) == 256
    fill(env.partition(TOPIC, 0), 256, 256)
    env.close()
    assert inspect(f"{tmp_path}/index", BOOT) is Verdict.SOUND


def test_a_writer_that_never_wrote_leaves_the_index_of_another_process_alone(tmp_path: Path) -> None:
    writer = environment(tmp_path)
    fill(writer.partition(TOPIC, 0), 0, 256)

    def open_and_close() -> None:
        reader = environment(tmp_path, read_only=True)
        assert reader.partition(TOPIC, 0).floor(100) == entry_of(100)
        environment(tmp_path).close()
        reader.close()

    in_child(open_and_close)
    assert inspect(f"{tmp_path}/index", BOOT) is Verdict.UNCLOSED
    writer.close()


def test_a_removed_directory_comes_back(tmp_path: Path) -> None:
    env = environment(tmp_path)
    index = env.partition(TOPIC, 0)
    fill(index, 0, 300)
    shutil.rmtree(tmp_path / "index")
    assert assert_never_wrong(index, 300) == 300  # it is still open
    fill(index, 300, 300)
    assert assert_never_wrong(index, 600) >= 300
    env.close()
    reopened = environment(tmp_path)
    assert assert_never_wrong(reopened.partition(TOPIC, 0), 600) >= 300
    shutil.rmtree(tmp_path / "index")
    reopened.close()
    assert os.listdir(tmp_path) == []


def test_a_removed_data_directory_stays_away(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    env = environment(data)
    index = env.partition(TOPIC, 0)
    fill(index, 0, 300)
    shutil.rmtree(data)
    fill(index, 300, 600)
    assert_never_wrong(index, 900)
    env.close()
    assert not data.exists()


@pytest.mark.parametrize(
    "make", [lambda path: path.touch(), lambda path: (path / "data.mdb" / "x").mkdir(parents=True)]
)
def test_something_else_in_its_place_is_replaced(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "index")
    for _ in range(2):
        env = environment(tmp_path)
        fill(env.partition(TOPIC, 0), 0, 300)
        assert assert_never_wrong(env.partition(TOPIC, 0), 300) == 300
        env.close()
    assert sorted(os.listdir(tmp_path / "index")) == ["data.mdb", "lock.mdb", "state"]


# ---------------------------------------------------------------- with a log


def test_a_log_without_its_index_gives_the_same_answers_and_fills_it_again(tmp_path: Path) -> None:
    env = environment(tmp_path)
    log = open_log(tmp_path, env.partition(TOPIC, 3))
    append(log, 60)
    log.close()
    env.close()
    shutil.rmtree(tmp_path / "index")
    env = environment(tmp_path)
    log = open_log(tmp_path, env.partition(TOPIC, 3))
    assert_answers(log, 240)
    calls: list[tuple[int, int]] = []
    rebuild([log], env, lambda done, total: calls.append((done, total)))
    assert calls[0] == (0, log.size())
    assert calls[-1] == (log.size(), log.size())
    assert calls == sorted(calls)
    assert env.statistics().entries >= 50
    assert_answers(log, 240)
    log.close()
    env.close()


def test_a_rebuilt_index_has_the_entries_that_appending_gives(tmp_path: Path) -> None:
    env, memory = environment(tmp_path), MemoryIndex()
    log = open_log(tmp_path, memory)
    append(log, 60)
    index = env.partition(TOPIC, 3)
    fill(index, 0, 1000)  # which are wrong
    rebuild([log], env, lambda done, total: None)
    for offset in range(250):
        assert index.floor(offset) == memory.floor(offset)
        assert index.floor_time(offset * 1000) == memory.floor_time(offset * 1000)
    log.close()
    env.close()


def test_what_a_log_truncates_and_drops_is_gone_from_the_index(tmp_path: Path) -> None:
    env = environment(tmp_path)
    log = open_log(tmp_path, env.partition(TOPIC, 3))
    append(log, 60)
    log.truncate(120)
    assert_answers(log, 120)
    append(log, 60)
    assert_answers(log, 360)
    log.remove_segments_before(log.segments()[2])
    assert log.index.floor(log.start_offset - 1) is None
    log.close()
    env.close()
