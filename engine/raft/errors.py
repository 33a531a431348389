"""What can go wrong with the replicated event log, beside what can go wrong with any log."""

from __future__ import annotations

from dq.engine.errors import DQError, InvalidInput, StorageError


class NotLeader(DQError):
    """Only the leader takes proposals. Nothing was stored: ask the leader."""

    code = "not_leader"

    def __init__(self, leader: str | None) -> None:
        super().__init__("another node leads: " + leader if leader else "this node does not lead, and none is known to")
        self.leader = leader


class NoQuorum(DQError):
    """No majority could be reached before the deadline. Nothing was stored."""

    code = "no_quorum"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no leader with a majority was found within {seconds:g} s")


class OutcomeUnknown(DQError):
    """The event was stored, but not committed before the deadline: it may be committed yet.

    Proposing it again with the same event id is safe.
    """

    code = "outcome_unknown"

    def __init__(self, event_id: bytes, why: str) -> None:
        super().__init__(f"event {event_id.hex()} may or may not be committed ({why}): retry with the same event id")
        self.event_id = event_id


class MembershipBusy(DQError):
    """One change of the members at a time: the last one is not finished."""

    code = "membership_busy"


class UnknownMember(DQError, LookupError):
    code = "unknown_member"

    def __init__(self, member: str) -> None:
        super().__init__(f"there is no member {member!r}")
        self.member = member


class WrongNode(InvalidInput):
    """The files belong to another node of the cluster."""

    code = "wrong_node"

    def __init__(self, path: str, owner: str, node: str) -> None:
        super().__init__(f"{path} belongs to node {owner!r}, not to {node!r}")
        self.owner = owner
        self.node = node


class JournalDamaged(StorageError):
    """What this node stored of the Raft log is not what it acknowledged: it must not vote before it has all again."""

    code = "journal_damaged"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the Raft log in {path} is damaged: {reason}")
        self.path = path
        self.reason = reason


class HistoryConflict(StorageError):
    """Two nodes hold different committed entries at the same place: this never heals by itself."""

    code = "history_conflict"


class NodeStopped(DQError):
    """The node has left the cluster because of an earlier error, or was closed."""

    code = "node_stopped"


class TooManyProposals(DQError):
    """More proposals wait than this node takes: slow down and try again."""

    code = "too_many_proposals"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit:,} proposals are waiting already")
        self.limit = limit
