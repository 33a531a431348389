"""How entries get from the leader to the followers, and how the leader learns what they have."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pysyncobj.syncobj as library
from pysyncobj.node import Node

from dq.engine.errors import DamagedBatch
from dq.engine.raft.elections import Elections
from dq.engine.raft.errors import HistoryConflict
from dq.engine.raft.journal import Entry
from dq.engine.raft.members import BARRIER, control_batch
from dq.engine.raft.rejoin import Cleared
from dq.engine.raft.standing import FOLLOWER

_MESSAGE_BYTES = 256 << 10
_MESSAGE_ENTRIES = 4096
_WINDOW = 16384  # entries on their way to a follower

logger = logging.getLogger("dq.raft")


class Replication(Elections):
    """Entries and acknowledgements."""

    # ------------------------------------------------------------ entries: the follower

    def _on_append(self, node: Node, message: dict[str, Any]) -> None:
        term = message["term"]
        if term < self.raftCurrentTerm or (term == self.raftCurrentTerm and self._isLeader()):
            self._refuse(node, self.journal.last_index + 1)
            return
        if term > self.raftCurrentTerm:
            self._adopt_term(term)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = node
        self._may_stand = False
        self._heard_leader_at = library.monotonicTime()
        self._postpone_election()
        if message["cleared"] is not None and self._rejoin is not None:
            self._rejoin.clear(Cleared(*message["cleared"]))
        previous = message["prev_index"]
        if previous > self.journal.last_index:
            self._refuse(node, self.journal.last_index + 1)
        elif self.journal.term_at(previous) != message["prev_term"]:
            self._refuse(node, self.journal.first_index_of_term_at(previous))
        else:
            self._check_same(previous, message["prev_crc"])
            try:
                self._take_entries(message["entries"])
            except DamagedBatch as error:
                logger.error("%s: %s sent entries that are not intact: %s", self._me, node.id, error)
                self._refuse(node, self.journal.last_index + 1)
                return
            stored = previous + len(message["entries"])
            self._commit_to(min(message["commit"], stored))
            self._SyncObj__leaderCommitIndex = message["commit"]
            self._acks[node] = {"type": "ack", "success": True, "index": stored}

    def _check_same(self, index: int, crc: int) -> None:
        """Entries of a term have one leader and so one content; those of term 0 were written before there was Raft."""
        if self.journal.term_at(index) == 0 and self.journal.crc_at(index) != crc:
            raise HistoryConflict(f"entry {index} of term {self.journal.term_at(index)} has other bytes on the leader")

    def _take_entries(self, entries: Sequence[Entry]) -> None:
        """Appends what is new. Entries that are here already stay, also those behind the last one sent."""
        touched = False
        for command, index, term in entries:
            if index <= self.journal.last_index:
                if self.journal.term_at(index) == term:
                    continue
                if index <= self.raftCommitIndex:
                    raise HistoryConflict(f"entry {index} is committed, and the leader of term {term} has another one")
                self.journal.truncate(index)
                touched = True
            self.journal.take(command, index, term)
            touched = touched or self.journal.is_control(index)
        if touched:
            self._use_latest_members()

    def _refuse(self, node: Node, next_index: int) -> None:
        self._acks[node] = {"type": "ack", "success": False, "index": next_index}

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, {}
        nonce = self._rejoin.nonce if self._rejoin is not None else None
        for node, ack in acks.items():
            self._net.send(node, {**ack, "term": self.raftCurrentTerm, "rejoining": nonce})

    # ------------------------------------------------------------ entries: the leader

    def _on_ack(self, node: Node, message: dict[str, Any]) -> None:
        if message["term"] > self.raftCurrentTerm:
            self._adopt_term(message["term"])
            return
        if not self._isLeader() or message["term"] != self.raftCurrentTerm:
            return  # an answer to an earlier leader
        self._note_rejoining(node, message["rejoining"])
        counts = node not in self._rejoining
        if counts:
            self._SyncObj__lastResponseTime[node] = library.monotonicTime()
        index, next_index = message["index"], self._SyncObj__raftNextIndex
        if not message["success"]:
            next_index[node] = max(2, min(index, self.journal.last_index + 1))
            self._probing.add(node)
            self._resend = True
            return
        if index > self.journal.last_index:
            logger.error("%s: %s acknowledges entry %d, which was never sent", self._me, node.id, index)
            return
        self._probing.discard(node)
        self._stored[node] = max(index, self._stored.get(node, 0))
        next_index[node] = max(index + 1, next_index[node])
        if counts:
            match = self._SyncObj__raftMatchIndex
            match[node] = max(index, match[node])
        self._resend = self._resend or next_index[node] <= self.journal.last_index

    def _SyncObj__sendAppendEntries(self) -> None:
        self._untold_since = None
        self._SyncObj__newAppendEntriesTime = library.monotonicTime() + self._timing.heartbeat
        for node in self._SyncObj__otherNodes | self._SyncObj__readonlyNodes:
            if node in self._SyncObj__connectedNodes and not self._net.congested(node):
                self._send_entries(node)

    def _send_entries(self, node: Node) -> None:
        """What the follower lacks, as far as it has room; at least a word that the leader is alive."""
        next_index, last = self._SyncObj__raftNextIndex, self.journal.last_index
        spoke = False
        while not spoke or (next_index[node] <= last and node not in self._probing):
            entries: list[Entry] = []
            far_ahead = next_index[node] - self._stored.get(node, 0) > _WINDOW and node not in self._probing
            if next_index[node] <= last and not far_ahead and not self._net.congested(node):
                entries = self.journal.read(next_index[node], _MESSAGE_ENTRIES, _MESSAGE_BYTES)
            elif spoke:
                return
            self._net.send(node, self._append_message(node, next_index[node] - 1, entries))
            if entries and node not in self._probing:
                next_index[node] = entries[-1][1] + 1
            spoke = True

    def _append_message(self, node: Node, previous: int, entries: list[Entry]) -> dict[str, Any]:
        cleared = self._rejoining.get(node)
        return {
            "type": "append",
            "term": self.raftCurrentTerm,
            "prev_index": previous,
            "prev_term": self.journal.term_at(previous),
            "prev_crc": self.journal.crc_at(previous),
            "entries": entries,
            "commit": self.raftCommitIndex,
            "cleared": cleared if cleared is not None and self.raftCommitIndex >= cleared.index else None,
        }

    def _note_rejoining(self, node: Node, nonce: bytes | None) -> None:
        """A follower that may have forgotten something does not count until the barrier is committed without it."""
        known = self._rejoining.get(node)
        if nonce is None:
            if known is not None:
                del self._rejoining[node]
        elif self.is_ready and (known is None or known.nonce != nonce or not known.index):
            index, term = self.append(control_batch(BARRIER, time=self._now()))
            self._rejoining[node] = Cleared(nonce, index, term)
            self._resend = True
        elif known is None:
            self._rejoining[node] = Cleared(nonce, 0, 0)
