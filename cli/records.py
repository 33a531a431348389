"""Records as text and as JSON, in both directions.

In JSON, keys, values and headers are strings where the bytes are UTF-8, and {"base64": "..."} where they are not.
Going in, any other JSON stands for itself, as text: {"value": {"id": 7}} stores `{"id":7}`. Timestamps come out as
ISO times in UTC and go in as that or as microseconds since the epoch. So what comes out can go in again.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import dq
from dq.cli.values import parse_time

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_NAMES = {"\n": r"\n", "\r": r"\r"}
_FIELDS = {"key", "value", "headers", "timestamp"}
_IGNORED = {"offset", "partition", "topic"}

NOTHING = "NULL"  # what stands for a value that deletes its key


def to_text(value: bytes | None) -> str:
    """One line, whatever the bytes are: those that are no UTF-8, and control characters, are escaped."""
    if value is None:
        return NOTHING
    text = value.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda match: _NAMES.get(match[0]) or f"\\x{ord(match[0]):02x}", text)


def time_text(microseconds: int) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def to_json(record: dq.Record) -> str:
    plain: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": time_text(record.timestamp),
        "key": _plain(record.key),
        "value": _plain(record.value),
    }
    if record.headers:
        plain["headers"] = {name: _plain(value) for name, value in record.headers.items()}
    return json.dumps(plain, ensure_ascii=False)


def _plain(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


class Parsed(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes] | None = None
    timestamp: int | datetime | None = None


def from_json(line: bytes, number: int) -> Parsed:
    """A record from a line of JSON; raises InvalidRecord, naming the line."""
    try:
        plain = json.loads(line)
    except ValueError as error:
        raise dq.InvalidRecord(f"line {number} is not JSON: {error}") from None
    if not isinstance(plain, dict) or "value" not in plain:
        raise dq.InvalidRecord(f'line {number} is not a record: allowed is {{"value": ..., "key": ...}}')
    unknown = sorted(set(plain) - _FIELDS - _IGNORED)
    if unknown:
        raise dq.InvalidRecord(f"line {number}: unknown field {unknown[0]!r}: allowed are {', '.join(sorted(_FIELDS))}")
    headers = plain.get("headers")
    if headers is not None and not isinstance(headers, dict):
        raise dq.InvalidRecord(f"line {number}: headers are an object")
    return Parsed(
        _bytes(plain["value"], number),
        _bytes(plain.get("key"), number),
        {name: _bytes(value, number) or b"" for name, value in headers.items()} if headers else None,
        _timestamp(plain.get("timestamp"), number),
    )


def _bytes(plain: Any, number: int) -> bytes | None:
    if plain is None:
        return None
    if isinstance(plain, dict) and set(plain) == {"base64"}:
        try:
            return base64.b64decode(plain["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise dq.InvalidRecord(f"line {number}: not base64: {error}") from None
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _timestamp(plain: Any, number: int) -> int | datetime | None:
    if plain is None or (isinstance(plain, int) and not isinstance(plain, bool)):
        return plain
    moment = parse_time(plain) if isinstance(plain, str) else None
    if moment is None:
        raise dq.InvalidRecord(f"line {number}: invalid timestamp {plain!r}: allowed are an ISO time and microseconds")
    return moment
