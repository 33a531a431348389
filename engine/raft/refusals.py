"""Why a change of metadata is refused, beside the errors that everyone uses (`dq.engine.errors`)."""

from __future__ import annotations

from dq.engine.errors import DQError, InvalidInput


class InvalidChange(InvalidInput):
    """A change that makes no sense whatever the state is; the message names the field."""

    code = "invalid_change"


class Unknown(DQError, LookupError):
    """Nobody has this name or id."""

    code = "unknown"


class UnknownBroker(Unknown):
    code = "unknown_broker"

    def __init__(self, broker_id: int) -> None:
        super().__init__(f"there is no broker {broker_id}")
        self.broker_id = broker_id


class UnknownProducer(Unknown):
    code = "unknown_producer"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no producer {name!r}")
        self.name = name


class UnknownMember(Unknown):
    code = "unknown_member"

    def __init__(self, topic: str, group: str, member: str) -> None:
        super().__init__(f"group {group!r} of topic {topic!r} has no member {member!r}")
        self.topic = topic
        self.group = group
        self.member = member


class UnknownToken(Unknown):
    code = "unknown_token"

    def __init__(self, token_id: str) -> None:
        super().__init__(f"there is no token {token_id!r}")
        self.token_id = token_id


class Taken(DQError):
    """The name or the id already belongs to something else."""

    code = "taken"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} already exists")
        self.what = what


class NotAGroup(DQError):
    code = "not_a_group"

    def __init__(self, topic: str, name: str) -> None:
        super().__init__(f"consumer {name!r} of topic {topic!r} is not a group")
        self.topic = topic
        self.name = name


class LeaseHeld(DQError):
    code = "lease_held"

    def __init__(self, topic: str, group: str, partition: int, member: str, until: int) -> None:
        super().__init__(
            f"partition {partition} of topic {topic!r} is leased to member {member!r} of group {group!r} until {until}"
        )
        self.partition = partition
        self.member = member
        self.until = until


class NotLeased(DQError):
    """The member does not hold the lease (any more): what it wants to do belongs to somebody else now."""

    code = "not_leased"

    def __init__(self, topic: str, group: str, partition: int, member: str | None) -> None:
        super().__init__(f"partition {partition} of topic {topic!r} is not leased to {member!r} of group {group!r}")
        self.partition = partition
        self.member = member


class StalePosition(DQError):
    """Somebody else was faster: the offsets are handed out already, or the consumer was sent elsewhere."""

    code = "stale_position"

    def __init__(self, topic: str, consumer: str, why: str) -> None:
        super().__init__(f"consumer {consumer!r} of topic {topic!r}: {why}")
        self.topic = topic
        self.consumer = consumer


class StaleRevision(DQError):
    code = "stale_revision"

    def __init__(self, topic: str, partition: int, revision: int, current: int) -> None:
        super().__init__(f"partition {partition} of topic {topic!r} is at revision {current}, not {revision}")
        self.topic = topic
        self.partition = partition
        self.revision = revision
        self.current = current


class StaleBroker(DQError):
    code = "stale_broker"

    def __init__(self, broker_id: int, epoch: int, current: int) -> None:
        super().__init__(f"broker {broker_id} with epoch {epoch} was replaced by one with epoch {current}")
        self.broker_id = broker_id
        self.epoch = epoch
        self.current = current


class BrokerNotReady(DQError):
    """The broker is not in a state for this."""

    code = "broker_not_ready"

    def __init__(self, broker_id: int, state: str, wanted: str) -> None:
        super().__init__(f"broker {broker_id} is {state}: {wanted}")
        self.broker_id = broker_id
        self.state = state


class BrokerInUse(DQError):
    code = "broker_in_use"

    def __init__(self, broker_id: int, replicas: int) -> None:
        super().__init__(f"broker {broker_id} still holds {replicas} replicas: move them away first")
        self.broker_id = broker_id
        self.replicas = replicas


class NotInSync(DQError):
    """A leader comes from the in-sync set, unless it is forced; nothing is in sync that is not a replica."""

    code = "not_in_sync"

    def __init__(self, topic: str, partition: int, why: str) -> None:
        super().__init__(f"partition {partition} of topic {topic!r}: {why}")
        self.topic = topic
        self.partition = partition
