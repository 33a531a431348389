"""Copying an environment that was not closed into a fresh one, by a process of its own that damage may kill.

After a kill LMDB's file is whole, unless somebody meddled with it. The copy is made entry by entry, each one
checked, so that nothing is left of the old pages: neither free lists nor slack that only a later write would
stumble over. This file is run by its path and imports little, so that it starts quickly.
"""

from __future__ import annotations

import os
import sys
from itertools import islice

TIMEOUT = 10.0  # seconds; about 7 million entries, or 400 GB of log. Beyond that an empty index is the faster start

_CHUNK = 4096
_KEY_SIZE = 28
_VALUE_SIZE = 28
_INTACT = 0x48674BC7  # see entries.py


def salvage(source: str, target: str) -> bool:
    """Copies one data file into another, which must not exist; False when anything is wrong with the source."""
    import subprocess

    if not sys.executable or getattr(sys, "frozen", False):
        return False  # there is no interpreter to run this file with
    packages = [folder for folder in sys.path if os.path.isabs(folder)]
    command = [sys.executable, "-I", "-S", __file__, source, target, *packages]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def copy_intact(source: str, target: str) -> bool:
    """Does the work; stops at the first entry that is not intact or out of order."""
    import lmdb

    try:
        from crc32c import crc32c
    except ImportError:
        import crcmod.predefined

        crc32c = crcmod.predefined.mkCrcFun("crc-32c")
    size = os.path.getsize(source)
    copied = 0
    with (
        lmdb.open(source, map_size=size, subdir=False, readonly=True, lock=False) as old,
        lmdb.open(target, map_size=2 * size + (1 << 20), subdir=False, sync=False, lock=False) as new,
        old.begin() as reading,
        new.begin(write=True) as writing,
    ):
        entries, cursor = iter(reading.cursor()), writing.cursor()
        while chunk := list(islice(entries, _CHUNK)):
            if any(len(key) != _KEY_SIZE or len(value) != _VALUE_SIZE for key, value in chunk):
                return False
            if {crc32c(key + value) for key, value in chunk} != {_INTACT}:
                return False
            if cursor.putmulti(chunk, append=True) != (len(chunk), len(chunk)):
                return False
            copied += len(chunk)
        return copied == reading.stat()["entries"]


if __name__ == "__main__":
    sys.path += sys.argv[3:]
    sys.exit(0 if copy_intact(sys.argv[1], sys.argv[2]) else 1)
