"""Damage to what one node of three has stored: it refuses what is damaged, gets all again, and votes only then."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.raft.cluster import Cluster, NodeProcess, check_history, wait_until
from tests.raft.test_leader_kill import Load

Damage = Callable[[Cluster, str, random.Random], None]


def _segment(cluster: Cluster, name: str) -> Path:
    return max(cluster.log_of(name).glob("*.seg"))


def cut_the_journal(cluster: Cluster, name: str, chance: random.Random) -> None:
    path = _segment(cluster, name)
    os.truncate(path, chance.randrange(64, path.stat().st_size - 1))


def cut_the_journal_between_batches(cluster: Cluster, name: str, chance: random.Random) -> None:
    """So that what is left looks like a whole log."""
    path = _segment(cluster, name)
    data = path.read_bytes()
    places = [at for at in range(len(data)) if data.startswith(b"DQRB", at)]
    os.truncate(path, chance.choice(places[len(places) // 2 :]))


def flip_a_bit_of_the_journal(cluster: Cluster, name: str, chance: random.Random) -> None:
    path = _segment(cluster, name)
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def delete_the_journal(cluster: Cluster, name: str, chance: random.Random) -> None:
    shutil.rmtree(cluster.log_of(name))


def delete_a_segment(cluster: Cluster, name: str, chance: random.Random) -> None:
    _segment(cluster, name).unlink()


def delete_the_votes(cluster: Cluster, name: str, chance: random.Random) -> None:
    for path in (cluster.folder_of(name) / "raft").glob("vote*"):
        path.unlink()


def flip_a_bit_of_both_votes(cluster: Cluster, name: str, chance: random.Random) -> None:
    for path in (cluster.folder_of(name) / "raft").glob("vote*"):
        flip(path, chance)


def flip_a_bit_of_one_vote(cluster: Cluster, name: str, chance: random.Random) -> None:
    flip(cluster.folder_of(name) / "raft" / chance.choice(["vote", "vote.copy"]), chance)


def cut_one_vote(cluster: Cluster, name: str, chance: random.Random) -> None:
    os.truncate(cluster.folder_of(name) / "raft" / "vote", chance.randrange(10))


def delete_everything(cluster: Cluster, name: str, chance: random.Random) -> None:
    shutil.rmtree(cluster.folder_of(name))
    cluster.folder_of(name).mkdir()


def delete_the_snapshots(cluster: Cluster, name: str, chance: random.Random) -> None:
    for path in cluster.log_of(name).glob("*.snapshot"):
        path.unlink()


def flip_a_bit_of_the_snapshots(cluster: Cluster, name: str, chance: random.Random) -> None:
    for path in cluster.log_of(name).glob("*.snapshot"):
        flip(path, chance)


def cut_the_snapshots(cluster: Cluster, name: str, chance: random.Random) -> None:
    for path in cluster.log_of(name).glob("*.snapshot"):
        os.truncate(path, chance.randrange(path.stat().st_size))


def flip_a_bit_of_the_table_of_entries(cluster: Cluster, name: str, chance: random.Random) -> None:
    flip(cluster.log_of(name) / "entries", chance)


def flip(path: Path, chance: random.Random) -> None:
    if path.exists():
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)


DAMAGES: list[Damage] = [
    cut_the_journal,
    cut_the_journal_between_batches,
    flip_a_bit_of_the_journal,
    delete_the_journal,
    delete_a_segment,
    delete_the_votes,
    flip_a_bit_of_both_votes,
    flip_a_bit_of_one_vote,
    cut_one_vote,
    delete_everything,
    delete_the_snapshots,
    flip_a_bit_of_the_snapshots,
    cut_the_snapshots,
    flip_a_bit_of_the_table_of_entries,
]


def restart(node: NodeProcess) -> None:
    """As a supervisor does: also when it leaves because it has found damage in the background."""
    node.start()
    node.wait_ready()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_node_gets_everything_again_and_no_topic_disappears(tmp_path: Path, damage: Damage) -> None:
    seed = DAMAGES.index(damage)
    with Cluster(tmp_path) as cluster:
        with Load(cluster, 1) as load:
            load.wait_for_more(60)
        topics = cluster.converge()[2]
        victim = cluster.nodes["abc"[seed % 3]]
        victim.close() if "snapshot" in damage.__name__ or "table" in damage.__name__ else victim.kill()
        damage(cluster, victim.name, random.Random(seed))
        restart(victim)
        with Load(cluster, 2) as more:
            more.wait_for_more(20)
            if not victim.running:  # found in the background
                victim.wait_for_exit()
                restart(victim)
            more.wait_for_more(20)

        def is_back() -> bool:
            if not victim.running:
                victim.wait_for_exit()
                restart(victim)
            status = cluster.status_of(victim)
            return status is not None and status[0] in ("follower", "leader")

        wait_until(is_back, what="the damaged node takes part again")
        offset, _, count = cluster.converge()
        assert count >= topics + 40
        check_history(cluster, [*load.clients, *more.clients])
        # Now it is needed for the majority, and must have everything.
        others = [node for node in cluster.nodes.values() if node is not victim]
        others[seed % 2].kill()
        after = cluster.converge()
        assert after[0] >= offset
        assert after[2] == count
        check_history(cluster, [*load.clients, *more.clients])


def test_a_node_that_lost_everything_does_not_vote_for_one_that_lacks_committed_events(tmp_path: Path) -> None:
    """b lags, c has acknowledged what b lacks and then loses all: b and c together must not begin anew."""
    with Cluster(tmp_path) as cluster:
        leader = cluster.leader()
        lagging, wiped = [node for node in cluster.nodes.values() if node is not leader]
        lagging.kill()
        with Load(cluster, 1) as load:
            load.wait_for_more(30)
        cluster.converge()
        leader.kill()
        wiped.kill()
        delete_everything(cluster, wiped.name, random.Random(0))
        restart(lagging)
        restart(wiped)
        for _ in range(20):
            statuses = [cluster.status_of(node) for node in (lagging, wiped)]
            assert all(status is not None and status[0] != "leader" for status in statuses)
        with pytest.raises(AssertionError):
            cluster.leader(seconds=3.0)
        restart(leader)
        cluster.converge()
        check_history(cluster, load.clients)
