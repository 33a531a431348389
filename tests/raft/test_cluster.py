"""What users of the replicated event log see: proposing, reading, following, members that come and go, fast starts."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dq.engine.clock import SystemClock
from dq.engine.errors import BatchTooLarge, DQError, TopicExists
from dq.engine.files import OsFiles
from dq.engine.raft.errors import NodeStopped, NoQuorum, NotLeader
from dq.engine.raft.event_log import METADATA_TOPIC_ID, LocalEventLog
from dq.engine.raft.events import Change, TopicCreated
from dq.engine.raft.image import state_hash
from dq.engine.raft.members import Member
from dq.engine.raft.raft_log import RaftConfig, RaftEventLog
from dq.engine.raft.standing import Status
from dq.engine.raft.transport import Security
from dq.engine.segments.config import LogConfig
from dq.engine.segments.log import Identity, PartitionLog
from dq.engine.segments.positions import MemoryIndex
from dq.engine.segments.view import PartitionView
from tests.raft.cluster import SECRET, Cluster, Failed, NodeProcess, check_history, free_ports, wait_until
from tests.raft.test_leader_kill import Load


def created(topic: str) -> Change:
    return TopicCreated(topic=topic, topic_id=os.urandom(16), partitions=1)


def open_node(folder: Path, name: str, members: list[Member]) -> RaftEventLog:
    config = RaftConfig(name, tuple(members), Security(SECRET))
    return RaftEventLog(
        config, OsFiles(), SystemClock(), str(folder / name / "log"), str(folder / name / "raft"), actor=name
    )


@pytest.fixture
def single(tmp_path: Path) -> Iterator[RaftEventLog]:
    log = open_node(tmp_path, "a", [Member("a", "127.0.0.1", free_ports(1)[0])])
    wait_until(lambda: log.status is not None and log.status.role == "leader")
    yield log
    log.close()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[RaftEventLog]]:
    """The leader first."""
    members = [Member(name, "127.0.0.1", port) for name, port in zip("abc", free_ports(3), strict=True)]
    logs = [open_node(tmp_path, name, members) for name in "abc"]
    wait_until(lambda: any(log.status is not None and log.status.role == "leader" for log in logs))
    yield sorted(logs, key=lambda log: log.status is None or log.status.role != "leader")
    for log in logs:
        log.close()


# ---------------------------------------------------------------- proposing


def test_a_proposal_is_in_the_image_when_it_returns(three: list[RaftEventLog]) -> None:
    offset = three[0].propose(created("t"))
    assert "t" in three[0].image.topics
    assert three[0].image.offset > offset
    for follower in three[1:]:
        assert follower.wait_for(offset, 5)
        wait_until(lambda log=follower: "t" in log.image.topics)


def test_the_same_event_id_is_stored_once(three: list[RaftEventLog]) -> None:
    event_id = os.urandom(16)
    change = created("t")
    with ThreadPoolExecutor(8) as pool:
        offsets = set(pool.map(lambda _: three[0].propose(change, event_id=event_id), range(32)))
    assert len(offsets) == 1
    assert len(list(three[0].events())) == 1


def test_a_change_that_makes_no_sense_is_refused_and_not_stored(three: list[RaftEventLog]) -> None:
    three[0].propose(created("t"))
    with pytest.raises(TopicExists):
        three[0].propose(created("t"))
    assert len(list(three[0].events())) == 1


def test_of_many_who_want_the_same_one_gets_it(three: list[RaftEventLog]) -> None:
    def attempt(_: int) -> bool:
        try:
            three[0].propose(created("t"))
        except TopicExists:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(attempt, range(64))) == 1


def test_several_changes_are_stored_all_or_none(three: list[RaftEventLog]) -> None:
    offsets = three[0].propose_all([created("a"), created("b")])
    assert offsets == [offsets[0], offsets[0] + 1]
    with pytest.raises(TopicExists):
        three[0].propose_all([created("c"), created("a")])
    assert set(three[0].image.topics) == {"a", "b"}


def test_followers_say_who_leads(three: list[RaftEventLog]) -> None:
    leader = three[0].config.node
    for follower in three[1:]:
        wait_until(lambda log=follower: log.status is not None and log.status.leader == leader)
        with pytest.raises(NotLeader) as refused:
            follower.propose(created("t"))
        assert refused.value.leader == leader


def test_a_proposal_that_is_too_large_is_refused(single: RaftEventLog) -> None:
    config = {f"k{number}": "v" * 1000 for number in range(1200)}
    with pytest.raises(BatchTooLarge):
        single.propose(TopicCreated(topic="t", topic_id=os.urandom(16), partitions=1, config=config))


def test_a_barrier_is_a_point_to_read_from(three: list[RaftEventLog]) -> None:
    offset = three[0].propose(created("t"))
    assert three[0].barrier() > offset


def test_a_closed_node_refuses(tmp_path: Path) -> None:
    log = open_node(tmp_path, "a", [Member("a", "127.0.0.1", free_ports(1)[0])])
    log.close()
    with pytest.raises(NodeStopped):
        log.propose(created("t"))


def test_one_of_three_alone_says_that_there_is_no_quorum(tmp_path: Path) -> None:
    members = [Member(name, "127.0.0.1", port) for name, port in zip("abc", free_ports(3), strict=True)]
    log = open_node(tmp_path, "a", members)
    try:
        with pytest.raises(NoQuorum):
            log.propose(created("t"), timeout=0.2)
    finally:
        log.close()


def test_asyncio_is_never_blocked(three: list[RaftEventLog]) -> None:
    async def work() -> tuple[int, float]:
        longest, last = 0.0, time.perf_counter()
        proposals = [asyncio.ensure_future(three[0].propose_async(created(f"t{number}"))) for number in range(200)]
        following = asyncio.ensure_future(three[1].wait_for_async(150, 10))
        while not all(task.done() for task in proposals):
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        assert await following
        assert not await three[0].wait_for_async(10_000, 0.05)
        return len({task.result() for task in proposals}), longest

    count, longest = asyncio.run(work())
    assert count == 200
    assert longest < 1.0


def test_watchers_hear_who_leads_and_one_that_fails_harms_nobody(tmp_path: Path) -> None:
    heard: list[Status] = []
    log = open_node(tmp_path, "a", [Member("a", "127.0.0.1", free_ports(1)[0])])

    def fail(status: Status) -> None:
        raise RuntimeError("a watcher")

    try:
        log.on_change(fail)
        log.on_change(heard.append)
        wait_until(lambda: any(status.role == "leader" for status in heard))
        log.propose(created("t"))
    finally:
        log.close()


# ---------------------------------------------------------------- reading and following


def test_others_see_committed_events_only(three: list[RaftEventLog], tmp_path: Path) -> None:
    """In another process, too: the visible end follows the commit index, not what is stored."""
    leader = three[0]
    offset = leader.propose(created("t"))
    for follower in three[1:]:
        follower._thread.run(lambda log=follower: log._thread.node._net.set_members(())).result(5)  # cut off for good
    stored = leader.log.next_offset

    def propose() -> None:
        with pytest.raises(DQError):
            leader.propose(created("u"), timeout=0.4)

    pending = threading.Thread(target=propose)
    pending.start()
    wait_until(lambda: leader.log.next_offset > stored)
    view = PartitionView(OsFiles(), SystemClock(), leader.log.directory, MemoryIndex(), 0)
    assert view.visible_end() == leader.log.visible_end() <= stored
    assert [event.change.topic for _, event in leader.events()] == ["t"]  # type: ignore[attr-defined]
    assert "u" not in leader.image.topics
    assert offset < view.visible_end()
    view.close()
    pending.join()


def test_a_follower_tails_events_as_they_are_committed(three: list[RaftEventLog]) -> None:
    seen: list[str] = []

    def follow() -> None:
        for _, event in three[1].events(follow=True, timeout=5):
            seen.append(event.change.topic)  # type: ignore[attr-defined]
            if len(seen) == 20:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(20):
        three[0].propose(created(f"t{number}"))
    thread.join(10)
    assert seen == [f"t{number}" for number in range(20)]


def test_the_log_of_an_embedded_directory_goes_on_as_a_cluster_of_one(tmp_path: Path) -> None:
    log = PartitionLog(
        OsFiles(),
        SystemClock(),
        str(tmp_path / "a" / "log"),
        Identity(METADATA_TOPIC_ID, 0),
        LogConfig(),
        MemoryIndex(),
    )
    local = LocalEventLog(log, SystemClock(), "embedded")
    for number in range(10):
        local.propose(created(f"t{number}"))
    before = state_hash(local.image)
    local.close()
    node = open_node(tmp_path, "a", [Member("a", "127.0.0.1", free_ports(1)[0])])
    try:
        assert node.barrier() > 10
        assert state_hash(node.image) == before
        node.propose(created("more"))
        assert len(list(node.events())) == 11
    finally:
        node.close()


# ---------------------------------------------------------------- members


def test_members_come_and_go_under_load(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with Cluster(tmp_path) as cluster:
        with Load(cluster, 1) as load:
            load.wait_for_more(50)
            newcomer: NodeProcess = cluster.make("d", [*cluster.members, ["d", "127.0.0.1", port, False]], {})
            newcomer.start()
            newcomer.wait_ready()
            leader = cluster.leader()
            leader.call("add_member", "d", "127.0.0.1", port)
            cluster.nodes["d"] = newcomer
            assert sorted(member[0] for member in leader.call("status")[4] if member[3]) == ["a", "b", "c", "d"]
            load.wait_for_more(20)
            removed = next(name for name in "abc" if name != cluster.leader().name)
            cluster.leader().call("remove_member", removed)
            cluster.nodes.pop(removed).close()
            load.wait_for_more(20)
            cluster.leader().kill()
            cluster.nodes = {name: node for name, node in cluster.nodes.items() if node.running}
            load.wait_for_more(20)
        cluster.converge()
        check_history(cluster, load.clients)
        with pytest.raises(Failed) as refused:
            cluster.leader().call("remove_member", "nobody")
        assert refused.value.code == "unknown_member"


# ---------------------------------------------------------------- starting


def test_a_hundred_thousand_events_start_in_less_than_two_seconds(tmp_path: Path) -> None:
    count = 100_000
    with Cluster(tmp_path, "a") as cluster:
        node = cluster.nodes["a"]
        wait_until(lambda: node.call("status")[0] == "leader")
        node.call("fill", 0, count, 1000, timeout=120)
    members = [Member(*member) for member in cluster.members]
    for end in ("closed", "killed"):
        start = time.perf_counter()
        log = _open(tmp_path / "a", members)
        took = time.perf_counter() - start
        try:
            assert log.barrier() >= count
            assert len(log.image.topics) == count  # the largest image that so many events can make
            assert took < 2.0, f"{took:.2f} s after it was {end}"
            assert sum(1 for _ in log.events()) == count
        finally:
            log.close()
        node.start()
        node.wait_ready()
        node.kill()


def _open(folder: Path, members: list[Member]) -> RaftEventLog:
    config = RaftConfig("a", tuple(members), Security(SECRET))
    log_directory = str(folder / "topics" / "__metadata" / "0")
    return RaftEventLog(config, OsFiles(), SystemClock(), log_directory, str(folder / "raft"), actor="a")


# ---------------------------------------------------------------- the checks themselves


def test_the_checks_notice_a_node_that_acknowledges_before_it_has_synced(tmp_path: Path) -> None:
    """With the rule broken on all nodes a kill of everybody loses what was acknowledged, and the check says so."""
    with Cluster(tmp_path, **{"break": "forget-unsynced"}) as cluster:
        with Load(cluster, 1) as load:
            load.wait_for_more(20)
        for node in cluster.nodes.values():
            node.kill()
            del node.config["break"]
        for node in cluster.nodes.values():
            node.start()
            node.wait_ready()
        with pytest.raises(AssertionError, match="acknowledged, and lost"):
            cluster.converge()
            check_history(cluster, load.clients)
