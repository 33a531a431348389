"""The ways in which pysyncobj 0.3.17 loses or doubles what was acknowledged, each as a story that must end well.

The first group looks at the library itself: when one of these fails after an upgrade, read what changed there before
the overrides in `engine/raft` are adapted.
"""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pysyncobj.syncobj as library
import pytest
from pysyncobj.node import Node

from dq.engine.errors import DamagedBatch
from dq.engine.raft.errors import HistoryConflict, MembershipBusy
from dq.engine.raft.members import Member
from dq.engine.raft.rejoin import UNKNOWN_VOTE
from dq.engine.segments.batch import encode
from tests.raft.simulator import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


# ---------------------------------------------------------------- the library


def test_the_library_is_the_version_whose_private_names_are_overridden() -> None:
    assert version("pysyncobj") == "0.3.17"


@pytest.mark.parametrize(
    "name",
    [
        "applyLogEntries",
        "onMessageReceived",
        "onBecomeLeader",
        "sendAppendEntries",
        "setCurrentTerm",
        "setState",
        "onNodeConnected",
        "onNodeDisconnected",
    ],
)
def test_the_overridden_methods_exist(name: str) -> None:
    assert callable(getattr(library.SyncObj, f"_SyncObj__{name}"))


def test_the_library_calls_what_is_overridden_from_its_tick() -> None:
    source = inspect.getsource(library.SyncObj._onTick)
    for call in ("__applyLogEntries()", "__sendAppendEntries()", "_checkCommandsToApply()", "__onBecomeLeader()"):
        assert f"self.{call}" in source
    assert "leaderFallbackTimeout" in source


def test_the_library_sends_by_itself_only_requests_for_votes() -> None:
    assert inspect.getsource(library.SyncObj._onTick).count("'type':") == 1
    assert "'request_vote'" in inspect.getsource(library.SyncObj._onTick)
    assert "transport.send" not in inspect.getsource(library.SyncObj._SyncObj__onBecomeLeader)


# ---------------------------------------------------------------- entries


def _propose(world: World, leader: str, count: int, size: int = 100_000) -> list[bytes]:
    """Large events, so that they travel in several messages."""
    values = [b"%04d" % number + bytes(size) for number in range(count)]
    world[leader].queue += values
    world[leader].tick()
    return values


def test_a_late_duplicate_of_a_message_removes_nothing_that_came_after_it(world: World) -> None:
    world.elect("A")
    world.separate("C")
    values = _propose(world, "A", 12)
    duplicate = next(message for message in world.links["A", "B"] if message.get("entries"))
    world.settle("AB")
    assert world["A"].applied == world["B"].applied == values
    world.links["A", "B"].append(duplicate)
    world.deliver("A", "B")
    world["B"].tick()
    assert world["B"].values == values
    world.crash("A")
    world.heal()
    world.elect("B")
    world.settle()
    assert world["C"].applied == values


def test_an_acknowledgement_does_not_make_the_leader_send_again_what_is_on_its_way(world: World) -> None:
    world.elect("A")
    _propose(world, "A", 12)
    sent = [entry[1] for message in world.links["A", "B"] for entry in message.get("entries", ())]
    assert sent == sorted(set(sent))
    world.deliver("A", "B", 1)
    world["B"].tick()
    world.deliver("B", "A")
    before = len(world.links["A", "B"])
    world["A"].tick()
    again = [entry[1] for message in list(world.links["A", "B"])[before:] for entry in message.get("entries", ())]
    assert again == []


def test_an_acknowledgement_of_an_earlier_term_does_not_count(world: World) -> None:
    world.elect("A")
    world.settle()
    late = {"type": "ack", "term": world["A"].node.raftCurrentTerm, "success": True, "rejoining": None}
    for old, new in ("AB", "BA"):
        world[old].node.step_down()
        world.links.clear()
        world.elect(new)
    world.separate("A")
    world["A"].queue += [b"event"]
    world["A"].tick()
    for name in "BC":
        world["A"].transport._onMessageReceived(Node(name), {**late, "index": world["A"].journal.last_index})
    world["A"].tick()
    assert world["A"].applied == []


