"""A file system that fails as disks and machines do, on purpose and reproducibly: every fault comes from one seed.

The faults that must be survived:

- **The process dies** (`kill`). What was written stays, in the page cache or on the disk. Of the write that was
  under way any first part may have happened, also none of it or all of it. Locks are released, handles are gone.
- **The power fails** (`power_loss`). All of the above, and of everything that was not synced:
  - each page of each file is kept or lost independently of the others, so a later write may survive an earlier one;
  - the size of a file may be the old one, the new one, or one between, and pages that never arrived read as zeros;
  - a truncation may be undone;
  - a file that was created, renamed or removed may still have its old name, or none, until its directory is
    synced: syncing the file alone is not enough. Sometimes such changes are lost from some point on, as a file
    system with a journal does it, and sometimes each for itself, as POSIX allows. A rename happens or does not.
  The machine then has another boot id.
- **The disk is full** (`fill_up`): a write stores what fits and then raises ENOSPC, until there is space again.
- **A call fails with EIO** (`fail`): a write has stored some first part of itself; a file that could not be
  created, renamed or removed is as it was.
- **A sync fails with EIO** (`fail("sync")`): some pages arrived, the others never will, although every read before
  the next power loss still shows them and the next sync of the file says that all is well. Only writing them
  again helps. Real kernels do exactly this.
- **Bits flip at rest** (`flip`).
- **Any call is the last one** (`crash_at`): the N-th call that changes something raises CrashPoint, half done. From
  then on every call does, whatever `finally` clauses try, until `kill` or `power_loss` starts the machine again.

What is not modelled: a sync that lies, a write that lands in the wrong place, a damaged neighbour of a page that
was being written. Making or renaming a directory and removing a tree is durable at once, as the interface says.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dq.engine.files import Buffer, Counter, DirectoryLock, File
from dq.engine.memory_files import MemoryFiles, MemoryNode, _normal

PAGE = 4096


class CrashPoint(BaseException):
    """The process is dead. Not an Exception: nothing that handles errors may handle this."""


@contextmanager
def seed_in_failures(seed: object) -> Iterator[None]:
    """Makes whatever fails inside say which seed reproduces it."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"with seed {seed}: {type(error).__name__}: {error}") from error


