"""A node's standing in the cluster: what it knows of itself and the others, and who the members are.

`elections.py` and `replication.py` add the rules of Raft, `node.py` the turns and the messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pysyncobj.syncobj as library
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node

from dq.engine.raft.journal import Entry, RaftJournal
from dq.engine.raft.members import Members
from dq.engine.raft.proposals import Appender
from dq.engine.raft.rejoin import Cleared, Rejoin
from dq.engine.segments.batch import EncodedBatch

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2  # the library's numbers
_NEVER = 1 << 60


@dataclass(frozen=True)
class Timing:
    """Seconds. A leader that has heard of no majority for `lease` steps down."""

    election: tuple[float, float] = (0.6, 1.2)
    heartbeat: float = 0.1
    lease: float = 1.5


class Status(NamedTuple):
    """What a node knows of itself and the cluster."""

    node: str
    role: str  # "leader", "candidate", "follower", "rejoining" or "stopped"
    leader: str | None
    term: int
    commit_index: int
    last_index: int
    members: Members


class Application(Protocol):
    """What the node works for. Called in the Raft thread; nothing here may raise."""

    def propose_to(self, log: Appender) -> None:
        """This node leads and has applied all earlier entries: hand over what waits."""

    def committed(self, entries: Sequence[Entry]) -> None: ...

    def changed(self, status: Status) -> None: ...

    def stopped(self, error: Exception) -> None: ...


class Standing(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """Fields and members."""

    def __init__(
        self,
        me: str,
        members: Members,
        journal: RaftJournal,
        transport: Any,
        application: Application,
        *,
        timing: Timing,
        applied_index: int,
        now: Callable[[], int],
    ) -> None:
        self.journal = journal
        self.failure: Exception | None = None
        self._me = me
        self._net = transport
        self._application = application
        self._now = now
        self._timing = timing
        self._initial_members = members
        self.members: Members = ()
        self._acks: dict[Node, dict[str, Any]] = {}  # to be sent once what they speak of is durable
        self._rejoin = Rejoin() if journal.hard_state.state.rejoining else None
        self._asked_at = 0.0
        self._heard_leader_at = -1e9
        self._prevotes: set[str] = set()
        self._votes: set[str] = set()
        self._may_stand = False  # the pre-vote was won: the next election is for real
        self._resend = False
        self._untold_since: float | None = None  # followers do not know yet what was committed then
        self._start_index = 0  # of the entry with which this node began to lead
        self._stored: dict[Node, int] = {}  # as leader: up to where each follower has the log, counting or not
        self._probing: set[Node] = set()  # as leader: where their logs and ours part is not known yet
        self._rejoining: dict[Node, Cleared] = {}  # as leader: who does not count, and their barriers
        self._told = Status(me, "", None, -1, 0, 0, ())
        journal.commit_index = applied_index
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=timing.heartbeat,
            raftMinTimeout=timing.election[0],
            raftMaxTimeout=timing.election[1],
            leaderFallbackTimeout=timing.lease,
            logCompactionMinEntries=_NEVER,
            logCompactionMinTime=_NEVER,
            dynamicMembershipChange=False,
        )
        super().__init__(Node(me), [], conf, transport=transport)
        self._SyncObj__raftLastApplied = applied_index
        self._use_latest_members()

    # The library makes a journal of its own and assigns it here.
    @property
    def _SyncObj__raftLog(self) -> RaftJournal:
        return self.journal

    @_SyncObj__raftLog.setter
    def _SyncObj__raftLog(self, ignored: object) -> None:
        pass

    # ------------------------------------------------------------ appending and committing

    @property
    def is_ready(self) -> bool:
        """Leads, and has applied everything that earlier leaders left."""
        return bool(self._isLeader()) and self.raftLastApplied >= self._start_index

    @property
    def next_offset(self) -> int:
        return self.journal.offset_after(self.journal.last_index)

    def append(self, batch: EncodedBatch) -> tuple[int, int]:
        """Adds an entry of this leader; returns its index and its term."""
        return self.journal.append(batch, self.raftCurrentTerm), self.raftCurrentTerm

    def _commit_to(self, index: int) -> None:
        if index > self.raftCommitIndex:
            self._SyncObj__raftCommitIndex = index
            self.journal.setRaftCommitIndex(index)

    # ------------------------------------------------------------ members

    def _use_latest_members(self) -> None:
        found = self.journal.latest_members()
        members = found[1] if found else self._initial_members
        if members == self.members:
            return
        self.members = members
        voters = {Node(member.id) for member in members if member.voter and member.id != self._me}
        learners = {Node(member.id) for member in members if not member.voter and member.id != self._me}
        self._SyncObj__otherNodes = voters
        self._SyncObj__readonlyNodes = learners
        for node in voters | learners:
            if node not in self._SyncObj__raftNextIndex:
                self._SyncObj__raftNextIndex[node] = self.journal.last_index + 1
                self._SyncObj__raftMatchIndex[node] = 0
                self._probing.add(node)
            self._SyncObj__lastResponseTime.setdefault(node, library.monotonicTime())
        for node in set(self._SyncObj__raftNextIndex) - voters - learners:
            for known in (self._SyncObj__raftNextIndex, self._SyncObj__raftMatchIndex, self._SyncObj__lastResponseTime):
                known.pop(node, None)
            self._rejoining.pop(node, None)
            self._stored.pop(node, None)
        self._net.set_members(members)

    @property
    def _voters(self) -> set[str]:
        return {member.id for member in self.members if member.voter}

    @property
    def _majority(self) -> int:
        return len(self._voters) // 2 + 1

    def _adopt_term(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def _postpone_election(self) -> None:
        least, most = self._timing.election
        self._SyncObj__raftElectionDeadline = library.monotonicTime() + random.uniform(least, most)
