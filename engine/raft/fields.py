"""The types that the fields of an event may have, and checking that values have them.

A field is a str, int, bool or bytes; one of these or None; a tuple or a mapping of them; or Any, which is one plain
value: None, a bool, an int, a str or bytes. There are no floats: equal numbers would not always be equal bytes.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

INT_RANGE = range(-(1 << 63), 1 << 63)

Checker = Callable[[Any], Any]  # returns the value as it is kept; raises TypeError when it is of another type


def checkers_of(cls: type) -> dict[str, Checker]:
    """A checker for each field of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {name: _checker(hint) for name, hint in hints.items() if typing.get_origin(hint) is not typing.ClassVar}


def _checker(hint: Any) -> Checker:
    simple = _SIMPLE.get(hint)
    if simple is not None:
        return simple
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType or origin is typing.Union:
        (inner,) = [_checker(argument) for argument in arguments if argument is not types.NoneType]
        return _optional(inner)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return _sequence(_checker(arguments[0]))
        return _fixed([_checker(argument) for argument in arguments])
    if origin is Mapping:
        return _mapping(_checker(arguments[0]), _checker(arguments[1]))
    raise TypeError(f"no event field can be a {hint}")


def _check_int(value: Any) -> int:
    if type(value) is not int or value not in INT_RANGE:
        raise TypeError(f"{_short(value)} is not an integer of 64 bits")
    return value


def _check_str(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{_short(value)} is not a string")
    if not value.isascii():
        value.encode()  # raises when UTF-8 cannot hold it
    return value


def _check_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{_short(value)} is not true or false")
    return value


def _check_bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TypeError(f"{_short(value)} is not bytes")
    return value


def _check_plain(value: Any) -> Any:
    if value is None or type(value) in (bool, bytes):
        return value
    return _check_int(value) if type(value) is int else _check_str(value)


_SIMPLE: dict[Any, Checker] = {
    int: _check_int,
    str: _check_str,
    bool: _check_bool,
    bytes: _check_bytes,
    Any: _check_plain,
}


def _optional(inner: Checker) -> Checker:
    return lambda value: None if value is None else inner(value)


def _sequence(inner: Checker) -> Checker:
    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{_short(value)} is not a list")
        return tuple(map(inner, value))

    return check


def _fixed(items: list[Checker]) -> Checker:
    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) != len(items):
            raise TypeError(f"{_short(value)} is not a list of {len(items)}")
        return tuple(checker(item) for checker, item in zip(items, value, strict=True))

    return check


def _mapping(key: Checker, value: Checker) -> Checker:
    def check(values: Any) -> dict[Any, Any]:
        if not isinstance(values, Mapping):
            raise TypeError(f"{_short(values)} is not a map")
        return {key(name): value(item) for name, item in values.items()}

    return check


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
