"""A data directory: how it is known as ours, who may write to it, and where things are in it."""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

from dq.engine.clock import Clock
from dq.engine.errors import DirectoryLocked, FormatTooNew, NotADataDirectory
from dq.engine.files import DirectoryLock, FileSystem, read_file, replace_file

MARKER = "dq.json"
FORMAT = 1


class DataDirectory:
    def __init__(self, files: FileSystem, path: str) -> None:
        self.files = files
        self.path = path
        self._lock: DirectoryLock | None = None

    @property
    def topics_path(self) -> str:
        return f"{self.path}/topics"

    @property
    def index_path(self) -> str:
        return f"{self.path}/index"

    def topic_path(self, name: str, topic_id: bytes) -> str:
        return f"{self.topics_path}/{topic_directory(name, topic_id)}"

    def partition_path(self, name: str, topic_id: bytes, partition: int) -> str:
        return f"{self.topic_path(name, topic_id)}/{partition}"

    def open(self, clock: Clock, *, create: bool, read_only: bool) -> None:
        """Makes sure that the directory is ours and, unless read-only, that nobody else writes to it."""
        if not read_only and create and not self.files.exists(self.path):
            self.files.make_directory(self.path)
        if not self.files.exists(self.path):
            raise NotADataDirectory(self.path, "it does not exist")
        if not self._check_marker():
            if read_only or not create:
                raise NotADataDirectory(self.path, f"it has no {MARKER}")
            if set(self.files.list(self.path)) - {"lock", f"{MARKER}.tmp", "lost+found"}:
                raise NotADataDirectory(self.path, f"it has no {MARKER} but is not empty: choose a new or empty one")
        if read_only:
            return
        try:
            self._lock = self.files.lock(f"{self.path}/lock")
        except BlockingIOError as error:
            raise DirectoryLocked(self.path, str(error)) from None
        if not self._check_marker():
            marker = {"format": FORMAT, "id": uuid.uuid4().hex, "created": clock.now()}
            replace_file(self.files, f"{self.path}/{MARKER}", json.dumps(marker).encode() + b"\n", sync=True)

    def _check_marker(self) -> bool:
        """True when there is a marker that we understand, False when there is none."""
        data = read_file(self.files, f"{self.path}/{MARKER}") if self._is_directory() else None
        if data is None:
            return False
        try:
            marker: dict[str, Any] = json.loads(data)
            version = int(marker["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise NotADataDirectory(self.path, f"its {MARKER} cannot be read: {error}") from None
        if version > FORMAT:
            raise FormatTooNew(f"the data directory {self.path}", version, FORMAT)
        return True

    def _is_directory(self) -> bool:
        try:
            self.files.list(self.path)
        except NotADirectoryError:
            raise NotADataDirectory(self.path, "it is a file") from None
        return True

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def topic_directory(name: str, topic_id: bytes) -> str:
    return f"{name}-{topic_id.hex()[:8]}"


def absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.path.expanduser(os.fspath(path)))
