"""Looking at the past: the image as of an offset or a time, what differs between two images, and choosing events."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, NamedTuple

from dq.engine.errors import OffsetOutOfRange
from dq.engine.files import FileSystem
from dq.engine.raft.event_log import image_at, load_image, read_events
from dq.engine.raft.events import Event
from dq.engine.raft.image import EMPTY, Image
from dq.engine.segments.reader import LogView, offset_at_time


class History:
    """The past of a metadata log. Of consumer positions, what was thinned is not known any more."""

    def __init__(self, files: FileSystem, log: LogView) -> None:
        self._files = files
        self._log = log

    def latest(self) -> Image:
        return load_image(self._files, self._log) if self._log.segments() else EMPTY

    def before(self, offset: int) -> Image:
        """The image of all events below an offset."""
        end = self._log.visible_end()
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(offset, 0, end)
        return image_at(self._files, self._log, offset) if offset else EMPTY

    def after(self, offset: int) -> Image:
        """The image once the event at an offset was folded."""
        end = self._log.visible_end()
        if not 0 <= offset < end:
            raise OffsetOutOfRange(offset, 0, end)
        return self.before(offset + 1)

    def at_time(self, time: int) -> Image:
        """The image as of a time: of all events before the first that is later."""
        return self.before(offset_at_time(self._log, time + 1)) if self._log.segments() else EMPTY


# ---------------------------------------------------------------- choosing events


@dataclass(frozen=True, slots=True)
class EventFilter:
    """What is None or empty leaves nothing out."""

    types: Collection[str] = ()
    topic: str | None = None
    actor: str | None = None
    since: int | None = None  # microseconds since the epoch, UTC; from here on
    until: int | None = None  # up to here, exclusive

    def matches(self, event: Event) -> bool:
        return (
            (not self.types or event.change.type in self.types)
            and (self.topic is None or getattr(event.change, "topic", None) == self.topic)
            and (self.actor is None or event.actor == self.actor)
            and (self.since is None or event.time >= self.since)
            and (self.until is None or event.time < self.until)
        )

    def select(
        self, log: LogView, start: int = 0, *, follow: bool = False, timeout: float | None = None
    ) -> Iterator[tuple[int, Event]]:
        """The events of a log that match, with their offsets."""
        if self.since is not None and log.segments():
            start = max(start, offset_at_time(log, self.since))
        for offset, event in read_events(log, start, follow=follow, timeout=timeout):
            if self.matches(event):
                yield offset, event


# ---------------------------------------------------------------- images for people


def describe(value: Any) -> Any:
    """An image, or a part of one, as plain dicts, lists and values, sorted; bytes as hexadecimal digits."""
    if is_dataclass(value):
        return {name: describe(item) for name, item in _shown(value)}
    if isinstance(value, Mapping):
        return {_key(key): describe(item) for key, item in sorted(value.items())}
    if isinstance(value, tuple):
        named = getattr(value, "_asdict", None)
        return describe(named()) if named is not None else [describe(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def _shown(value: Any) -> Iterator[tuple[str, Any]]:
    for item in fields(value):
        if "derived" not in item.metadata:
            yield item.name, getattr(value, item.name)


def _key(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


class Difference(NamedTuple):
    kind: Literal["added", "removed", "changed"]
    path: tuple[str, ...]  # as topics, orders, config, retention
    before: Any  # described; None when added
    after: Any  # described; None when removed

    def __str__(self) -> str:
        path = "/".join(self.path)
        if self.kind == "added":
            return f"added {path}: {self.after}"
        if self.kind == "removed":
            return f"removed {path}: {self.before}"
        return f"changed {path}: {self.before} -> {self.after}"


def diff(before: Image, after: Image) -> list[Difference]:
    """What is different, in the order of the paths. What two images share is not looked into."""
    found: list[Difference] = []
    for (name, old), (_, new) in zip(_shown(before), _shown(after), strict=True):
        if name not in ("offset", "time"):
            found += _differences((name,), old, new)
    return found


def _differences(path: tuple[str, ...], old: Any, new: Any) -> Iterator[Difference]:
    if old is new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            inner = (*path, _key(key))
            if key not in old:
                yield Difference("added", inner, None, describe(new[key]))
            elif key not in new:
                yield Difference("removed", inner, describe(old[key]), None)
            else:
                yield from _differences(inner, old[key], new[key])
    elif is_dataclass(old) and is_dataclass(new):
        for (name, was), (_, now) in zip(_shown(old), _shown(new), strict=True):
            yield from _differences((*path, name), was, now)
    elif old != new:
        yield Difference("changed", path, describe(old), describe(new))