def test_uncommitted_entries_of_an_old_leader_give_way_and_are_never_applied(world: World) -> None:
    world.elect("A")
    world.separate("A")
    world["A"].queue += [b"only on A 1", b"only on A 2"]
    world["A"].tick()
    assert world["A"].values == [b"only on A 1", b"only on A 2"]
    world.elect("B", "BC")
    world["B"].queue += [b"good %d" % number for number in range(6)]
    world.settle("BC")
    world.heal()
    world.settle()
    expected = [b"good %d" % number for number in range(6)]
    assert [world[name].applied for name in "ABC"] == [expected] * 3
    assert world["A"].entries == world["B"].entries == world["C"].entries


def test_the_word_of_what_is_committed_is_not_applied_to_entries_that_were_not_compared(world: World) -> None:
    """A follower with a tail of its own hears of a commit index beyond the part that is known to match."""
    world.elect("A")
    world.separate("A")
    world["A"].queue += [b"mine %d" % number for number in range(5)]
    world["A"].tick()
    world.elect("B", "BC")
    world["B"].queue += [b"theirs %d" % number for number in range(5)]
    world.settle("BC")
    world.heal()
    for _ in range(30):
        world.deliver("B", "A", 1)
        world["A"].tick()
        assert not any(value.startswith(b"mine") for value in world["A"].applied)
        world.deliver("A", "B")
        world.now += 0.11
        world["B"].tick()
    assert world["A"].applied == [b"theirs %d" % number for number in range(5)]


def test_a_committed_entry_is_never_removed_whoever_asks(world: World) -> None:
    world.elect("A")
    world["A"].queue += [b"committed"]
    world.settle()
    victim = world["B"]
    index = victim.journal.last_index
    forged = victim.journal.read(index, 1)[0]
    message = {
        "type": "append",
        "term": 99,
        "prev_index": index - 1,
        "prev_term": victim.journal.term_at(index - 1),
        "prev_crc": victim.journal.crc_at(index - 1),
        "entries": ((forged[0], index, 99),),
        "commit": index,
        "cleared": None,
    }
    victim.transport._onMessageReceived(Node("C"), message)
    assert isinstance(victim.stopped_by, HistoryConflict)
    assert victim.values == [b"committed"]


def test_damaged_entries_of_a_leader_are_not_stored(world: World) -> None:
    world.elect("A")
    world.settle()
    world["A"].queue += [b"event"]
    world["A"].tick()
    (message,) = [item for item in world.links["A", "B"] if item.get("entries")]
    command, index, term = message["entries"][0]
    world.links["A", "B"].clear()
    world["B"].transport._onMessageReceived(Node("A"), {**message, "entries": ((command[:-1] + b"X", index, term),)})
    assert world["B"].values == []
    world.settle()
    assert world["B"].applied == [b"event"]


def test_messages_of_strangers_are_ignored(world: World) -> None:
    world.elect("A")
    world["A"].queue += [b"event"]
    world.settle()
    before = world["B"].entries, world["B"].node.raftCurrentTerm
    for kind in ("append", "ack", "request_vote", "vote", "pre_vote", "apply_command", "next_node_idx", "timeout_now"):
        message = {"type": kind, "term": 1000, "commit_index": 1, "entries": [], "prevLogIdx": 1, "prevLogTerm": 0}
        world["B"].transport._onMessageReceived(Node("stranger"), message)
    assert (world["B"].entries, world["B"].node.raftCurrentTerm) == before


