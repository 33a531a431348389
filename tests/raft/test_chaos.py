"""Hours of everything at once: kills, pauses, cuts and damage in random order under load. A seed names a run."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.raft.cluster import Cluster, NodeProcess, check_history, free_ports, wait_until
from tests.raft.proxy import FaultyNetwork
from tests.raft.test_damage import DAMAGES, restart
from tests.raft.test_leader_kill import Load

ROUNDS = 40


class Chaos:
    """One fault at a time on one node, so that a majority is always left."""

    def __init__(self, cluster: Cluster, network: FaultyNetwork, seed: int) -> None:
        self._cluster = cluster
        self._network = network
        self._chance = random.Random(seed)

    def strike(self, load: Load) -> None:
        fault = self._chance.choice([self._kill, self._pause, self._cut, self._silence, self._damage])
        leader = self._cluster.leader()
        victim = leader if self._chance.random() < 0.7 else self._chance.choice(self._cluster.running())
        fault(victim, load)
        wait_until(lambda: self._is_whole(victim), 60, "all nodes take part again")

    def _is_whole(self, victim: NodeProcess) -> bool:
        if not victim.running:
            victim.wait_for_exit()
            restart(victim)
        statuses = [self._cluster.status_of(node) for node in self._cluster.nodes.values()]
        return all(status is not None and status[0] in ("leader", "follower") and status[1] for status in statuses)

    def _kill(self, victim: NodeProcess, load: Load) -> None:
        victim.kill()
        load.wait_for_more(self._chance.randint(1, 50), 60)
        restart(victim)

    def _pause(self, victim: NodeProcess, load: Load) -> None:
        victim.pause()
        load.wait_for_more(self._chance.randint(1, 50), 60)
        victim.resume()

    def _cut(self, victim: NodeProcess, load: Load) -> None:
        self._network.cut(victim.name)
        load.wait_for_more(self._chance.randint(1, 50), 60)
        self._network.heal()

    def _silence(self, victim: NodeProcess, load: Load) -> None:
        self._network.silence(victim.name)
        load.wait_for_more(self._chance.randint(1, 50), 60)
        self._network.heal()

    def _damage(self, victim: NodeProcess, load: Load) -> None:
        victim.kill()
        self._chance.choice(DAMAGES)(self._cluster, victim.name, self._chance)
        load.wait_for_more(self._chance.randint(1, 50), 60)
        restart(victim)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_nothing_acknowledged_is_lost_whatever_happens(tmp_path: Path, seed: int) -> None:
    ports = dict(zip("abc", free_ports(3), strict=True))
    network = FaultyNetwork(ports)
    try:
        with Cluster(tmp_path, ports=ports, routes=network.routes) as cluster:
            chaos = Chaos(cluster, network, seed)
            with Load(cluster, seed) as load:
                for _ in range(ROUNDS):
                    chaos.strike(load)
                    load.wait_for_more(5, 60)
            cluster.converge(60)
            check_history(cluster, load.clients)
            assert load.acknowledged() > ROUNDS
    finally:
        network.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_a_killed_leader_takes_nothing_with_it_many_times(tmp_path: Path, seed: int) -> None:
    with Cluster(tmp_path) as cluster:
        with Load(cluster, seed, 16) as load:
            for _ in range(10):
                load.wait_for_more(20, 30)
                time.sleep(random.Random(seed).uniform(0, 0.2))  # to kill at another moment each time
                leader = cluster.leader()
                leader.kill()
                load.wait_for_more(5, 30)
                restart(leader)
        cluster.converge()
        check_history(cluster, load.clients)
