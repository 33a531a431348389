"""The settings of a topic: what a user may ask for, checked, and as it is kept in events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import Any

from dq.engine.errors import InvalidConfig
from dq.engine.segments.batch import HEADER_SIZE, MAX_BATCH_BYTES, MAX_BODY_BYTES
from dq.engine.segments.compression import codec_number
from dq.engine.segments.config import DAY, Flush, LogConfig

MOST_PARTITIONS = 10_000
UNLIMITED = "unlimited"  # in events, where None is for 'as by default'

Duration = timedelta | float | None


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Times are kept in microseconds. None is 'without limit'."""

    retention: int | None = None
    retention_bytes: int | None = None
    compact: bool = False
    tombstone_retention: int = DAY
    segment_bytes: int = 256 << 20
    segment_age: int | None = 7 * DAY
    compression: str = "none"
    max_batch_bytes: int = MAX_BATCH_BYTES

    def to_log_config(self, flush: Flush) -> LogConfig:
        return LogConfig(
            flush=flush,
            segment_bytes=self.segment_bytes,
            segment_age=self.segment_age,
            max_batch_bytes=self.max_batch_bytes,
            retention_age=self.retention,
            retention_bytes=self.retention_bytes,
            compact=self.compact,
            tombstone_age=self.tombstone_retention,
        )


_DEFAULT = TopicConfig()
_DURATIONS = {"retention": True, "tombstone_retention": False, "segment_age": True}  # name: may be None
_SIZES = {
    "retention_bytes": (0, 1 << 62, True),
    "segment_bytes": (4096, 1 << 40, False),
    "max_batch_bytes": (HEADER_SIZE + 1, MAX_BODY_BYTES, False),
}


def config_from_image(plain: Mapping[str, Any]) -> TopicConfig:
    known = {item.name for item in fields(TopicConfig)}
    given: dict[str, Any] = {
        name: None if value == UNLIMITED else value for name, value in plain.items() if name in known
    }
    return replace(_DEFAULT, **given)


def config_to_plain(config: TopicConfig) -> dict[str, Any]:
    """Only what differs from the defaults."""
    defaults = asdict(_DEFAULT)
    different = {name: value for name, value in asdict(config).items() if value != defaults[name]}
    return {name: UNLIMITED if value is None else value for name, value in different.items()}


def change_config(config: TopicConfig, options: Mapping[str, Any]) -> TopicConfig:
    """The settings with some of them changed; raises InvalidConfig, saying what is allowed."""
    checked = {name: _check(name, value) for name, value in options.items()}
    return replace(config, **checked)


def _check(name: str, value: Any) -> Any:
    if name in _DURATIONS:
        return _check_duration(name, value, may_be_none=_DURATIONS[name])
    if name in _SIZES:
        return _check_size(name, value)
    if name == "compact":
        if not isinstance(value, bool):
            raise InvalidConfig(name, value, "True or False")
        return value
    if name == "compression":
        codec_number(value)
        return value
    raise InvalidConfig("setting", name, ", ".join(item.name for item in fields(TopicConfig)))


def _check_duration(name: str, value: Any, *, may_be_none: bool) -> int | None:
    if value is None and may_be_none:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise InvalidConfig(name, value, "a timedelta or seconds, not negative" + (", or None" if may_be_none else ""))
    return int(value * 1_000_000)


def _check_size(name: str, value: Any) -> int | None:
    least, most, may_be_none = _SIZES[name]
    if value is None and may_be_none:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidConfig(name, value, f"{least:,} to {most:,} bytes" + (", or None" if may_be_none else ""))
    return value


def check_partitions(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_PARTITIONS:
        raise InvalidConfig("number of partitions", count, f"1 to {MOST_PARTITIONS:,}")
    return count
