"""Opening an LMDB environment: first the checks that keep damage out of the process, then the map.

How an environment is used by a process that does not write it:

    it is                with a lock file it may write    without
    closed               mapped                           mapped until a writer comes
    open in a writer     mapped                           not used: the writer would not know of the reader
    left by a kill       copied with `salvage`, and the copy mapped until a writer comes
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from typing import NamedTuple

import lmdb

from dq.engine.index.salvage import salvage
from dq.engine.index.state import (
    DATA,
    LOCK,
    Claim,
    Stamp,
    State,
    Verdict,
    home_of,
    inspect,
    is_claimed,
    remove,
    wipe,
    write_state,
)

SMALLEST_MAP = 16 << 20
MAX_READERS = 1024  # transactions at one time, over all processes; 64 bytes each in the lock file

logger = logging.getLogger("dq.engine")


class Handle(NamedTuple):
    """An open environment."""

    env: lmdb.Environment
    inode: int  # of its data file
    claim: Claim | None = None  # the writer's
    until: Stamp | None = None  # a reader's: good only as long as the directory has this stamp

    def close(self) -> None:
        self.env.close()
        if self.claim is not None:
            self.claim.close()


class Unusable(Exception):
    """There is an environment, but not one to read from."""


def open_writable(path: str, boot_id: str, *, create: bool) -> Handle | None:
    """Opens the environment, in place of an unusable one a new one; None when there is none and none is to be made."""
    verdict = inspect(path, boot_id)
    if verdict is Verdict.ABSENT and not create:
        return None
    if verdict is Verdict.UNCLOSED and _salvage_in_place(path):
        verdict = Verdict.SOUND
    if verdict is not Verdict.SOUND:
        if verdict is not Verdict.ABSENT:
            logger.warning("%s: starting with an empty index: %s", path, verdict.value)
        wipe(path)
        if not os.path.isdir(path):
            os.mkdir(path)
    claim = Claim(path)
    # On stable storage before anything else is: an old "clean" must not come back after a power loss.
    write_state(path, State(boot_id, claim.inode, home_of(path), clean=False), sync=True)
    # No sync: after a power loss the index is made anew. No writable map: with one, a full disk would kill the
    # process instead of failing the write, and the file would be as large as the map. Read-ahead stays on: the
    # file is small beside the log. No spare transactions: they keep places in the reader table over forks.
    env = lmdb.open(
        path,
        map_size=_map_size(claim.size),
        sync=False,
        metasync=False,
        max_readers=MAX_READERS,
        max_spare_txns=0,
    )
    return Handle(env, claim.inode, claim=claim)


def open_read_only(path: str, boot_id: str, stamp: Stamp) -> Handle | None:
    """Opens the environment that has a stamp; None when it can be used only later."""
    verdict = inspect(path, boot_id)
    if verdict is Verdict.UNCLOSED and not is_claimed(path):
        return Handle(_open_copy(path), stamp[0], until=stamp)
    if verdict not in (Verdict.SOUND, Verdict.UNCLOSED):
        raise Unusable(verdict.value)
    can_lock = _can_lock(path)
    if verdict is Verdict.UNCLOSED and not can_lock:
        return None
    env = lmdb.open(
        path,
        map_size=_map_size(os.stat(f"{path}/{DATA}").st_size),
        readonly=True,
        create=False,
        lock=can_lock,
        max_readers=MAX_READERS,
        max_spare_txns=0,
    )
    return Handle(env, stamp[0], until=None if can_lock else stamp)


def _map_size(file_size: int) -> int:
    size = SMALLEST_MAP
    while size < 2 * file_size:
        size *= 2
    return size


def _can_lock(path: str) -> bool:
    """LMDB goes on silently without a lock file on a read-only file system, so it is not left to find out."""
    lock = f"{path}/{LOCK}"
    return os.access(lock if os.path.exists(lock) else path, os.R_OK | os.W_OK)


def _salvage_in_place(path: str) -> bool:
    salvaged = f"{path}/salvaged.mdb"
    remove(salvaged)
    if not salvage(f"{path}/{DATA}", salvaged):
        remove(salvaged)
        return False
    remove(f"{path}/{LOCK}")  # first, as in `wipe`
    os.replace(salvaged, f"{path}/{DATA}")
    return True


def _open_copy(path: str) -> lmdb.Environment:
    folder = tempfile.mkdtemp(prefix="dq-index-")
    try:
        copy = f"{folder}/{DATA}"
        if not salvage(f"{path}/{DATA}", copy):
            raise Unusable("its writer was killed, and it does not survive a copy")
        return lmdb.open(
            copy, map_size=os.path.getsize(copy), subdir=False, readonly=True, lock=False, max_spare_txns=0
        )
    finally:
        shutil.rmtree(folder)  # what is mapped stays
