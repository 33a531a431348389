"""The file system as the engine sees it: an interface of a dozen calls, and the real one behind it.

Everything that reaches a disk goes through here, so that tests can put a faulty disk in its place and
`dq.open(":memory:")` none at all. Paths are plain strings. All calls raise OSError as the system does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import struct
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file. `pread` may be called from any thread; the rest belongs to one writer."""

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        """Writes all buffers, in order, from position on; returns how many bytes that were."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to size bytes: fewer only at the end of the file."""

    def sync(self) -> None:
        """Returns when all that was written, and the size, are on stable storage."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Counter(Protocol):
    """One number in a file, written by one process and read by many without a system call. Never synced."""

    def get(self) -> int: ...

    def set(self, value: int) -> None: ...

    def close(self) -> None: ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class FileSystem(Protocol):
    @property
    def boot_id(self) -> str:
        """Changes whenever unsynced writes may have been lost; empty when that cannot be known."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File: ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """The names in a directory; none when it does not exist."""

    def make_directory(self, path: str) -> None:
        """Makes it with its parents, durably."""

    def sync_directory(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Replaces the target in one step. Durable after `sync_directory`."""

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def counter(self, path: str, *, write: bool) -> Counter: ...

    def lock(self, path: str) -> DirectoryLock:
        """Raises BlockingIOError with the holder's words when another place holds it."""


def read_file(files: FileSystem, path: str) -> bytes | None:
    """The whole file, or None when there is none."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def replace_file(files: FileSystem, path: str, data: Buffer, *, sync: bool) -> None:
    """Puts data in place of the file in one step: readers see the old content or the new, never a mix."""
    temporary = path + ".tmp"
    file = files.open(temporary, write=True, create=True)
    try:
        file.truncate(0)
        file.write([data], 0)
        if sync:
            file.sync()
    finally:
        file.close()
    files.rename(temporary, path)
    if sync:
        files.sync_directory(os.path.dirname(path))


# ---------------------------------------------------------------- the real one

_MOST_BUFFERS = 1000  # Linux takes 1,024 in one call

_sync_data = getattr(os, "fdatasync", os.fsync)


class OsFile:
    """Closed at the latest when nobody refers to it any more, so a handle may be dropped while a sync still uses it."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        written = os.pwritev(self._fd, buffers[:_MOST_BUFFERS], position)
        wanted = sum(map(len, buffers))
        if written != wanted:
            rest = [memoryview(buffer).cast("B") for buffer in buffers]
            done = written
            while done < wanted:
                while rest and written >= len(rest[0]):
                    written -= len(rest.pop(0))
                rest[0] = rest[0][written:]
                written = os.pwritev(self._fd, rest[:_MOST_BUFFERS], position + done)
                done += written
        return wanted

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._fd, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def sync(self) -> None:
        _sync_data(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


_NUMBER = struct.Struct("=q")  # eight aligned bytes: stored and loaded in one piece on the machines we run on


class OsCounter:
    __slots__ = ("_map",)

    def __init__(self, path: str, write: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
        fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            if write and os.fstat(fd).st_size < _NUMBER.size:
                os.pwrite(fd, _NUMBER.pack(0), 0)
            self._map = mmap.mmap(fd, _NUMBER.size, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
        finally:
            os.close(fd)

    def get(self) -> int:
        value: int = _NUMBER.unpack_from(self._map)[0]
        return value

    def set(self, value: int) -> None:
        _NUMBER.pack_into(self._map, 0, value)

    def close(self) -> None:
        self._map.close()


class OsLock:
    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 200, 0).decode("utf-8", "replace").strip()
            os.close(fd)
            raise BlockingIOError(holder or "unknown process") from None
        except BaseException:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFiles:
    """The file system of the operating system."""

    __slots__ = ("boot_id",)

    def __init__(self) -> None:
        self.boot_id = _read_boot_id()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        flags = os.O_RDWR if write else os.O_RDONLY
        return OsFile(os.open(path, flags | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory)
            self.sync_directory(os.path.dirname(directory) or ".")

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        for attempt in range(5):
            try:
                return shutil.rmtree(path)
            except OSError as error:  # somebody made a file in it just now
                if error.errno != errno.ENOTEMPTY or attempt == 4:
                    raise

    def counter(self, path: str, *, write: bool) -> Counter:
        return OsCounter(path, write)

    def lock(self, path: str) -> DirectoryLock:
        return OsLock(path)


def _read_boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
