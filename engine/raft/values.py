"""What the values of a change have to be like, whatever the state is. Everything here raises InvalidInput."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dq.engine.names import check_name
from dq.engine.raft.refusals import InvalidChange

ROLES = ("admin", "produce", "consume")
HASH_SIZE = 32  # of a token's secret, by SHA-256
ID_SIZE = 16


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidChange(message)


def check_names(**names: str) -> None:
    for what, name in names.items():
        check_name(name, f"a {what} name")


def check_id(name: str, value: bytes) -> None:
    require(len(value) == ID_SIZE, f"{name} has {ID_SIZE} bytes, not {len(value)}")


def check_numbers(name: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        require(number >= 0, f"{name} {number} is negative")


def check_set(name: str, numbers: tuple[int, ...]) -> None:
    check_numbers(name, numbers)
    require(len(set(numbers)) == len(numbers), f"{name}: one is named twice in {list(numbers)}")


def check_positions(positions: Mapping[int, int]) -> None:
    check_numbers("partition", positions)
    check_numbers("position", positions.values())


def check_permissions(permissions: Mapping[str, tuple[str, ...]]) -> None:
    for role, topics in permissions.items():
        require(role in ROLES, f"there is no role {role!r}: allowed are {', '.join(ROLES)}")
        for topic in topics:
            if topic != "*":
                check_name(topic.removesuffix("*"), "a topic name or prefix")
