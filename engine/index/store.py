"""The LMDB environment of one directory, as all its users in a process share it: opened when first needed, grown
when full, and dropped for an empty one when anything is wrong with it. What the entries mean is not known here.

A process must not open an environment twice, and a forked child must not use its parent's. So there is one Store
for a directory, and a child closes what it inherited and opens its own, to read only.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import lmdb

from dq.engine.index.entries import DamagedEntry
from dq.engine.index.gate import Gate
from dq.engine.index.handle import Handle, Unusable, open_read_only, open_writable
from dq.engine.index.state import Stamp, State, digest, home_of, inode_of, stamp_of, wipe, write_state

RETRY_AFTER = 1.0  # seconds to go without an environment that could not be opened

_CLOSE_TIMEOUT = 5.0
_FORK_TIMEOUT = 1.0

logger = logging.getLogger("dq.engine")

T = TypeVar("T")
Change: TypeAlias = "Callable[[lmdb.Transaction[bytes]], object]"


class User(Protocol):
    @property
    def boot_id(self) -> str: ...

    def become_reader(self) -> None:
        """In a forked child: replace locks, forget what is unfinished, and write no more."""


class Store:
    def __init__(self, path: str) -> None:
        self.path = path
        self.writing = threading.Lock()  # held by whoever calls `write`
        self._gate = Gate()  # transactions pass it together; opening, closing and growing is done alone
        self._users: set[User] = set()
        self._writer: User | None = None
        self._handle: Handle | None = None
        self._rejected: Stamp | None = None  # what read-only users found to be unusable
        self._retry_at = 0.0
        self._complained = False

    @property
    def is_open(self) -> bool:
        return self._handle is not None

    def map_size(self) -> int:
        handle = self._enter()
        if handle is None:
            return 0
        try:
            return handle.env.info()["map_size"]
        finally:
            self._gate.leave()

    def attach(self, user: User, *, read_only: bool) -> None:
        with self._gate.alone():
            self._users.add(user)
            if not read_only:
                self._writer = user

    def detach(self, user: User) -> None:
        """The last writer to go leaves the environment so that the next one finds it sound."""
        with self.writing:
            if not self._gate.shut(_CLOSE_TIMEOUT):
                return  # a thread was interrupted at the wrong moment and never left
            try:
                self._users.discard(user)
                if self._writer is user:
                    self._writer = None
                    self._close_cleanly(user.boot_id)
                if not self._users:
                    self._close()
            finally:
                self._gate.unshut()

    # ------------------------------------------------------------ transactions

    def read(self, look: Callable[[lmdb.Transaction[bytes]], T]) -> T | None:
        """What `look` finds; None when there is no environment, or none that can be trusted."""
        problem: Exception
        while (handle := self._enter()) is not None:
            try:
                with handle.env.begin() as txn:
                    return look(txn)
            except (lmdb.Error, DamagedEntry) as error:
                problem = error
            finally:
                self._gate.leave()
            if isinstance(problem, lmdb.ReadersFullError):
                self._free_places(handle)
                return None
            if not isinstance(problem, lmdb.MapResizedError) or not self._resize(handle, factor=0):
                self._discard(handle, problem)
                return None
        return None

    def write(self, change: Change, *, create: bool = True) -> bool:
        """Makes a change in one transaction, or gives up. `change` may be called again after the map has grown."""
        problem: Exception
        while (handle := self._enter(write=True, create=create)) is not None:
            try:
                self._commit(handle, change)
                return True
            except (lmdb.Error, DamagedEntry) as error:
                problem = error
            finally:
                self._gate.leave()
            if not isinstance(problem, lmdb.MapFullError) or not self._resize(handle, factor=2):
                self._discard(handle, problem)
                break
        return False

    def delete(self, change: Change) -> None:
        """As `write`. But where that is not possible, everything goes: what is to be gone must not come back."""
        if not self.write(change, create=False) and self._writer is not None:
            with self._gate.alone():
                self._close()
                self._wipe()

    def _commit(self, handle: Handle, change: Change) -> None:
        txn = handle.env.begin(write=True)
        try:
            change(txn)
            txn.commit()
        except BaseException:
            with self._gate.others_out():  # py-lmdb waits for a moment without readers, which may never come
                txn.abort()
            raise

    def _enter(self, *, write: bool = False, create: bool = False) -> Handle | None:
        """Passes the gate with an environment; without one, stays outside."""
        for last_try in (False, True):
            usable = False
            self._gate.enter()
            try:
                handle = self._handle
                usable = handle is not None and self._is_current(handle, write)
            finally:
                if not usable:
                    self._gate.leave()
            if usable:
                return handle
            if last_try or not self._may_open(write, create):
                break
            with self._gate.alone():
                if self._handle is handle:
                    self._open(create)
        return None

    def _may_open(self, write: bool, create: bool) -> bool:
        """A quick look, so that those who would only find nothing do not keep others from the gate."""
        if not self._users or time.monotonic() < self._retry_at:
            return False
        if self._writer is not None:
            return create or inode_of(self.path) is not None
        return not write and stamp_of(self.path) not in (None, self._rejected)

    def _is_current(self, handle: Handle, write: bool) -> bool:
        """The environment is still the one in the directory; for a writer, asked only before it writes."""
        if handle.claim is not None:
            return not write or inode_of(self.path) == handle.inode
        if self._writer is not None:
            return False
        if handle.until is not None:
            return stamp_of(self.path) == handle.until
        return inode_of(self.path) == handle.inode

    def _resize(self, handle: Handle, *, factor: int) -> bool:
        """Maps more of the file: so many times as much as now, or with 0, as much as its writer does."""
        with self._gate.alone():
            try:
                if self._handle is handle:
                    handle.env.reader_check()  # readers that were killed keep pages from being used again
                    handle.env.set_mapsize(factor * handle.env.info()["map_size"])
                return True
            except lmdb.Error:
                return False

    def _free_places(self, handle: Handle) -> None:
        with self._gate.alone():
            if self._handle is handle:
                handle.env.reader_check()

    def _discard(self, handle: Handle, problem: Exception) -> None:
        with self._gate.alone():
            if self._handle is not handle:
                return
            self._close()
            self._give_up(problem)
            if handle.claim is not None:
                self._wipe()
            else:
                self._rejected = stamp_of(self.path)

    # ------------------------------------------------------------ opening and closing: done alone

    def _open(self, create: bool) -> None:
        self._close()
        try:
            if self._writer is not None:
                self._handle = open_writable(self.path, self._writer.boot_id, create=create)
            elif self._users:
                self._open_read_only(next(iter(self._users)).boot_id)
        except (OSError, lmdb.Error) as error:
            self._give_up(error)
            if self._writer is not None and _is_about_content(error):
                self._wipe()
        if self._handle is not None:
            self._complained = False

    def _open_read_only(self, boot_id: str) -> None:
        stamp = stamp_of(self.path)
        if stamp is None:
            return
        try:
            self._handle = open_read_only(self.path, boot_id, stamp)
            if self._handle is None:
                self._retry_at = time.monotonic() + RETRY_AFTER
        except Unusable as error:
            if stamp_of(self.path) == stamp:  # else its writer came in between
                logger.warning("%s: reading without the index: %s", self.path, error)
                self._rejected = stamp

    def _give_up(self, problem: Exception) -> None:
        self._retry_at = time.monotonic() + RETRY_AFTER
        if not self._complained:
            logger.warning("%s: going on without the index: %s", self.path, problem)
            self._complained = True

    def _wipe(self) -> None:
        try:
            wipe(self.path)
        except OSError as error:
            logger.warning("%s: cannot remove the index: %s", self.path, error)

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def _close_cleanly(self, boot_id: str) -> None:
        handle = self._handle
        if handle is None or handle.claim is None:
            return
        try:
            handle.env.sync(True)
            handle.env.close()
            if inode_of(self.path) == handle.inode:
                size, crc = digest(self.path)
                write_state(self.path, State(boot_id, handle.inode, home_of(self.path), True, size, crc), sync=False)
        except (OSError, lmdb.Error) as error:
            logger.warning("%s: the index is not closed cleanly: %s", self.path, error)
        finally:
            self._close()

    # ------------------------------------------------------------ forks

    def before_fork(self) -> bool:
        """Waits, but not for ever, until no transaction is open: closing one in the child would hurt the parent."""
        return self._gate.shut(_FORK_TIMEOUT)

    def after_fork_in_parent(self) -> None:
        self._gate.unshut()

    def after_fork_in_child(self, *, at_rest: bool) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            if at_rest:
                handle.close()
            else:
                _inherited.append(handle)
        self.writing = threading.Lock()
        self._gate = Gate()
        self._writer = None
        for user in self._users:
            user.become_reader()


def _is_about_content(error: Exception) -> bool:
    """LMDB did not like what it found; other errors are about descriptors, memory, rights and the like."""
    return isinstance(error, lmdb.Error) and getattr(error, "code", 0) <= 0


# ---------------------------------------------------------------- the stores of this process

_stores: WeakValueDictionary[str, Store] = WeakValueDictionary()
_stores_lock = threading.Lock()
_forking: list[tuple[Store, bool]] = []  # each with whether it is at rest
_inherited: list[Handle] = []  # what a child may not even close


def store_of(path: str) -> Store:
    """The one store for an index directory, by whatever path it is reached."""
    path = os.path.realpath(path)
    with _stores_lock:
        store = _stores.get(path)
        if store is None:
            store = _stores[path] = Store(path)
        return store


def _before_fork() -> None:
    _stores_lock.acquire()
    _forking[:] = [(store, store.before_fork()) for store in list(_stores.values())]


def _after_fork_in_parent() -> None:
    for store, at_rest in _forking:
        if at_rest:
            store.after_fork_in_parent()
    _forking.clear()
    _stores_lock.release()


def _after_fork_in_child() -> None:
    for store, at_rest in _forking:
        store.after_fork_in_child(at_rest=at_rest)
    _forking.clear()
    _stores_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
