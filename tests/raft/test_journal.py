"""The Raft log on the partition log: what it keeps, what it tells, and what it does not take for whole."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dq.engine.clock import SystemClock
from dq.engine.errors import DamagedBatch, StorageError
from dq.engine.files import FileSystem, OsFiles
from dq.engine.memory_files import MemoryFiles
from dq.engine.raft.errors import JournalDamaged, WrongNode
from dq.engine.raft.hard_state import HardStateFile
from dq.engine.raft.journal import NO_OP, RaftJournal
from dq.engine.raft.members import Member, members_batch
from dq.engine.segments.batch import encode
from dq.engine.segments.config import LogConfig
from dq.engine.segments.log import Identity, PartitionLog
from dq.engine.segments.positions import MemoryIndex
from tests.faulty_files import FaultyFiles, seed_in_failures


def open_journal(files: FileSystem, folder: str = "/node", segment_bytes: int = 1 << 20) -> RaftJournal:
    config = LogConfig(publish="owner", segment_age=None, segment_bytes=segment_bytes)
    log = PartitionLog(files, SystemClock(), f"{folder}/log", Identity(bytes(16), 0), config, MemoryIndex())
    return RaftJournal(log, HardStateFile(files, f"{folder}/raft", "a"))


def store_table(journal: RaftJournal) -> None:
    table = journal.encoded_table()
    assert table is not None
    journal.store_table(table)


def close(journal: RaftJournal) -> None:
    journal.sync()
    store_table(journal)
    journal.log.close()
    journal.hard_state.close()


def fill(journal: RaftJournal, count: int, term: int = 1, size: int = 10) -> None:
    for number in range(count):
        journal.append(encode([b"%d" % number + bytes(size)]), term)
    journal.sync()


def test_an_empty_journal_has_one_entry_that_is_not_stored() -> None:
    journal = open_journal(MemoryFiles())
    assert len(journal) == 1
    assert journal[0] == journal[-1] == (NO_OP, 1, 0)
    assert journal.log.next_offset == 0


@pytest.mark.parametrize("segment_bytes", [1000, 1 << 20])
@pytest.mark.parametrize("with_table", [True, False])
def test_entries_are_the_same_after_a_restart(segment_bytes: int, with_table: bool) -> None:
    files = MemoryFiles()
    journal = open_journal(files, segment_bytes=segment_bytes)
    fill(journal, 50, 1)
    fill(journal, 50, 3)
    before = journal[:]
    close(journal)
    if not with_table:
        files.remove("/node/log/entries")
    again = open_journal(files, segment_bytes=segment_bytes)
    assert again[:] == before
    assert [again.term_at(index) for index in (1, 2, 51, 52, 101)] == [0, 1, 1, 3, 3]
    assert again.read(40, 3) == before[39:42]
    assert len(again.read(2, 100, 1)) == 1


def test_a_stored_table_that_does_not_fit_the_log_is_not_used() -> None:
    files = MemoryFiles()
    journal = open_journal(files)
    fill(journal, 20, 1)
    store_table(journal)
    journal.truncate(10)
    fill(journal, 20, 2)
    before = journal[:]
    journal.log.close()
    again = open_journal(files)
    assert again[:] == before


def test_truncated_entries_are_gone_and_others_take_their_place() -> None:
    journal = open_journal(MemoryFiles())
    fill(journal, 10, 1)
    journal.truncate(5)
    assert journal.last_index == 4
    fill(journal, 3, 2)
    assert [entry[2] for entry in journal[1:]] == [1, 1, 1, 2, 2, 2]
    journal.setRaftCommitIndex(4)
    with pytest.raises(StorageError):
        journal.truncate(4)


def test_followers_store_what_the_leader_has() -> None:
    leader, follower = open_journal(MemoryFiles()), open_journal(MemoryFiles())
    fill(leader, 5)
    for entry in leader[1:]:
        follower.take(*entry)
    follower.sync()
    assert [entry[1:] for entry in follower[1:]] == [entry[1:] for entry in leader[1:]]
    assert [follower.crc_at(index) for index in range(2, 7)] == [leader.crc_at(index) for index in range(2, 7)]
    with pytest.raises(DamagedBatch):
        follower.take(*leader[3])


def test_the_members_are_those_of_the_last_entry_that_names_any() -> None:
    files = MemoryFiles()
    journal = open_journal(files)
    first, second = (Member("a", "h", 1),), (Member("a", "h", 1), Member("b", "h", 2, False))
    journal.append(members_batch(first, 0), 1)
    fill(journal, 3)
    journal.append(members_batch(second, 0), 1)
    journal.sync()
    assert journal.latest_members() == (6, second)
    journal.log.close()
    again = open_journal(files)
    assert again.latest_members() == (6, second)
    again.truncate(6)
    assert again.latest_members() == (2, first)


def test_memory_does_not_hold_the_history() -> None:
    journal = open_journal(MemoryFiles(), segment_bytes=8 << 20)
    for _ in range(12):
        fill(journal, 10, 1, 100_000)
    assert journal._recent_bytes <= 9 << 20
    assert len(journal.read(2, 1)[0][0]) > 100_000


def test_a_lost_end_is_noticed() -> None:
    files = MemoryFiles()
    journal = open_journal(files)
    fill(journal, 10)
    other = open_journal(MemoryFiles())
    fill(other, 10)
    end = journal.log.files.open("/node/log/00000000000000000000.seg", write=True)
    end.truncate(end.size() // 2)
    end.close()
    with pytest.raises(JournalDamaged):
        open_journal(files)


def test_a_vote_survives_the_loss_of_one_copy_and_is_not_guessed_without_both() -> None:
    files = MemoryFiles()
    state = HardStateFile(files, "/raft", "a")
    assert state.was_lost
    state.save_vote(7, "b")
    state.save_standing(rejoining=False)
    for name in ("vote", "vote.copy"):
        files.remove(f"/raft/{name}")
        again = HardStateFile(files, "/raft", "a")
        assert again.state == state.state
    for name in ("vote", "vote.copy"):
        files.remove(f"/raft/{name}")
    assert HardStateFile(files, "/raft", "a").state.rejoining


def test_the_files_of_another_node_are_refused() -> None:
    files = MemoryFiles()
    HardStateFile(files, "/raft", "a").save_vote(1, "a")
    with pytest.raises(WrongNode):
        HardStateFile(files, "/raft", "b")


@pytest.mark.parametrize("seed", range(30))
def test_after_a_power_loss_everything_that_was_synced_is_there(seed: int) -> None:
    files = FaultyFiles(seed)
    journal = open_journal(files, segment_bytes=4000)
    voted = 0
    with seed_in_failures(seed):
        for turn in range(20):
            for number in range(seed % 5 + 1):
                journal.append(encode([b"%d %d" % (turn, number) + bytes(number * 100)]), turn + 1)
            if (turn + seed) % 3:
                journal.sync()
            if turn % 4 == 0:
                journal.setCurrentTerm(turn + 1, "b")
                voted = turn + 1
        durable = journal[: journal.durable_index]
        files.power_loss()
        again = open_journal(files, segment_bytes=4000)
        assert [entry[1:] for entry in again[: len(durable)]] == [entry[1:] for entry in durable]
        assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (voted, "b")


def test_a_hundred_thousand_entries_open_in_less_than_a_second(tmp_path: Path) -> None:
    journal = open_journal(OsFiles(), str(tmp_path), segment_bytes=256 << 20)
    for _ in range(10):
        fill(journal, 10_000, 1, 100)
    close(journal)
    took = []
    for _ in range(3):
        start = time.perf_counter()
        again = open_journal(OsFiles(), str(tmp_path), segment_bytes=256 << 20)
        took.append(time.perf_counter() - start)
        assert again.last_index == 100_001
        close(again)
    assert min(took) < 0.5
