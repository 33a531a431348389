"""Brokers: registered, active, inactive, fenced, gone; and which replicas each of them holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from immutables import Map

from dq.engine.raft.changes import (
    BrokerActivated,
    BrokerDeactivated,
    BrokerFenced,
    BrokerRegistered,
    BrokerRemoved,
)
from dq.engine.raft.folds.plain import DERIVED, NOTHING, sorted_pairs, to_map
from dq.engine.raft.refusals import BrokerInUse, BrokerNotReady, StaleBroker, UnknownBroker

if TYPE_CHECKING:
    from dq.engine.raft.folds.rules import Rules
    from dq.engine.raft.image import Image

BrokerState = Literal["registered", "active", "inactive", "fenced"]
Replica = tuple[bytes, int]  # topic id, partition


@dataclass(frozen=True, slots=True)
class BrokerImage:
    broker_id: int
    address: str
    rack: str | None
    labels: Map[str, str]
    epoch: int
    state: BrokerState
    since: int  # when it came into this state
    reason: str = ""
    # What it holds; follows from the assignments of partitions.
    replicas: Map[Replica, None] = field(default=NOTHING, metadata=DERIVED)

    def to_plain(self) -> list[Any]:
        return [
            self.broker_id,
            self.address,
            self.rack,
            sorted_pairs(self.labels),
            self.epoch,
            self.state,
            self.since,
            self.reason,
        ]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> BrokerImage:
        broker_id, address, rack, labels, epoch, state, since, reason = plain
        return cls(broker_id, address, rack, to_map(labels), epoch, state, since, reason)


def broker_of(image: Image, broker_id: int) -> BrokerImage:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise UnknownBroker(broker_id)
    return broker


def check_active(image: Image, broker_id: int) -> None:
    broker = broker_of(image, broker_id)
    if broker.state != "active":
        raise BrokerNotReady(broker_id, broker.state, "only an active one leads and takes replicas")


def with_replicas_moved(
    brokers: Map[int, BrokerImage], replica: Replica, before: Iterable[int], after: Iterable[int]
) -> Map[int, BrokerImage]:
    """The brokers once a partition's replicas are on other ones."""
    before, after = set(before), set(after)
    for broker_id in before - after:
        broker = brokers[broker_id]
        brokers = brokers.set(broker_id, replace(broker, replicas=broker.replicas.delete(replica)))
    for broker_id in after - before:
        broker = brokers[broker_id]
        brokers = brokers.set(broker_id, replace(broker, replicas=broker.replicas.set(replica, None)))
    return brokers


def register(image: Image, change: BrokerRegistered, time: int) -> Image:
    known = image.brokers.get(change.broker_id)
    if known is not None and change.epoch <= known.epoch:
        raise StaleBroker(change.broker_id, change.epoch, known.epoch)
    broker = BrokerImage(
        broker_id=change.broker_id,
        address=change.address,
        rack=change.rack,
        labels=to_map(change.labels),
        epoch=change.epoch,
        state="registered",
        since=time,
        replicas=NOTHING if known is None else known.replicas,
    )
    return replace(image, brokers=image.brokers.set(change.broker_id, broker))


def activate(image: Image, change: BrokerActivated, time: int) -> Image:
    broker = broker_of(image, change.broker_id)
    if broker.state == "fenced":
        raise BrokerNotReady(change.broker_id, broker.state, "it has to register again")
    return _with_state(image, broker, "active", time, "")


def deactivate(image: Image, change: BrokerDeactivated, time: int) -> Image:
    broker = broker_of(image, change.broker_id)
    if broker.state == "fenced":
        raise BrokerNotReady(change.broker_id, broker.state, "it is not active anyway")
    return _with_state(image, broker, "inactive", time, change.reason)


def fence(image: Image, change: BrokerFenced, time: int) -> Image:
    broker = broker_of(image, change.broker_id)
    if change.epoch != broker.epoch:
        raise StaleBroker(change.broker_id, change.epoch, broker.epoch)
    return _with_state(image, broker, "fenced", time, change.reason)


def _with_state(image: Image, broker: BrokerImage, state: BrokerState, time: int, reason: str) -> Image:
    if broker.state == state:
        return image
    changed = replace(broker, state=state, since=time, reason=reason)
    return replace(image, brokers=image.brokers.set(broker.broker_id, changed))


def remove(image: Image, change: BrokerRemoved, time: int) -> Image:
    broker = broker_of(image, change.broker_id)
    if broker.replicas:
        raise BrokerInUse(change.broker_id, len(broker.replicas))
    return replace(image, brokers=image.brokers.delete(change.broker_id))


RULES: Rules = {
    BrokerRegistered: register,
    BrokerActivated: activate,
    BrokerDeactivated: deactivate,
    BrokerFenced: fence,
    BrokerRemoved: remove,
}
