"""kill -9 of leaders and of everybody, under load: what was acknowledged stays, once, and the same everywhere."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.raft.cluster import Client, Cluster, check_history

SEEDS = 50
CLIENTS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all seeds: each goes on where the last one ended."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


class Load:
    def __init__(self, cluster: Cluster, seed: int, count: int = CLIENTS) -> None:
        self.clients = [Client(cluster, seed * 100 + number, f"s{seed}-{number}") for number in range(count)]

    def __enter__(self) -> Load:
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *error: object) -> None:
        for client in self.clients:
            client.finish()

    def acknowledged(self) -> int:
        return sum(len(client.acknowledged) for client in self.clients)

    def wait_for_more(self, count: int = 5, seconds: float = 15.0) -> None:
        start, deadline = self.acknowledged(), time.monotonic() + seconds
        while self.acknowledged() < start + count:
            assert time.monotonic() < deadline, "nothing more is acknowledged"
            time.sleep(0.005)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_killed_leader_takes_nothing_with_it(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    start = cluster.converge()[0]
    with Load(cluster, seed) as load:
        load.wait_for_more()
        time.sleep(chance.uniform(0, 0.1))  # not to wait for anything, but to kill at another moment each time
        leader = cluster.leader()
        leader.kill()
        load.wait_for_more()
        leader.start()
        if chance.random() < 0.5:
            leader.wait_ready()
            load.wait_for_more()
    leader.wait_ready()
    cluster.converge()
    check_history(cluster, load.clients, start)
    assert load.acknowledged() > 10


@pytest.mark.parametrize("order", ["".join(order) for order in itertools.permutations("abc")])
def test_all_killed_and_restarted_in_any_order(tmp_path: Path, order: str) -> None:
    with Cluster(tmp_path) as cluster:
        with Load(cluster, 1) as load:
            load.wait_for_more(20)
            for name in order:
                cluster.nodes[name].kill()
            for client in load.clients:
                client._stop_wanted.set()
        for name in order:
            cluster.nodes[name].start()
            cluster.nodes[name].wait_ready()
        cluster.converge()
        check_history(cluster, load.clients)
        with Load(cluster, 2) as more:
            more.wait_for_more(20)
        cluster.converge()
        check_history(cluster, [*load.clients, *more.clients])
