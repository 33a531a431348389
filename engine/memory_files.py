"""A file system that lives in memory, for `dq.open(":memory:")`: nothing is kept, nothing is waited for.

It behaves as POSIX does where the engine can tell: an open file survives being removed or renamed, a rename
replaces its target in one step, and a lock is held until it is released. `sync` has nothing to do.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import uuid
from collections.abc import Sequence

from dq.engine.files import Buffer, Counter, DirectoryLock, File

_NUMBER = struct.Struct("=q")


class MemoryNode:
    """The content of one file, whatever names it has. The lock keeps a resize away from a read in progress."""

    __slots__ = ("data", "lock", "locked")

    def __init__(self) -> None:
        self.data = bytearray()
        self.lock = threading.Lock()
        self.locked = False

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        data = self.data
        with self.lock:
            if position == len(data):
                for buffer in buffers:
                    data += buffer
                return len(data) - position
            if position > len(data):
                data.extend(bytes(position - len(data)))
            joined = b"".join(buffers)
            data[position : position + len(joined)] = joined
            return len(joined)

    def read(self, size: int, position: int) -> bytes:
        with self.lock, memoryview(self.data) as view, view[position : position + size] as part:
            return bytes(part)

    def truncate(self, size: int) -> None:
        data = self.data
        with self.lock:
            if size < len(data):
                del data[size:]
            else:
                data.extend(bytes(size - len(data)))


class MemoryFile:
    __slots__ = ("_node", "_writable")

    def __init__(self, node: MemoryNode, writable: bool) -> None:
        self._node: MemoryNode | None = node
        self._writable = writable

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        return self._node_for_writing().write(buffers, position)

    def pread(self, size: int, position: int) -> bytes:
        node = self._node
        if node is None:
            raise _error(errno.EBADF)
        return node.read(size, position)

    def sync(self) -> None:
        if self._node is None:
            raise _error(errno.EBADF)

    def truncate(self, size: int) -> None:
        self._node_for_writing().truncate(size)

    def size(self) -> int:
        if self._node is None:
            raise _error(errno.EBADF)
        return len(self._node.data)

    def close(self) -> None:
        self._node = None

    def _node_for_writing(self) -> MemoryNode:
        node = self._node
        if node is None or not self._writable:
            raise _error(errno.EBADF)
        return node


class MemoryCounter:
    __slots__ = ("_node", "_writable")

    def __init__(self, node: MemoryNode, writable: bool) -> None:
        self._node = node
        self._writable = writable

    def get(self) -> int:
        value: int = _NUMBER.unpack(self._node.read(_NUMBER.size, 0))[0]
        return value

    def set(self, value: int) -> None:
        if not self._writable:
            raise TypeError("this counter is open for reading only")
        self._node.write([_NUMBER.pack(value)], 0)

    def close(self) -> None:
        pass


class MemoryLock:
    __slots__ = ("_node",)

    def __init__(self, node: MemoryNode) -> None:
        self._node: MemoryNode | None = node

    def release(self) -> None:
        if self._node is not None:
            self._node.locked = False
            self._node = None


class MemoryFiles:
    """Relative paths mean the same as absolute ones: there is no working directory."""

    def __init__(self) -> None:
        self.boot_id = uuid.uuid4().hex
        self._lock = threading.RLock()  # guards the names; contents have locks of their own
        self._files: dict[str, MemoryNode] = {}
        self._directories: dict[str, set[str]] = {"/": set()}  # path -> names

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        return MemoryFile(self._find(path, create=create), write)

    def exists(self, path: str) -> bool:
        path = _normal(path)
        return path in self._files or path in self._directories

    def list(self, path: str) -> list[str]:
        path = _normal(path)
        with self._lock:
            if path in self._files:
                raise _error(errno.ENOTDIR, path)
            return list(self._directories.get(path, ()))

    def make_directory(self, path: str) -> None:
        path = _normal(path)
        with self._lock:
            if path in self._files:
                raise _error(errno.EEXIST, path)
            if path not in self._directories:
                parent, name = os.path.split(path)
                self.make_directory(parent)
                self._directories[parent].add(name)
                self._directories[path] = set()

    def sync_directory(self, path: str) -> None:
        if _normal(path) not in self._directories:
            raise _error(errno.ENOENT, path)

    def rename(self, source: str, target: str) -> None:
        source, target = _normal(source), _normal(target)
        with self._lock:
            if source in self._directories:
                self._rename_directory(source, target)
                return
            if source not in self._files:
                raise _error(errno.ENOENT, source)
            names = self._names_beside(target)
            if target in self._directories:
                raise _error(errno.EISDIR, target)
            if source != target:
                names.add(os.path.basename(target))
                self._files[target] = self._take_name(source)

    def remove(self, path: str) -> None:
        path = _normal(path)
        with self._lock:
            if path in self._directories:
                raise _error(errno.EISDIR, path)
            if path not in self._files:
                raise _error(errno.ENOENT, path)
            self._take_name(path)

    def remove_tree(self, path: str) -> None:
        path = _normal(path)
        with self._lock:
            if path not in self._directories:
                raise _error(errno.ENOTDIR if path in self._files else errno.ENOENT, path)
            for name in list(self._directories[path]):
                child = _join(path, name)
                if child in self._directories:
                    self.remove_tree(child)
                else:
                    self._take_name(child)
            if path != "/":
                del self._directories[path]
                self._directories[os.path.dirname(path)].discard(os.path.basename(path))

    def counter(self, path: str, *, write: bool) -> Counter:
        node = self._find(path, create=write)
        if write and len(node.data) < _NUMBER.size:
            node.write([_NUMBER.pack(0)], 0)
        if len(node.data) < _NUMBER.size:
            raise ValueError("the file is too short for a number")  # as mmap does
        return MemoryCounter(node, write)

    def lock(self, path: str) -> DirectoryLock:
        with self._lock:
            node = self._find(path, create=True)
            if node.locked:
                raise BlockingIOError(bytes(node.data).decode("utf-8", "replace").strip())
            node.truncate(0)
            node.write([f"process {os.getpid()}\n".encode()], 0)
            node.locked = True
            return MemoryLock(node)

    def _find(self, path: str, *, create: bool) -> MemoryNode:
        path = _normal(path)
        with self._lock:
            node = self._files.get(path)
            if node is not None:
                return node
            if path in self._directories:
                raise _error(errno.EISDIR, path)
            names = self._names_beside(path)
            if not create:
                raise _error(errno.ENOENT, path)
            node = self._files[path] = self._make_node()
            names.add(os.path.basename(path))
            return node

    def _make_node(self) -> MemoryNode:
        return MemoryNode()

    def _names_beside(self, path: str) -> set[str]:
        """The names in the directory that a path is in."""
        parent = os.path.dirname(path)
        names = self._directories.get(parent)
        if names is None:
            raise _error(errno.ENOTDIR if parent in self._files else errno.ENOENT, path)
        return names

    def _take_name(self, path: str) -> MemoryNode:
        self._directories[os.path.dirname(path)].discard(os.path.basename(path))
        return self._files.pop(path)

    def _rename_directory(self, source: str, target: str) -> None:
        names = self._names_beside(target)
        if source == target:
            return
        if target.startswith(source + "/"):
            raise _error(errno.EINVAL, target)
        if target in self._files:
            raise _error(errno.ENOTDIR, target)
        if self._directories.get(target):
            raise _error(errno.ENOTEMPTY, target)
        self._directories[os.path.dirname(source)].discard(os.path.basename(source))
        names.add(os.path.basename(target))
        inside = source + "/"
        for path in [path for path in self._directories if path == source or path.startswith(inside)]:
            self._directories[target + path[len(source) :]] = self._directories.pop(path)
        for path in [path for path in self._files if path.startswith(inside)]:
            self._files[target + path[len(source) :]] = self._files.pop(path)


def _normal(path: str) -> str:
    return "/" + os.path.normpath("/" + path).lstrip("/")


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def _error(number: int, path: str | None = None) -> OSError:
    """The subclass of OSError that belongs to the number, as the system would raise it."""
    return OSError(number, os.strerror(number)) if path is None else OSError(number, os.strerror(number), path)