def test_the_library_s_own_messages_mean_nothing_even_from_members(world: World) -> None:
    world.elect("A")
    world.settle()
    before = world["B"].entries, world["B"].node.raftCurrentTerm
    for kind in ("append_entries", "apply_command", "apply_command_response", "next_node_idx", "timeout_now"):
        world["B"].transport._onMessageReceived(Node("A"), {"type": kind, "term": 1000, "command": b"\0x"})
    assert (world["B"].entries, world["B"].node.raftCurrentTerm) == before


# ---------------------------------------------------------------- durability


def test_nothing_is_acknowledged_before_it_is_durable(world: World) -> None:
    world.elect("A")
    world.settle()
    world.links.clear()
    world["A"].queue += [b"event"]
    world["A"].tick()
    world.deliver("A", "B")
    assert not world.links["B", "A"]
    assert world["B"].journal.durable_index < world["B"].journal.last_index
    world["B"].tick()
    (ack,) = [message for message in world.links["B", "A"] if message["type"] == "ack"]
    assert ack["index"] == world["B"].journal.durable_index == world["B"].log.durable_end + 1


def test_a_leader_does_not_count_itself_before_its_entry_is_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.elect("A")
    world.settle()
    world["A"].queue += [b"event"]
    world["A"].tick()
    world.deliver("A", "B")
    world["B"].tick()
    world.deliver("B", "A")

    def fail() -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(world["A"].journal, "sync", fail)
    world["A"].tick()
    assert world["A"].applied == []
    assert isinstance(world["A"].stopped_by, OSError)
    assert not world["A"].node._isLeader()


def test_a_vote_is_on_stable_storage_before_it_is_sent(world: World) -> None:
    world.stand("A")
    while not any(message["type"] == "request_vote" for message in world.links["A", "B"]):
        world.deliver("A", "B")
        world.deliver("B", "A")
        world["A"].node.tick()
    while not any(message["type"] == "vote" for message in world.links["B", "A"]):
        assert world.deliver("A", "B", 1)
    state = world["B"].hard_state.state
    assert (state.term, state.vote) == (world["A"].node.raftCurrentTerm, "A")
    restarted = world.restart(world.crash("B"))
    assert restarted.node._SyncObj__votedForNodeId == "A"
    world.links.clear()
    request = {"type": "request_vote", "term": state.term, "last_log_index": 99, "last_log_term": 99}
    restarted.transport._onMessageReceived(Node("C"), request)
    assert [message["granted"] for message in world.links["B", "C"] if message["type"] == "vote"] == [False]


def test_a_node_that_lost_its_vote_never_votes_again_in_that_term(world: World) -> None:
    world.elect("A")
    world.settle()
    term = world["A"].node.raftCurrentTerm

    def lose_votes(files: object) -> None:
        for name in ("vote", "vote.copy"):
            files.remove(f"/raft/{name}")  # type: ignore[attr-defined]

    node = world.restart(world.crash("B"), lose_votes)
    assert node.node.status().role == "rejoining"
    request = {"type": "request_vote", "term": term, "last_log_index": 99, "last_log_term": 99}
    node.transport._onMessageReceived(Node("C"), request)
    world.settle()
    assert node.node.status().role == "follower"
    node.transport._onMessageReceived(Node("C"), request)
    votes = [message for message in world.links["B", "C"] if message["type"] == "vote"]
    assert [vote["granted"] for vote in votes] == [False]
    assert node.hard_state.state.vote == UNKNOWN_VOTE
    world["A"].node.step_down()
    world.links.clear()
    world.elect("C")


def test_a_node_that_lost_everything_is_not_counted_until_the_others_are_enough(world: World) -> None:
    world.elect("A")
    world.separate("C")
    world["A"].queue += [b"one"]
    world.settle("AB")
    wiped = world.crash("B")
    world.nodes["B"] = type(wiped)(world, "B")
    world["A"].queue += [b"two"]
    world.settle("AB", 5)
    assert world["B"].values[:1] == [b"one"]
    assert world["A"].applied == [b"one"]
    assert world["B"].node.status().role == "rejoining"
    world.heal()
    world.settle(turns=30)
    assert world["B"].node.status().role == "follower"
    leader = next(node for node in world.nodes.values() if node.node._isLeader())
    leader.queue += [b"three"]
    world.settle()
    assert all(b"three" in node.applied and b"one" in node.applied for node in world.nodes.values())


