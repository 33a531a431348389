"""The state file beside an LMDB environment: it tells whether the environment may be mapped into a process.

LMDB trusts the file it maps: damaged pages can kill the process. So the file is looked at before, and the
state says what to look for: after a clean close, the size and CRC of the data file; otherwise, which boot of
the machine the writer ran in, since a power loss may have left pages unwritten and a killed process cannot.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import struct
import time
from enum import Enum
from typing import NamedTuple

import msgpack

from dq.engine.files import OsFiles, replace_file
from dq.engine.segments.crc import crc32c

DATA, LOCK, STATE = "data.mdb", "lock.mdb", "state"

_VERSION = 1
_CRC = struct.Struct("<I")
_LARGEST_STATE = 4096
_CHUNK = 1 << 20
_CLAIM_TIMEOUT = 1.0  # seconds


class State(NamedTuple):
    boot_id: str  # of the machine when the writer opened it
    inode: int  # of the data file: a copy has another one
    home: int  # the inode of the data directory, which tells when the index was moved to another one
    clean: bool  # nobody has written since the size and the CRC were taken
    size: int = 0
    crc: int = 0


class Verdict(Enum):
    ABSENT = "there is no data file"
    SOUND = "it is as its writer left it"
    UNCLOSED = "its writer still runs, or was killed"
    NO_STATE = "it has no valid state file"
    FOREIGN = "it comes from another directory"
    CHANGED = "its data file is not as it was left"
    LOST_POWER = "it was not closed before the machine went down"


def inspect(path: str, boot_id: str) -> Verdict:
    """What can be said of an environment without mapping it."""
    inode = inode_of(path)
    if inode is None:
        return Verdict.ABSENT
    state = read_state(path)
    if state is None:
        return Verdict.NO_STATE
    if (state.inode, state.home) != (inode, home_of(path)):
        return Verdict.FOREIGN
    if state.clean:
        try:
            return Verdict.SOUND if digest(path) == (state.size, state.crc) else Verdict.CHANGED
        except OSError:
            return Verdict.CHANGED
    return Verdict.UNCLOSED if boot_id and state.boot_id == boot_id else Verdict.LOST_POWER


def read_state(path: str) -> State | None:
    try:
        with open(f"{path}/{STATE}", "rb") as file:
            data = file.read(_LARGEST_STATE)
    except OSError:
        return None
    if len(data) <= _CRC.size or _CRC.unpack_from(data)[0] != crc32c(data[_CRC.size :]):
        return None
    version, *fields = msgpack.unpackb(data[_CRC.size :])
    return State._make(fields) if version == _VERSION else None


def write_state(path: str, state: State, *, sync: bool) -> None:
    body: bytes = msgpack.packb([_VERSION, *state])
    replace_file(OsFiles(), f"{path}/{STATE}", _CRC.pack(crc32c(body)) + body, sync=sync)


def digest(path: str) -> tuple[int, int]:
    """Size of the data file, and the CRC of the CRCs of its chunks."""
    size, crcs = 0, []
    with open(f"{path}/{DATA}", "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            crcs.append(_CRC.pack(crc32c(chunk)))
    return size, crc32c(b"".join(crcs))


def inode_of(path: str) -> int | None:
    """The inode of the data file, None when there is none."""
    try:
        return os.stat(f"{path}/{DATA}").st_ino
    except OSError:
        return None


def home_of(path: str) -> int:
    return os.stat(os.path.dirname(path)).st_ino


Stamp = tuple[int, int, int]


def stamp_of(path: str) -> Stamp | None:
    """Changes whenever a writer opens, closes or wipes the environment; None when there is none."""
    inode = inode_of(path)
    try:
        state = os.stat(f"{path}/{STATE}")
    except OSError:
        return None
    return None if inode is None else (inode, state.st_ino, state.st_mtime_ns)


class Claim:
    """A writer's sign of life: a lock on the data file, held for as long as it has the environment open."""

    __slots__ = ("_fd", "inode", "size")

    def __init__(self, path: str) -> None:
        """Makes the data file if there is none. Those who look for a claim hold the lock for an instant."""
        self._fd = -1
        self._fd = os.open(f"{path}/{DATA}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + _CLAIM_TIMEOUT
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
        status = os.fstat(self._fd)
        self.inode, self.size = status.st_ino, status.st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


def is_claimed(path: str) -> bool:
    """The environment has a living writer."""
    fd = os.open(f"{path}/{DATA}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def wipe(path: str) -> None:
    """Removes the environment. The files are unlinked, so whoever has them mapped is not disturbed."""
    if not os.path.isdir(path):
        remove(path)
        return
    # The lock file goes first: a new data file must never meet the reader table of an old one.
    for name in (LOCK, DATA, STATE):
        remove(f"{path}/{name}")


def remove(path: str) -> None:
    """Removes whatever is there, if anything."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            os.remove(path)
    except FileNotFoundError:
        pass
