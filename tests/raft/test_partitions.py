"""Leaders that are cut off, or stopped and continued: they stop accepting, the majority goes on, nothing is undone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.raft.cluster import UNKNOWN, UNSTORED, Cluster, Failed, check_history, free_ports, wait_until
from tests.raft.proxy import FaultyNetwork
from tests.raft.test_leader_kill import Load

LEASE = 1.5


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Cluster, FaultyNetwork]]:
    ports = dict(zip("abc", free_ports(3), strict=True))
    network = FaultyNetwork(ports)
    try:
        with Cluster(tmp_path, ports=ports, routes=network.routes) as made:
            yield made, network
    finally:
        network.close()


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_a_leader_that_is_cut_off_stops_accepting_and_undoes_what_was_not_acknowledged(
    cluster: tuple[Cluster, FaultyNetwork], how: str
) -> None:
    nodes, network = cluster
    old = nodes.leader()
    others = "".join(set("abc") - {old.name})
    with Load(nodes, 1) as before:
        before.wait_for_more(20)
    getattr(network, how)(old.name)
    cut_at = time.monotonic()
    unlucky = os.urandom(16).hex()
    pending = old.submit("propose", unlucky, "never-acknowledged", 0.5)
    with pytest.raises(Failed) as refused:
        pending.result(10)
    assert refused.value.code in UNKNOWN | UNSTORED
    wait_until(lambda: old.call("status")[0] != "leader", what="the old leader steps down")
    assert time.monotonic() - cut_at < LEASE + 1.0
    with pytest.raises(Failed) as refused:
        old.call("propose", os.urandom(16).hex(), "to-the-old-leader", 0.3)
    assert refused.value.code in UNSTORED
    with pytest.raises(Failed):
        old.call("barrier", 0.3)
    new = nodes.leader(among=others)
    assert new.name != old.name
    committed = [new.call("propose", os.urandom(16).hex(), f"by-the-new-{number}") for number in range(20)]
    assert committed == sorted(set(committed))
    network.heal()
    nodes.converge()
    histories = [node.call("events") for node in nodes.running()]
    assert histories[0] == histories[1] == histories[2]
    stored = {event_id: offset for offset, event_id in histories[0]}
    assert all(
        stored[event_id] == offset for client in before.clients for event_id, offset in client.acknowledged.items()
    )
    assert unlucky not in [event_id for _, event_id in histories[0]]
    assert [offset for offset, _ in histories[0]][-20:] == committed


def test_the_majority_goes_on_under_load_while_leaders_come_and_go(cluster: tuple[Cluster, FaultyNetwork]) -> None:
    nodes, network = cluster
    with Load(nodes, 7) as load:
        for _ in range(3):
            load.wait_for_more(20)
            leader = nodes.leader()
            network.cut(leader.name)
            load.wait_for_more(20)
            network.heal()
    nodes.converge()
    check_history(nodes, load.clients)


def test_a_node_that_was_cut_off_does_not_disturb_the_leader_when_it_comes_back(
    cluster: tuple[Cluster, FaultyNetwork],
) -> None:
    nodes, network = cluster
    leader = nodes.leader()
    term = leader.call("status")[2]
    follower = next(node for node in nodes.nodes.values() if node is not leader)
    network.cut(follower.name)
    wait_until(lambda: follower.call("status")[1] is None, what="it misses its leader")
    time.sleep(2.0)  # several election timeouts, in which it would raise its term without asking first
    network.heal()
    wait_until(lambda: follower.call("status")[1] == leader.name, what="it follows again")
    assert leader.call("status")[:3] == ["leader", leader.name, term]


def test_without_a_majority_nothing_is_accepted(tmp_path: Path) -> None:
    with Cluster(tmp_path) as nodes:
        leader = nodes.leader()
        for node in nodes.nodes.values():
            if node is not leader:
                node.kill()
        wait_until(lambda: leader.call("status")[0] != "leader", what="it steps down")
        with pytest.raises(Failed) as refused:
            leader.call("propose", os.urandom(16).hex(), "x", 0.5)
        assert refused.value.code == "no_quorum"
        for node in nodes.nodes.values():
            if node is not leader:
                node.start()
                node.wait_ready()
        nodes.converge()


def test_a_leader_that_was_stopped_past_the_election_timeout_is_fenced(tmp_path: Path) -> None:
    with Cluster(tmp_path) as nodes:
        with Load(nodes, 3) as load:
            load.wait_for_more(20)
            old = nodes.leader()
            pending = [old.submit("propose", os.urandom(16).hex(), f"late-{number}", 3.0) for number in range(20)]
            old.pause()
            load.wait_for_more(20)
            new = nodes.leader()
            assert new.name != old.name
            stale = old.submit("propose", os.urandom(16).hex(), "after-the-pause", 0.5)
            old.resume()
            with pytest.raises(Failed) as refused:
                stale.result(10)
            assert refused.value.code in UNSTORED | UNKNOWN
            outcomes = {}
            for number, future in enumerate(pending):
                error = future.exception(20)
                if error is None:
                    outcomes[number] = future.result()
                else:
                    assert isinstance(error, Failed)
                    assert error.code in UNSTORED | UNKNOWN
            load.wait_for_more(20)
        nodes.converge()
        offsets = dict(map(tuple, map(reversed, old.call("events"))))
        assert set(outcomes.values()) <= set(offsets.values())
        histories = [node.call("events") for node in nodes.running()]
        assert histories[0] == histories[1] == histories[2]
        by_id = {event_id: offset for offset, event_id in histories[0]}
        assert len(by_id) == len(histories[0])
        for client in load.clients:
            assert all(by_id.get(event_id) == offset for event_id, offset in client.acknowledged.items())
