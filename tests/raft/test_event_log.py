"""The event log: proposing once, all or nothing, following, snapshots, and commits that share an event."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dq.engine.clock import SystemClock
from dq.engine.errors import Corruption, InvalidInput, TopicExists, UnknownConsumer, UnknownTopic
from dq.engine.files import OsFiles
from dq.engine.memory_files import MemoryFiles
from dq.engine.raft import events as e
from dq.engine.raft.event_log import (
    ImageFollower,
    LocalEventLog,
    derived_ids,
    fold_events,
    load_image,
    read_events,
)
from dq.engine.raft.events import Change, PositionsCommitted
from dq.engine.raft.image import EMPTY, fold, state_hash
from dq.engine.raft.position_commits import PositionCommits, coalesce
from dq.engine.raft.snapshots import (
    SNAPSHOT_EVERY,
    list_snapshots,
    prune_snapshots,
    snapshot_path,
    write_snapshot,
)
from dq.engine.segments.batch import CONTROL, encode
from tests.clocks import ManualClock
from tests.raft.changes import LOGS, ORDERS, STORY, event, story
from tests.raft.metadata_logs import DIRECTORY, folded, open_event_log, open_log, open_view, put


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def log(files: MemoryFiles) -> Iterator[LocalEventLog]:
    opened = open_event_log(files)
    yield opened
    opened.close()


def created(name: str = "orders", topic_id: bytes = ORDERS) -> e.TopicCreated:
    return e.TopicCreated(topic=name, topic_id=topic_id, partitions=4)


def committed(position: int, consumer: str = "billing", partition: int = 0) -> PositionsCommitted:
    return PositionsCommitted(topic="orders", consumer=consumer, positions={partition: position})


# ---------------------------------------------------------------- proposing


def test_a_proposed_change_is_an_event_in_the_log_and_in_the_image(log: LocalEventLog) -> None:
    assert log.propose(created()) == 0
    ((offset, found),) = log.events()
    assert (offset, found.change, found.actor) == (0, created(), "ada@test")
    assert "orders" in log.image.topics


def test_the_same_event_id_is_stored_once(log: LocalEventLog) -> None:
    assert log.propose(created(), event_id=b"0123456789abcdef") == 0
    assert log.propose(created("logs", LOGS)) == 1
    assert log.propose(created(), event_id=b"0123456789abcdef") == 0
    assert log.log.next_offset == 2


def test_the_same_event_id_is_stored_once_after_a_restart(files: MemoryFiles) -> None:
    log = open_event_log(files)
    log.propose_all([created(), created("logs", LOGS)], event_id=bytes(16))
    log.close()
    log = open_event_log(files)
    assert log.propose_all([created(), created("logs", LOGS)], event_id=bytes(16)) == [0, 1]
    assert log.log.next_offset == 2
    log.close()


def test_an_event_id_has_sixteen_bytes(log: LocalEventLog) -> None:
    with pytest.raises(InvalidInput):
        log.propose(created(), event_id=b"short")
    assert log.log.next_offset == 0


def test_what_would_be_refused_is_not_written(log: LocalEventLog) -> None:
    log.propose(created())
    with pytest.raises(TopicExists):
        log.propose(created())
    with pytest.raises(InvalidInput):
        log.propose(created("a/b", LOGS))
    assert log.log.next_offset == 1


def test_several_changes_are_written_all_or_none(log: LocalEventLog) -> None:
    with pytest.raises(UnknownTopic):
        log.propose_all([created(), e.TopicConfigured(topic="logs", config={})])
    assert (log.log.next_offset, len(log.image.topics)) == (0, 0)
    changes: list[Change] = [created(), e.ConsumerRegistered(topic="orders", consumer="billing", positions={})]
    assert log.propose_all(changes) == [0, 1]
    assert [found.change for _, found in log.events()] == changes
    assert log.propose_all([]) == []


def test_changes_of_one_proposal_are_one_batch(log: LocalEventLog) -> None:
    log.propose_all([created(), created("logs", LOGS)])
    cursor = log.log.cursor(0)
    assert [raw.header.count for raw in cursor.read()] == [2]
    cursor.close()


def test_ids_of_one_proposal_follow_from_its_own() -> None:
    ids = derived_ids(bytes(16), 3)
    assert ids[0] == bytes(16)
    assert len(set(ids)) == 3
    assert derived_ids(bytes(16), 2) == ids[:2]


def test_many_threads_propose_at_the_same_time(log: LocalEventLog) -> None:
    def propose(number: int) -> None:
        log.propose(created(f"t{number}", number.to_bytes(16, "big")))

    threads = [threading.Thread(target=propose, args=[number]) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.image.topics) == 20
    assert log.image == fold_events(EMPTY, log.log)


# ---------------------------------------------------------------- following


def test_reading_starts_at_any_offset_and_ends_at_the_end(files: MemoryFiles) -> None:
    log = open_log(files)
    put(log, story()[:20])
    put(log, story()[20:])
    found = list(read_events(log, 13))
    assert [offset for offset, _ in found] == list(range(13, len(STORY)))
    assert [item for _, item in found] == story()[13:]


def test_a_follower_waits_for_what_is_not_there_yet() -> None:
    log = open_log(clock=SystemClock())
    put(log, story()[:2])
    seen: list[int] = []
    half, done = threading.Event(), threading.Event()

    def follow() -> None:
        for offset, _ in read_events(log, follow=True, timeout=10):
            seen.append(offset)
            if len(seen) == 2:
                half.set()
            if len(seen) == 4:
                done.set()
                return

    thread = threading.Thread(target=follow)
    thread.start()
    assert half.wait(10)
    put(log, story()[2:4])
    assert done.wait(10)
    thread.join()
    assert seen == [0, 1, 2, 3]


def test_a_follower_ends_when_nothing_comes(log: LocalEventLog) -> None:
    log.propose(created())
    assert len(list(log.events(follow=True, timeout=0.01))) == 1


def test_a_follower_ends_when_the_log_is_closed() -> None:
    log = open_event_log(clock=SystemClock())
    log.propose(created())
    found = log.events(follow=True, timeout=30)
    next(found)
    timer = threading.Timer(0.05, log.close)
    timer.start()
    assert list(found) == []
    timer.join()


def test_another_process_follows_the_image(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = str(tmp_path_factory.mktemp("log"))
    log = open_log(OsFiles(), directory=directory)
    view = open_view(OsFiles(), SystemClock(), directory=directory)
    follower = ImageFollower(OsFiles(), view)
    assert follower.image is EMPTY
    put(log, story()[:10])
    assert follower.image == folded(story()[:10])
    assert follower.image is follower.image
    put(log, story()[10:])
    assert follower.wait(len(STORY) - 1, 10)
    assert follower.image == folded(story())
    assert not follower.wait(len(STORY), 0.01)
    log.close()
    view.close()


def test_a_follower_of_a_log_that_was_cut_starts_anew(files: MemoryFiles) -> None:
    log = open_log(files)
    for found in story():
        put(log, [found])
    follower = ImageFollower(files, log)
    assert follower.image.offset == len(STORY)
    log.truncate(5)
    assert follower.image == folded(story()[:5])


def test_batches_that_are_not_for_readers_are_passed_over(files: MemoryFiles) -> None:
    log = open_log(files)
    put(log, story()[:1])
    log.append([encode([b"not an event"], timestamp=1, flags=CONTROL)])
    put(log, story()[1:2])
    assert [offset for offset, _ in read_events(log)] == [0, 2]
    image = load_image(files, log)
    assert (image.offset, state_hash(image)) == (3, state_hash(folded(story()[:2])))
    log.append([encode([b"nor this"], timestamp=1, flags=CONTROL)])
    assert load_image(files, log).offset == 4


def test_a_record_that_is_no_event_is_damage_with_a_place(files: MemoryFiles) -> None:
    log = open_log(files)
    put(log, story()[:1])
    log.append([encode([b"rubbish"], timestamp=1)])
    with pytest.raises(Corruption) as damage:
        list(read_events(log))
    assert (damage.value.offset, damage.value.resume_offset) == (1, 2)


# ---------------------------------------------------------------- snapshots


def test_closing_leaves_a_snapshot_that_opening_uses(files: MemoryFiles, log: LocalEventLog) -> None:
    log.propose(created())
    log.close()
    assert list_snapshots(files, DIRECTORY) == [1]
    again = open_event_log(files)
    assert again.image == log.image
    again.close()


@pytest.mark.parametrize("damage", [b"", b"abc", bytes(200)])
def test_a_damaged_snapshot_is_passed_over(files: MemoryFiles, damage: bytes) -> None:
    log = open_log(files)
    put(log, story()[:10])
    write_snapshot(files, DIRECTORY, load_image(files, log))
    put(log, story()[10:])
    write_snapshot(files, DIRECTORY, load_image(files, log))
    file = files.open(snapshot_path(DIRECTORY, len(STORY)), write=True)
    file.truncate(0)
    file.write([damage], 0)
    file.close()
    assert load_image(files, log) == folded(story())


def test_a_snapshot_of_what_was_cut_off_is_not_used(files: MemoryFiles) -> None:
    log = open_log(files)
    for found in story():
        put(log, [found])
    write_snapshot(files, DIRECTORY, load_image(files, log))
    log.truncate(20)
    others = [event(created(f"t{number}", number.to_bytes(16, "big")), 9000 + number) for number in range(40)]
    for found in others:
        put(log, [found])
    assert load_image(files, log) == folded([*story()[:20], *others])


def test_snapshots_are_kept_sparser_the_further_back_they_lie(files: MemoryFiles) -> None:
    files.make_directory(DIRECTORY)
    for number in range(1, 101):
        image = fold(EMPTY, event(created()), number * SNAPSHOT_EVERY - 1)
        write_snapshot(files, DIRECTORY, image)
        prune_snapshots(files, DIRECTORY)
    kept = [offset // SNAPSHOT_EVERY for offset in list_snapshots(files, DIRECTORY)]
    assert kept[-1] == 100
    assert 5 <= len(kept) <= 10
    back = [100 - number for number in kept]
    assert all(further <= 4 * nearer + 4 for further, nearer in pairwise(back))


def test_a_snapshot_is_written_after_many_events(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dq.engine.raft.event_log.SNAPSHOT_EVERY", 5)
    log = open_event_log(files)
    for number in range(12):
        log.propose(created(f"t{number}", number.to_bytes(16, "big")))
    assert max(list_snapshots(files, DIRECTORY)) in (5, 10)
    log.close()


# ---------------------------------------------------------------- commits together


_commit = st.builds(
    PositionsCommitted,
    topic=st.just("orders"),
    consumer=st.sampled_from(["billing", "workers"]),
    positions=st.dictionaries(st.integers(0, 3), st.integers(0, 99), max_size=3),
)
_by_member = st.builds(
    PositionsCommitted,
    topic=st.just("orders"),
    consumer=st.just("workers"),
    positions=st.dictionaries(st.just(0), st.integers(0, 99), max_size=1),
    member=st.just("w1"),
)


@given(st.lists(_commit | _by_member, max_size=12))
def test_fewer_commits_lead_to_the_same_positions(commits: list[PositionsCommitted]) -> None:
    world = folded(story())
    fewer = coalesce(commits)
    expected = folded([event(change, 9000 + number) for number, change in enumerate(commits)], world)
    found = folded([event(change, 9500 + number) for number, change in enumerate(fewer)], world)
    assert found.topics == expected.topics
    assert len(fewer) <= 3


def test_commits_of_many_threads_share_events(files: MemoryFiles) -> None:
    log = open_event_log(files, SystemClock())
    log.propose_all([created(), *(registered(f"c{number}") for number in range(8))])
    commits = PositionCommits(log)
    before = log.log.next_offset
    failures: list[BaseException] = []

    def commit(number: int) -> None:
        try:
            for position in range(1, 51):
                commits.commit(committed(position, f"c{number % 8}", number // 8))
            if number == 3:
                commits.commit(committed(1, "nobody"))
        except UnknownConsumer as error:
            failures.append(error)

    threads = [threading.Thread(target=commit, args=[number]) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    consumers = log.image.topics["orders"].consumers
    assert all(dict(consumers[f"c{number}"].positions) == {0: 50, 1: 50} for number in range(8))
    assert log.log.next_offset - before <= 16 * 50
    assert len(failures) == 1
    log.close()


def registered(name: str) -> e.ConsumerRegistered:
    return e.ConsumerRegistered(topic="orders", consumer=name, positions={0: 0})


def test_a_consumer_that_goes_away_fails_only_those_who_commit_for_it(
    log: LocalEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there when the commits are looked at, and gone when they are proposed."""
    log.propose_all([created(), registered("a"), registered("b")])
    commits = PositionCommits(log)
    propose_all = log.propose_all

    def interfere(changes: list[Change], **options: bytes | None) -> list[int]:
        monkeypatch.setattr(log, "propose_all", propose_all)
        log.propose(e.ConsumerRemoved(topic="orders", consumer="a"))
        return propose_all(changes)

    monkeypatch.setattr(log, "propose_all", interfere)
    with pytest.raises(UnknownConsumer):
        commits.commit(committed(5, "a"))
    commits.commit(committed(5, "b"))
    assert dict(log.image.topics["orders"].consumers["b"].positions) == {0: 5}


def test_times_are_those_of_the_clock() -> None:
    clock = ManualClock()
    log = open_event_log(clock=clock)
    clock.advance(5_000_000)
    log.propose(created())
    assert log.image.time == clock.now()
    log.close()
