"""Commits of positions, many in one: threads that commit at the same time share one proposal.

Several commits of one consumer become one event. That is safe because a commit only sets positions, the last one
counts, and nothing comes between: other changes are proposed on their own. Commits of members of a group stay apart
from those of other members, since each is judged by who holds the lease.
"""

from __future__ import annotations

from collections.abc import Iterable

from dq.engine.errors import DQError
from dq.engine.raft.changes import PositionsCommitted
from dq.engine.raft.event_log import EventLog
from dq.engine.raft.image import check
from dq.engine.segments.combiner import Combiner, Request


def coalesce(commits: Iterable[PositionsCommitted]) -> list[PositionsCommitted]:
    """Fewer commits that lead to the same positions."""
    merged: dict[tuple[str, str, str | None], dict[int, int]] = {}
    for commit in commits:
        key = (commit.topic, commit.consumer, commit.member)
        # The order matters only for one consumer: what comes last has to stay last.
        positions = merged.pop(key, {})
        merged[key] = {**positions, **commit.positions}
        for other, theirs in merged.items():
            if other[:2] == key[:2] and other != key:
                for partition in commit.positions:
                    theirs.pop(partition, None)
    return [
        PositionsCommitted(topic=topic, consumer=consumer, positions=positions, member=member)
        for (topic, consumer, member), positions in merged.items()
        if positions
    ]


class _Commit(Request):
    __slots__ = ("change",)

    def __init__(self, change: PositionsCommitted) -> None:
        super().__init__()
        self.change = change


class PositionCommits:
    """Safe to share between threads; has none of its own."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._commits: Combiner[_Commit] = Combiner(self._propose)

    def commit(self, change: PositionsCommitted) -> None:
        """Returns once the positions are committed; raises when they are refused."""
        self._commits.run(_Commit(change))

    def _propose(self, requests: list[_Commit]) -> None:
        accepted = []
        for request in requests:
            try:
                check(self._log.image, request.change)
                accepted.append(request)
            except DQError as error:
                request.error = error
        if not accepted:
            return
        try:
            self._log.propose_all(coalesce(request.change for request in accepted))
        except LookupError:
            # A consumer went away just now: only those who asked for it are to know.
            for request in accepted:
                self._propose_one(request)

    def _propose_one(self, request: _Commit) -> None:
        try:
            self._log.propose(request.change)
        except DQError as error:
            request.error = error
