"""What a node must never forget: its term, its vote, and whether it may vote at all.

Two copies, each CRC-checked and replaced in one step, both on stable storage before a vote is answered. Whatever
copy survives therefore knows of every vote that was ever sent. `acked` is a number that is written without a sync
after each sync of the log: after a crash, though not after a power loss, it tells whether the log lost its end.

A node without a readable copy, or whose log is damaged, is `rejoining`: it may have voted or acknowledged what it
no longer knows. It follows, but neither votes nor counts, until it holds again all it could have acknowledged and
knows a term that is at least as high as any it could have voted in (see `rejoin.py`).
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgpack

from dq.engine.files import FileSystem, read_file, replace_file
from dq.engine.raft.errors import WrongNode
from dq.engine.segments.crc import crc32c

_VERSION = 1
_COPIES = ("vote", "vote.copy")
_ACKED = "acked"

logger = logging.getLogger("dq.engine")


class HardState(NamedTuple):
    sequence: int  # grows with every write: the greater one of two copies is the newer one
    term: int
    vote: str | None  # for whom this node voted in the term
    rejoining: bool
    discard: bool = False  # the log was found damaged and is to be moved aside before it is opened


class HardStateFile:
    def __init__(self, files: FileSystem, directory: str, node: str) -> None:
        self._files = files
        self._directory = directory
        self._node = node
        files.make_directory(directory)
        found = [state for name in _COPIES if (state := self._read(name)) is not None]
        self.was_lost = not found
        self.state = max(found, key=lambda state: state.sequence, default=HardState(0, 0, None, rejoining=True))
        self._acked = files.counter(f"{directory}/{_ACKED}", write=True)
        if len(found) < len(_COPIES) or found[0] != found[1]:
            self._write(self.state)

    def _read(self, name: str) -> HardState | None:
        path = f"{self._directory}/{name}"
        data = read_file(self._files, path)
        if data is None:
            return None
        try:
            if crc32c(data[4:]) != int.from_bytes(data[:4], "little"):
                raise ValueError("the CRC does not match")
            version, node, *fields = msgpack.unpackb(data[4:])
            if version != _VERSION:
                raise ValueError(f"there is no version {version}")
            state = HardState._make(fields)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            logger.error("%s is damaged and not used: %s", path, error)
            return None
        if node != self._node:
            raise WrongNode(path, node, self._node)
        return state

    def _write(self, state: HardState) -> None:
        body = msgpack.packb([_VERSION, self._node, *state])
        data = crc32c(body).to_bytes(4, "little") + body
        for name in _COPIES:
            replace_file(self._files, f"{self._directory}/{name}", data, sync=True)
        self.state = state

    def save_vote(self, term: int, vote: str | None) -> None:
        if (term, vote) != (self.state.term, self.state.vote):
            self._write(self.state._replace(sequence=self.state.sequence + 1, term=term, vote=vote))

    def save_standing(self, *, rejoining: bool, discard: bool = False) -> None:
        if (rejoining, discard) != (self.state.rejoining, self.state.discard):
            sequence = self.state.sequence + 1
            self._write(self.state._replace(sequence=sequence, rejoining=rejoining, discard=discard))

    @property
    def acked(self) -> int:
        """The end of the log up to which this node has told others that it is stored here."""
        return self._acked.get()

    @acked.setter
    def acked(self, end: int) -> None:
        self._acked.set(end)

    def close(self) -> None:
        self._acked.close()
