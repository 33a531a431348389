"""What is known of a group: its members, and which of them has which partition to itself until when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from immutables import Map

from dq.engine.raft.folds.plain import NOTHING, sorted_pairs, to_map
from dq.engine.raft.refusals import NotLeased, UnknownMember


class Lease(NamedTuple):
    member: str
    until: int


@dataclass(frozen=True, slots=True)
class GroupImage:
    members: Map[str, int] = NOTHING  # name -> when it joined
    leases: Map[int, Lease] = NOTHING  # by partition

    def check_member(self, topic: str, group: str, member: str) -> None:
        if member not in self.members:
            raise UnknownMember(topic, group, member)

    def check_leased(self, topic: str, group: str, member: str, partitions: Iterable[int]) -> None:
        for partition in partitions:
            lease = self.leases.get(partition)
            if lease is None or lease.member != member:
                raise NotLeased(topic, group, partition, member)

    def to_plain(self) -> list[Any]:
        leases = [[partition, *lease] for partition, lease in sorted(self.leases.items())]
        return [sorted_pairs(self.members), leases]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> GroupImage:
        members, leases = plain
        return cls(to_map(members), to_map({partition: Lease(member, until) for partition, member, until in leases}))
