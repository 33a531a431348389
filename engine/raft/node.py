"""A Raft node: pysyncobj's SyncObj with the rules replaced that are not safe as shipped.

Kept of the library: the roles, the timers, counting what is committed, the leader that steps down when it hears of
no majority. Replaced, by overriding the methods behind its private names (hence the exact version in
pyproject.toml; `tests/raft/test_hazards.py` shows each rule at work):

- messages are handled here: no pickle, only from members, acknowledgements and votes carry terms, entries that match
  are kept, committed ones are never removed, a leader never goes back on what a follower has;
- nothing is said before it is durable: entries are synced before they are acknowledged and before the leader
  counts itself, term and vote before they are sent;
- an election is preceded by a question whether it could be won (pre-vote), so that a node that comes back does not
  disturb a leader that works;
- no snapshots and no compaction: the history is kept, and followers get it as entries however far they lag;
- members change by entries of the log, one change at a time, new ones first follow without counting;
- a node that may have forgotten something does not vote (`rejoin.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pysyncobj.syncobj as library
from pysyncobj.node import Node

from dq.engine.errors import Corruption, DQError
from dq.engine.raft.errors import JournalDamaged, MembershipBusy, NotLeader, UnknownMember
from dq.engine.raft.members import Member, Members, members_batch
from dq.engine.raft.replication import Replication
from dq.engine.raft.standing import FOLLOWER, Status

TELL_AFTER = 0.002  # seconds for which the word of a commit waits for entries to go with
_CAUGHT_UP = 1000  # entries that a new member may lack when it becomes a voter

logger = logging.getLogger("dq.raft")


class RaftNode(Replication):
    """Belongs to the Raft thread."""

    # ------------------------------------------------------------ one turn

    def tick(self) -> None:
        if self.failure is None:
            try:
                self._tick()
            except Exception as error:  # whatever it is, it would come again at the next turn
                logger.exception("%s: a turn failed", self._me)
                self.halt(error)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """An error of the storage ends this node's part in the cluster: nobody knows what it has stored."""
        try:
            work(*arguments)
        except (DQError, OSError) as error:
            self.halt(error)

    def halt(self, error: Exception) -> None:
        if self.failure is not None:
            return
        logger.critical("%s: leaves the cluster: %s", self._me, error)
        self.failure = error
        self._SyncObj__raftState = FOLLOWER
        self._SyncObj__raftLeader = None
        if isinstance(error, (JournalDamaged, Corruption)):
            self.journal.hard_state.save_standing(rejoining=True, discard=True)
        self._net.set_members(())
        self._tell_changes()
        self._application.stopped(error)

    def _tick(self) -> None:
        self.journal.sync()
        self._send_acks()
        self._ask_terms()
        self._watch_election()
        committed = self.raftCommitIndex
        self.doTick(0.0)
        self._may_stand = self._may_stand and self._SyncObj__raftState == FOLLOWER
        if self._isLeader():
            self._promote_learners()
            self._tell_commits(committed)
        self._tell_changes()

    def _tell_commits(self, committed: int) -> None:
        """Followers learn at once what was committed, unless the next entries are about to tell them."""
        now = library.monotonicTime()
        if self.raftCommitIndex > committed and self._untold_since is None:
            self._untold_since = now
        if self._resend or (self._untold_since is not None and now - self._untold_since >= TELL_AFTER):
            self._SyncObj__sendAppendEntries()
        self._resend = False

    @property
    def has_news(self) -> bool:
        """Another turn is needed soon, after TELL_AFTER."""
        return self._untold_since is not None and bool(self._isLeader())

    @property
    def has_work(self) -> bool:
        """Another turn is needed at once."""
        return self.failure is None and self.journal.durable_index < self.journal.last_index

    def status(self) -> Status:
        role = ("follower", "candidate", "leader")[self._SyncObj__raftState]
        if self._rejoin is not None:
            role = "rejoining"
        if self.failure is not None:
            role = "stopped"
        leader = self._getLeader()
        return Status(
            self._me,
            role,
            leader.id if leader is not None else None,
            self.raftCurrentTerm,
            self.raftCommitIndex,
            self.journal.last_index,
            self.members,
        )

    def _tell_changes(self) -> None:
        status, told = self.status(), self._told
        self._told = status
        if (status.role, status.leader, status.term, status.members) != (
            told.role,
            told.leader,
            told.term,
            told.members,
        ):
            self._application.changed(status)

    def _checkCommandsToApply(self) -> None:
        if self.is_ready:
            last = self.journal.last_index
            self._application.propose_to(self)
            if self.journal.last_index > last:
                self._SyncObj__sendAppendEntries()

    def _SyncObj__applyLogEntries(self) -> bool:
        while self.raftLastApplied < self.raftCommitIndex:
            first = self.raftLastApplied + 1
            entries = self.journal.read(first, self.raftCommitIndex - self.raftLastApplied, 4 << 20)
            self._application.committed(entries)
            self._SyncObj__raftLastApplied = entries[-1][1]
        return False

    # ------------------------------------------------------------ members

    def change_members(self, change: Callable[[Members], Members]) -> int:
        """Appends who belongs to the cluster from now on; returns the entry's index. One change at a time."""
        if not self.is_ready:
            leader = self._getLeader()
            raise NotLeader(leader.id if leader is not None else None)
        found = self.journal.latest_members()
        if found is not None and found[0] > self.raftCommitIndex:
            raise MembershipBusy(f"entry {found[0]} changes the members and is not committed yet")
        members = change(self.members)
        if members == self.members:
            return found[0] if found is not None else 0
        index, _ = self.append(members_batch(members, self._now()))
        self._use_latest_members()
        self._SyncObj__sendAppendEntries()
        return index

    def add_member(self, member: Member) -> int:
        """The member first follows without counting, and becomes a voter by itself once it has what the others have."""

        def add(members: Members) -> Members:
            if any(not known.voter for known in members if known.id != member.id):
                raise MembershipBusy("another member is being added")
            if any(known[:3] == member[:3] for known in members):
                return members
            kept = [known for known in members if known.id != member.id]
            return tuple(sorted([*kept, member._replace(voter=False)]))

        return self.change_members(add)

    def remove_member(self, name: str) -> int:
        def remove(members: Members) -> Members:
            if name == self._me:
                raise MembershipBusy("a leader does not remove itself: let it step down first")
            if all(member.id != name for member in members):
                raise UnknownMember(name)
            return tuple(member for member in members if member.id != name)

        return self.change_members(remove)

    def _promote_learners(self) -> None:
        for node in self._SyncObj__readonlyNodes:
            caught_up = self._stored.get(node, 0) >= self.raftCommitIndex - _CAUGHT_UP
            if caught_up and node not in self._rejoining and node in self._stored and self._members_are_settled():
                logger.info("%s: %s has caught up and becomes a voter", self._me, node.id)
                self.change_members(
                    lambda members, name=node.id: tuple(  # type: ignore[misc]
                        member._replace(voter=True) if member.id == name else member for member in members
                    )
                )
                return

    def _members_are_settled(self) -> bool:
        found = self.journal.latest_members()
        return self.is_ready and (found is None or found[0] <= self.raftCommitIndex)

    # ------------------------------------------------------------ messages

    def _SyncObj__onMessageReceived(self, node: Node, message: dict[str, Any]) -> None:
        handler = {
            "append": self._on_append,
            "ack": self._on_ack,
            "pre_vote": self._on_pre_vote,
            "pre_vote_reply": self._on_pre_vote_reply,
            "request_vote": self._on_request_vote,
            "vote": self._on_vote,
            "ask_term": self._on_ask_term,
            "term": self._on_term,
        }.get(message["type"])
        if handler is None or self.failure is not None or not any(member.id == node.id for member in self.members):
            return
        self._guarded(handler, node, message)