class FaultyNode(MemoryNode):
    """What a file holds for those who read it (`data`), and what the disk holds of it (`stable`)."""

    __slots__ = ("dirty", "page", "shortest", "stable")

    def __init__(self, page: int) -> None:
        super().__init__()
        self.page = page
        self.stable = bytearray()
        self.dirty: set[int] = set()  # pages that differ from the disk and that a sync would write
        self.shortest = 0  # the smallest size since the last sync: what lay beyond was truncated in between

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        size_before = len(self.data)
        count = super().write(buffers, position)
        if count:
            self._touch(min(position, size_before), position + count)
        return count

    def truncate(self, size: int) -> None:
        size_before = len(self.data)
        super().truncate(size)
        self.shortest = min(self.shortest, size)
        self.dirty = {page for page in self.dirty if page * self.page < size}
        if size > size_before:
            self._touch(size_before, size)

    def _touch(self, start: int, end: int) -> None:
        self.dirty.update(range(start // self.page, (end - 1) // self.page + 1))

    def store(self, pages: set[int]) -> None:
        """Writes pages to the disk."""
        del self.stable[self.shortest :]
        self.shortest = len(self.data)
        for page in pages:
            _put(self.stable, self.data[page * self.page : (page + 1) * self.page], page * self.page)
        self.dirty -= pages

    def sync(self) -> None:
        self.store(set(self.dirty))
        self.stable.extend(bytes(max(len(self.data) - len(self.stable), 0)))

    def sync_badly(self, chance: random.Random) -> None:
        """What a sync that fails leaves behind: pages that are taken for written and are not."""
        self.store({page for page in self.dirty if chance.random() < 0.5})
        self.dirty.clear()

    def after_power_loss(self, chance: random.Random) -> bytearray:
        """What is read from the disk when the machine runs again."""
        kept_share = chance.choice([0.0, 0.3, 0.7, 1.0])
        image = bytearray(self.stable)
        if self.shortest < len(image) and chance.random() < 0.5:
            del image[self.shortest :]
        for page in sorted(self.dirty):
            if chance.random() < kept_share:
                _put(image, self.data[page * self.page : (page + 1) * self.page], page * self.page)
        if len(image) < len(self.data) and chance.random() < 0.5:
            # The size may arrive without what belongs there.
            image.extend(bytes(chance.randint(0, len(self.data) - len(image))))
        return image


class FaultyFile:
    __slots__ = ("_files", "_generation", "_node", "_open", "_path", "_writable")

    def __init__(self, files: FaultyFiles, path: str, node: FaultyNode, writable: bool) -> None:
        self._files = files
        self._generation = files.generation
        self._path = path
        self._node = node
        self._writable = writable
        self._open = True
        files.open_files += 1

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        self._check(writable=True)
        files = self._files
        with files._lock:
            data = b"".join(buffers)
            if files._begins("write", self._path):
                self._write_part(data, position)
                raise CrashPoint
            failure = files._failure_of("write", self._path)
            if failure is not None:
                self._write_part(data, position)
                raise failure
            growth = max(position + len(data) - len(self._node.data), 0)
            if files.free is not None:
                if growth > files.free:
                    fitting = len(data) - growth + files.free
                    if fitting > 0:
                        self._node.write([data[:fitting]], position)
                    files.free = 0
                    raise _os_error(errno.ENOSPC, self._path)
                files.free -= growth
            return self._node.write([data], position)

    def _write_part(self, data: bytes, position: int) -> None:
        part = data[: self._files.chance.randint(0, len(data))]
        if part:
            self._node.write([part], position)

    def pread(self, size: int, position: int) -> bytes:
        self._check()
        return self._node.read(size, position)

    def sync(self) -> None:
        self._check()
        files = self._files
        if files.on_sync is not None:
            files.on_sync(self._path)
        with files._lock:
            if files._begins("sync", self._path):
                self._node.store({page for page in self._node.dirty if files.chance.random() < 0.5})
                raise CrashPoint
            failure = files._failure_of("sync", self._path)
            if failure is not None:
                self._node.sync_badly(files.chance)
                raise failure
            self._node.sync()

    def truncate(self, size: int) -> None:
        self._check(writable=True)
        files = self._files
        with files._lock:
            crashing = files._begins("truncate", self._path)
            failure = files._failure_of("truncate", self._path)
            if failure is not None:
                raise failure
            if not crashing or files.chance.random() < 0.5:
                if files.free is not None:
                    files.free += max(len(self._node.data) - size, 0)
                self._node.truncate(size)
            if crashing:
                raise CrashPoint

    def size(self) -> int:
        self._check()
        return len(self._node.data)

    def close(self) -> None:
        if self._open:
            self._open = False
            if self._generation == self._files.generation:
                self._files.open_files -= 1

    __del__ = close

    def _check(self, *, writable: bool = False) -> None:
        self._files._check_alive(self._generation)
        if not self._open or (writable and not self._writable):
            raise _os_error(errno.EBADF, self._path)


class FaultyCounter:
    __slots__ = ("_counter", "_files", "_generation")

    def __init__(self, files: FaultyFiles, counter: Counter) -> None:
        self._files = files
        self._counter = counter
        self._generation = files.generation

    def get(self) -> int:
        self._files._check_alive(self._generation)
        return self._counter.get()

    def set(self, value: int) -> None:
        self._files._check_alive(self._generation)
        with self._files._lock:
            self._counter.set(value)

    def close(self) -> None:
        pass


class _NameChange(NamedTuple):
    """A change of the names in one directory that has not been synced: `gone` goes, `name` then is `node`."""

    gone: str | None
    name: str | None
    node: MemoryNode | None

    def apply(self, names: dict[str, MemoryNode]) -> None:
        if self.gone is not None:
            names.pop(self.gone, None)
        if self.name is not None and self.node is not None:
            names[self.name] = self.node


class _Failing(NamedTuple):
    call: str
    where: str
    number: int


class FaultyFiles(MemoryFiles):
    """`page`: the unit in which unsynced writes get lost; small ones make small tests meaner."""

    def __init__(self, seed: int = 0, *, page: int = PAGE) -> None:
        super().__init__()
        self.seed = seed
        self.page = page
        self.chance = random.Random(seed)
        self.boot_id = f"boot-{self.chance.getrandbits(64):016x}"
        self.generation = 0  # of the process: handles of an earlier one are dead
        self.calls = 0  # that changed something
        self.open_files = 0
        self.free: int | None = None  # bytes until the disk is full
        self.on_sync: Callable[[str], None] | None = None  # called before a file is synced, outside of all locks
        self.call_log: list[tuple[str, str]] | None = None
        self._crash_at: int | None = None
        self._dead = False
        self._failing: list[_Failing] = []
        self._stable_names: dict[str, MemoryNode] = {}  # path -> node, as the disk has it
        self._changes: dict[str, list[_NameChange]] = {}  # directory -> what a sync of it would write

    def __repr__(self) -> str:
        return f"<FaultyFiles seed={self.seed} page={self.page} calls={self.calls}>"

    # ------------------------------------------------------------ faults

    def crash_at(self, call: int | None) -> None:
        """The crash comes in the middle of the call-th call from now on, counting those that change something."""
        self._crash_at = None if call is None else self.calls + call

    def kill(self) -> None:
        """The process dies, and another one may begin."""
        with self._lock:
            self._restart()

    def power_loss(self) -> None:
        """The machine goes down and comes up again."""
        with self._lock:
            names = dict(self._stable_names)
            for directory in sorted(self._changes):
                self._apply_some(self._changes[directory], names)
            nodes: dict[MemoryNode, FaultyNode] = {}
            for path in sorted(names):
                old = names[path]
                assert isinstance(old, FaultyNode)
                if old not in nodes:
                    new = nodes[old] = FaultyNode(self.page)
                    new.data = old.after_power_loss(self.chance)
                    new.stable = bytearray(new.data)
                    new.shortest = len(new.data)
            self._files = {path: nodes[node] for path, node in names.items()}
            for directory in self._directories:
                self._directories[directory] = {
                    name for name in self._directories[directory] if _inside(directory, name) in self._directories
                }
            for path in self._files:
                self._directories[os.path.dirname(path)].add(os.path.basename(path))
            self._stable_names = dict(self._files)
            self._changes.clear()
            self.boot_id = f"boot-{self.chance.getrandbits(64):016x}"
            self._restart()

    def crash(self) -> None:
        """One or the other."""
        self.chance.choice([self.kill, self.power_loss])()

    def fill_up(self, free: int | None = 0) -> None:
        """Leaves so many bytes free on the disk; None is without limit."""
        self.free = free

    def fail(self, call: str, *, times: int = 1, where: str = "", number: int = errno.EIO) -> None:
        """The next calls of this kind on files with `where` in their path fail."""
        self._failing += [_Failing(call, where, number)] * times

    def stop_failing(self) -> None:
        self._failing.clear()

    def flip(self, path: str, bit: int) -> None:
        node = self._files[_normal(path)]
        assert isinstance(node, FaultyNode)
        node.data[bit // 8] ^= 1 << bit % 8
        if bit // 8 < len(node.stable):
            node.stable[bit // 8] ^= 1 << bit % 8

    def cut(self, path: str, size: int) -> None:
        """Shortens a file behind everybody's back, on the disk as well."""
        node = self._files[_normal(path)]
        assert isinstance(node, FaultyNode)
        node.truncate(size)
        node.sync()

    def copy(self) -> FaultyFiles:
        """The same files on another, equally seeded machine: for trying many faults on one state."""
        other = FaultyFiles(self.seed, page=self.page)
        other.boot_id = self.boot_id
        nodes: dict[MemoryNode, FaultyNode] = {}
        changed = [change.node for changes in self._changes.values() for change in changes if change.node]
        for old in [*self._files.values(), *self._stable_names.values(), *changed]:
            assert isinstance(old, FaultyNode)
            if old not in nodes:
                new = nodes[old] = FaultyNode(self.page)
                new.data, new.stable = bytearray(old.data), bytearray(old.stable)
                new.dirty, new.shortest = set(old.dirty), old.shortest
        other._files = {path: nodes[node] for path, node in self._files.items()}
        other._directories = {path: set(names) for path, names in self._directories.items()}
        other._stable_names = {path: nodes[node] for path, node in self._stable_names.items()}
        other._changes = {
            directory: [change._replace(node=nodes[change.node] if change.node else None) for change in changes]
            for directory, changes in self._changes.items()
        }
        return other

    # ------------------------------------------------------------ FileSystem

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        self._check_alive(self.generation)
        return FaultyFile(self, path, self._node(path, create), write)

    def _node(self, path: str, create: bool) -> FaultyNode:
        with self._lock:
            if create and not self.exists(path):
                crashing = self._begins("create", path)
                failure = self._failure_of("create", path)
                if failure is not None:
                    raise failure
                if crashing and self.chance.random() < 0.5:
                    raise CrashPoint
                node = self._find(path, create=True)
                self._note(_normal(path), _NameChange(None, _normal(path), node))
                if crashing:
                    raise CrashPoint
            node = self._find(path, create=create)
            assert isinstance(node, FaultyNode)
            return node

    def exists(self, path: str) -> bool:
        self._check_alive(self.generation)
        return super().exists(path)

    def list(self, path: str) -> list[str]:
        self._check_alive(self.generation)
        return sorted(super().list(path))

    def make_directory(self, path: str) -> None:
        self._check_alive(self.generation)
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        with self._lock:
            crashing = self._begins("sync_directory", path)
            failure = self._failure_of("sync_directory", path)
            if failure is not None:
                raise failure
            changes = self._changes.get(_normal(path), [])
            if crashing:
                self._apply_some(changes, self._stable_names)  # and the next sync all of them
                raise CrashPoint
            for change in changes:
                change.apply(self._stable_names)
            changes.clear()

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            crashing = self._begins("rename", target)
            failure = self._failure_of("rename", target)
            if failure is not None:
                raise failure
            if crashing and self.chance.random() < 0.5:
                raise CrashPoint
            source, target = _normal(source), _normal(target)
            if source in self._directories:
                super().rename(source, target)
                self._stable_names = {
                    target + path[len(source) :] if path.startswith(source + "/") else path: node
                    for path, node in self._stable_names.items()
                }
            else:
                node = self._find(source, create=False)
                super().rename(source, target)
                if source != target:
                    self._note(target, _NameChange(source, target, node))
            if crashing:
                raise CrashPoint

    def remove(self, path: str) -> None:
        with self._lock:
            crashing = self._begins("remove", path)
            failure = self._failure_of("remove", path)
            if failure is not None:
                raise failure
            if crashing and self.chance.random() < 0.5:
                raise CrashPoint
            node = self._files.get(_normal(path))
            super().remove(path)
            if self.free is not None and node is not None:
                self.free += len(node.data)
            self._note(_normal(path), _NameChange(_normal(path), None, None))
            if crashing:
                raise CrashPoint

    def remove_tree(self, path: str) -> None:
        with self._lock:
            self._check_alive(self.generation)
            super().remove_tree(path)
            inside = _normal(path) + "/"
            self._stable_names = {p: node for p, node in self._stable_names.items() if not p.startswith(inside)}
            self._changes = {d: changes for d, changes in self._changes.items() if not (d + "/").startswith(inside)}

    def counter(self, path: str, *, write: bool) -> Counter:
        self._check_alive(self.generation)
        with self._lock:
            if write:
                self._node(path, create=True)
            return FaultyCounter(self, super().counter(path, write=write))

    def lock(self, path: str) -> DirectoryLock:
        self._check_alive(self.generation)
        with self._lock:
            self._node(path, create=True)
            return super().lock(path)

    # ------------------------------------------------------------ inside

    def _make_node(self) -> MemoryNode:
        return FaultyNode(self.page)

    def _check_alive(self, generation: int) -> None:
        if self._dead or generation != self.generation:
            raise CrashPoint

    def _begins(self, call: str, path: str) -> bool:
        """Counts a call that changes something; True when it is the one in which the process dies."""
        self._check_alive(self.generation)
        self.calls += 1
        if self.call_log is not None:
            self.call_log.append((call, path))
        if self.calls == self._crash_at:
            self._dead = True
        return self._dead

    def _failure_of(self, call: str, path: str) -> OSError | None:
        for failing in self._failing:
            if failing.call == call and failing.where in path and not self._dead:
                self._failing.remove(failing)
                return _os_error(failing.number, path)
        return None

    def _note(self, path: str, change: _NameChange) -> None:
        self._changes.setdefault(os.path.dirname(path), []).append(change)

    def _apply_some(self, changes: Sequence[_NameChange], names: dict[str, MemoryNode]) -> None:
        """What reaches the disk of changes that were not synced."""
        in_order = self.chance.random() < 0.5
        first_lost = self.chance.randint(0, len(changes))
        for number, change in enumerate(changes):
            if number < first_lost if in_order else self.chance.random() < 0.5:
                change.apply(names)

    def _restart(self) -> None:
        for node in self._files.values():
            node.locked = False
        self.generation += 1
        self.open_files = 0
        self._dead = False
        self._crash_at = None
        self._failing.clear()


def _put(image: bytearray, part: bytearray, position: int) -> None:
    image.extend(bytes(max(position - len(image), 0)))
    image[position : position + len(part)] = part


def _inside(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