# ---------------------------------------------------------------- applying


def test_an_application_that_cannot_apply_stops_its_node_and_nobody_else(world: World) -> None:
    world.elect("A")
    world["B"].raises = DamagedBatch("no")
    world["A"].queue += [b"poison", b"after"]
    world.settle()
    assert isinstance(world["B"].stopped_by, DamagedBatch)
    assert world["A"].applied == world["C"].applied == [b"poison", b"after"]


def test_every_entry_is_applied_once_and_in_order(world: World) -> None:
    world.elect("A")
    for number in range(40):
        world["A"].queue += [b"%d" % number]
        world.settle(turns=1)
    world.settle()
    assert [world[name].applied for name in "ABC"] == [[b"%d" % number for number in range(40)]] * 3


def test_all_that_waits_goes_into_the_log_in_one_write(world: World) -> None:
    world.elect("A")
    world.settle()
    syncs = world["A"].journal.syncs
    world["A"].queue += [b"%d" % number for number in range(100)]
    world.settle()
    assert world["A"].journal.syncs == syncs + 1


# ---------------------------------------------------------------- leading


def test_a_leader_without_a_majority_steps_down_within_its_lease(world: World) -> None:
    world.elect("A")
    world.separate("A")
    start = world.now
    while world["A"].node._isLeader():
        world.now += 0.05
        world["A"].tick()
        assert world.now - start < 1.7


def test_a_node_that_could_not_win_does_not_raise_its_term(world: World) -> None:
    world.elect("A")
    term = world["A"].node.raftCurrentTerm
    world.separate("C")
    for _ in range(10):
        world.stand("C")
        world.settle("AB", 1)
    assert world["C"].node.raftCurrentTerm == term
    world.heal()
    world.stand("C")
    world.settle()
    assert world["A"].node._isLeader()
    assert world["A"].node.raftCurrentTerm == term


def test_a_vote_counts_once_however_often_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, "ABCDE")
    world.separate("A", "B")
    world["A"].node._SyncObj__setCurrentTerm(5, "A")
    world["A"].node._SyncObj__setState(1)
    for _ in range(5):
        world["A"].transport._onMessageReceived(Node("B"), {"type": "vote", "term": 5, "granted": True})
    assert not world["A"].node._isLeader()


def test_one_change_of_the_members_at_a_time(world: World) -> None:
    world.elect("A")
    world.settle()
    world["A"].node.add_member(Member("D", "127.0.0.1", 2))
    with pytest.raises(MembershipBusy):
        world["A"].node.remove_member("C")
    world.settle()
    world["A"].node.remove_member("D")
    world.settle()
    assert [member.id for member in world["B"].node.members] == ["A", "B", "C"]


def test_a_change_of_members_that_was_not_committed_is_taken_back(world: World) -> None:
    world.elect("A")
    world.settle()
    world.separate("A")
    world["A"].node.add_member(Member("D", "127.0.0.1", 2))
    assert len(world["A"].node.members) == 4
    world.elect("B", "BC")
    world.heal()
    world.settle()
    assert [len(world[name].node.members) for name in "ABC"] == [3, 3, 3]


def test_entries_before_raft_that_differ_are_a_conflict_and_not_overwritten(world: World) -> None:
    for name, value in (("A", b"history of A"), ("B", b"history of B")):
        world[name].journal.append(encode([value]), 0)
        world[name].journal.sync()
    world.elect("A", "AC")
    world.settle()
    assert isinstance(world["B"].stopped_by, HistoryConflict)
    assert world["B"].values == [b"history of B"]
