"""Who leads: pre-votes, votes, and the way back for a node that may have forgotten its vote or its entries."""

from __future__ import annotations

import logging
from typing import Any

import pysyncobj.syncobj as library
from pysyncobj.node import Node

from dq.engine.raft.rejoin import UNKNOWN_VOTE, Rejoin
from dq.engine.raft.standing import CANDIDATE, FOLLOWER, LEADER, Standing

_ASK_EVERY = 0.1

logger = logging.getLogger("dq.raft")


class Elections(Standing):
    """Votes and terms."""

    # ------------------------------------------------------------ elections

    def _watch_election(self) -> None:
        """Before the library stands for election: asks whether it could win."""
        if self._isLeader() or self._SyncObj__raftElectionDeadline >= library.monotonicTime() or self._may_stand:
            return
        if self._rejoin is not None or self._me not in self._voters:
            self._postpone_election()
            return
        self._SyncObj__raftLeader = None
        self._prevotes = {self._me}
        if len(self._prevotes) >= self._majority:
            self._may_stand = True
            return
        self._postpone_election()
        for other in self._SyncObj__otherNodes:
            self._net.send(other, {"type": "pre_vote", **self._candidacy(self.raftCurrentTerm + 1)})

    def _candidacy(self, term: int) -> dict[str, Any]:
        return {"term": term, "last_log_index": self.journal.last_index, "last_log_term": self.journal.last_term}

    def _is_electable(self, node: Node, message: dict[str, Any]) -> bool:
        theirs = message["last_log_term"], message["last_log_index"]
        ours = self.journal.last_term, self.journal.last_index
        return self._rejoin is None and node.id in self._voters and theirs >= ours

    def _on_pre_vote(self, node: Node, message: dict[str, Any]) -> None:
        silent = library.monotonicTime() - self._heard_leader_at >= self._timing.election[0]
        granted = (
            not self._isLeader()
            and silent
            and message["term"] > self.raftCurrentTerm
            and self._is_electable(node, message)
        )
        reply = {"type": "pre_vote_reply", "for": message["term"], "term": self.raftCurrentTerm, "granted": granted}
        self._net.send(node, reply)

    def _on_pre_vote_reply(self, node: Node, message: dict[str, Any]) -> None:
        if message["term"] > self.raftCurrentTerm:
            self._adopt_term(message["term"])
        elif message["granted"] and message["for"] == self.raftCurrentTerm + 1 and node.id in self._voters:
            self._prevotes.add(node.id)
            standing = self._SyncObj__raftState != LEADER and self._SyncObj__raftLeader is None
            if standing and len(self._prevotes) >= self._majority and self._rejoin is None:
                self._prevotes = set()
                self._votes = set()
                self._may_stand = True
                self._SyncObj__raftElectionDeadline = 0

    def _on_request_vote(self, node: Node, message: dict[str, Any]) -> None:
        if message["term"] > self.raftCurrentTerm:
            self._adopt_term(message["term"])
        granted = (
            message["term"] == self.raftCurrentTerm
            and not self._isLeader()
            and self._SyncObj__votedForNodeId in (None, node.id)
            and self._is_electable(node, message)
        )
        if granted:
            self._SyncObj__setCurrentTerm(self.raftCurrentTerm, node.id)
            self._postpone_election()
        self._net.send(node, {"type": "vote", "term": self.raftCurrentTerm, "granted": granted})

    def _on_vote(self, node: Node, message: dict[str, Any]) -> None:
        if message["term"] > self.raftCurrentTerm:
            self._adopt_term(message["term"])
        elif (
            message["granted"]
            and message["term"] == self.raftCurrentTerm
            and self._SyncObj__raftState == CANDIDATE
            and node.id in self._voters
        ):
            self._votes.add(node.id)
            if len(self._votes | {self._me}) >= self._majority:
                self._SyncObj__onBecomeLeader()

    def _SyncObj__onBecomeLeader(self) -> None:
        self._stored, self._rejoining = {}, {}
        self._probing = self._SyncObj__otherNodes | self._SyncObj__readonlyNodes
        self._start_index = self.journal.last_index + 1
        super()._SyncObj__onBecomeLeader()

    def step_down(self) -> None:
        """Lets another one lead: does not stand for election before the others had their time to."""
        if self._isLeader():
            self._SyncObj__setState(FOLLOWER)
            self._SyncObj__raftLeader = None
            self._SyncObj__raftElectionDeadline = library.monotonicTime() + 3 * self._timing.election[1]

    def _ask_terms(self) -> None:
        rejoin = self._rejoin
        if rejoin is None:
            return
        others = self._voters - {self._me}
        barrier = rejoin.cleared
        known = barrier is not None and barrier.index <= self.journal.last_index
        term = self.journal.term_at(barrier.index) if barrier is not None and known else None
        if rejoin.is_done(others, self.journal.durable_index, term):
            self._finish_rejoining(rejoin)
        elif library.monotonicTime() - self._asked_at >= _ASK_EVERY:
            self._asked_at = library.monotonicTime()
            for name in rejoin.unheard(others):
                self._net.send(Node(name), {"type": "ask_term", "nonce": rejoin.nonce})

    def _finish_rejoining(self, rejoin: Rejoin) -> None:
        term = max(self.raftCurrentTerm, rejoin.highest_term())
        vote = self._SyncObj__votedForNodeId if term == self.raftCurrentTerm else None
        self._SyncObj__setCurrentTerm(term, vote or (UNKNOWN_VOTE if term else None))
        self.journal.hard_state.save_standing(rejoining=False)
        self._rejoin = None
        logger.info("%s: takes part in elections from term %d on", self._me, term + 1)

    def _on_ask_term(self, node: Node, message: dict[str, Any]) -> None:
        reply = {"type": "term", "nonce": message["nonce"], "term": self.raftCurrentTerm}
        self._net.send(node, {**reply, "empty": self.journal.is_empty})

    def _on_term(self, node: Node, message: dict[str, Any]) -> None:
        if self._rejoin is not None:
            self._rejoin.report(node.id, message["nonce"], message["term"], message["empty"])
