"""Nodes without threads, sockets or clocks: messages are delivered by hand, time passes when told, disks are in memory.

Every link is a queue in order, as TCP gives it. Nothing happens that a test does not ask for, so each scenario is the
same every time.
"""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pysyncobj.syncobj as library
import pytest
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from dq.engine.clock import SystemClock
from dq.engine.memory_files import MemoryFiles
from dq.engine.raft.hard_state import HardStateFile
from dq.engine.raft.journal import Entry, RaftJournal
from dq.engine.raft.members import Member, Members
from dq.engine.raft.node import RaftNode
from dq.engine.raft.proposals import Appender
from dq.engine.raft.standing import Status, Timing
from dq.engine.segments.batch import CONTROL, HEADER_SIZE, decode, encode, unpack_header
from dq.engine.segments.config import LogConfig
from dq.engine.segments.log import Identity, PartitionLog
from dq.engine.segments.positions import MemoryIndex

Message = dict[str, Any]


class SimTransport(Transport):  # type: ignore[misc]
    def __init__(self, world: World, name: str) -> None:
        super().__init__(None, None, [])
        self.world = world
        self.name = name
        self.full: set[str] = set()

    def send(self, node: Node, message: Message) -> bool:
        if (self.name, node.id) in self.world.lost:
            return False
        self.world.links[self.name, node.id].append(copy.deepcopy(message))
        return True

    def set_members(self, members: Members) -> None:
        pass

    def congested(self, node: Node) -> bool:
        return node.id in self.full


class SimNode:
    """One node and its disk; also the application, which notes what was committed."""

    def __init__(self, world: World, name: str, files: Any = None) -> None:
        self.world = world
        self.name = name
        self.files = files or MemoryFiles()
        self.applied: list[bytes] = []
        self.queue: list[bytes] = []
        self.stopped_by: Exception | None = None
        self.raises: Exception | None = None
        self.open()

    def open(self) -> None:
        self.hard_state = HardStateFile(self.files, "/raft", self.name)
        config = LogConfig(publish="owner", segment_age=None)
        self.log = PartitionLog(self.files, SystemClock(), "/log", Identity(bytes(16), 0), config, MemoryIndex())
        self.journal = RaftJournal(self.log, self.hard_state)
        self.transport = SimTransport(self.world, self.name)
        self.applied = []
        self.node = RaftNode(
            self.name,
            self.world.members,
            self.journal,
            self.transport,
            self,
            timing=Timing(),
            applied_index=1,
            now=lambda: 0,
        )
        for other in self.world.names:
            if other != self.name:
                self.transport._onNodeConnected(Node(other))
        self.hold_elections()

    def hold_elections(self) -> None:
        self.node._SyncObj__raftElectionDeadline = 1e18

    def tick(self) -> None:
        self.node.tick()
        if not self.node._may_stand:
            self.hold_elections()

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Index and term of everything in the log."""
        return [(entry[1], entry[2]) for entry in self.journal[1:]]

    @property
    def values(self) -> list[bytes]:
        """What the log holds, committed or not, without control records."""
        return [value for entry in self.journal[1:] for value in _values(entry)]

    # what the node calls

    def propose_to(self, log: Appender) -> None:
        queue, self.queue = self.queue, []
        for value in queue:
            log.append(encode([value]))

    def committed(self, entries: Sequence[Entry]) -> None:
        if self.raises is not None:
            raise self.raises
        for entry in entries:
            self.applied += _values(entry)

    def changed(self, status: Status) -> None:
        pass

    def stopped(self, error: Exception) -> None:
        self.stopped_by = error


def _values(entry: Entry) -> list[bytes]:
    header = unpack_header(entry[0])
    if header.flags & CONTROL:
        return []
    return [value or b"" for value in decode(header, entry[0][HEADER_SIZE:]).values]


class World:
    def __init__(self, patch: pytest.MonkeyPatch, names: str = "ABC") -> None:
        self.names = names
        self.now = 1000.0
        patch.setattr(library, "monotonicTime", lambda: self.now)
        self.links: dict[tuple[str, str], deque[Message]] = defaultdict(deque)
        self.lost: set[tuple[str, str]] = set()
        self.members = tuple(Member(name, "127.0.0.1", 1) for name in names)
        self.nodes = {name: SimNode(self, name) for name in names}
        self.settle()
        assert all(node.node.status().role == "follower" for node in self.nodes.values())

    def __getitem__(self, name: str) -> SimNode:
        return self.nodes[name]

    def deliver(self, source: str, to: str, count: int | None = None) -> int:
        queue = self.links[source, to]
        delivered = 0
        while queue and (count is None or delivered < count):
            message = queue.popleft()
            delivered += 1
            if to in self.nodes:
                self.nodes[to].transport._onMessageReceived(Node(source), message)
        return delivered

    def settle(self, names: Iterable[str] | None = None, turns: int = 12) -> None:
        """Lets time pass and delivers everything between the named nodes, or all."""
        group = [name for name in (names or self.names) if name in self.nodes]
        for _ in range(turns):
            for source in group:
                for to in group:
                    if source != to:
                        self.deliver(source, to)
            self.now += 0.11
            for name in group:
                self.nodes[name].tick()

    def separate(self, *names: str) -> None:
        """Nothing gets from these to the others or back; what was on its way is lost."""
        for source in self.names:
            for to in self.names:
                if (source in names) != (to in names):
                    self.lost.add((source, to))
                    self.links[source, to].clear()

    def heal(self) -> None:
        self.lost.clear()

    def stand(self, name: str) -> None:
        """The node's election timeout is over."""
        self.nodes[name].node._SyncObj__raftElectionDeadline = 0
        self.now += 1.0
        self.nodes[name].node.tick()

    def elect(self, name: str, names: Iterable[str] | None = None) -> SimNode:
        self.stand(name)
        self.settle(names)
        assert self.nodes[name].node._isLeader()
        return self.nodes[name]

    def crash(self, name: str) -> SimNode:
        """The process is gone; its disk stays."""
        node = self.nodes.pop(name)
        for (source, to), queue in self.links.items():
            if name in (source, to):
                queue.clear()
        return node

    def restart(self, node: SimNode, change: Callable[[Any], None] | None = None) -> SimNode:
        files = node.files
        if change is not None:
            change(files)
        self.nodes[node.name] = SimNode(self, node.name, files)
        return self.nodes[node.name]
