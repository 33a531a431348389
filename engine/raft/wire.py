"""What goes over the wire between nodes: frames, and the handshake that proves who speaks. Pure, no I/O.

A frame is a length (4 bytes, little-endian), that many bytes of msgpack, and, when the nodes share a secret, a MAC
of 16 bytes over the frame's number and its content. Before the handshake is over frames are small and without MAC:

    dialler   ["hello", version, cluster, its id, the listener's id, nonce]
    listener  ["welcome", version, nonce, proof]
    dialler   ["proof", proof]

A proof is an HMAC-SHA256 with the secret over the role and everything both sides have said. The keys of the two
directions are made in the same way, so that frames of one session mean nothing in another. Without a secret proofs
are empty, and TLS has to tell who speaks.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgpack

VERSION = 1
MAX_HANDSHAKE = 1024
MAX_FRAME = 32 << 20
MAC_SIZE = 16
NONCE_SIZE = 32
_LENGTH = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")


class Refused(Exception):
    """The other side does not follow the protocol, or is not who it says: the connection ends."""


class Handshake:
    """One side of the handshake. After it `send_key` and `receive_key` are set, empty without a secret."""

    def __init__(self, cluster: str, me: str, secret: bytes | None) -> None:
        self._cluster = cluster
        self._me = me
        self._secret = secret
        self._nonce = os.urandom(NONCE_SIZE)
        self._transcript = b""
        self.send_key = self.receive_key = b""

    def hello(self, peer: str) -> list[Any]:
        self._peer = peer
        return ["hello", VERSION, self._cluster, self._me, peer, self._nonce]

    def answer_hello(self, message: Any) -> tuple[str, list[Any]]:
        """The listener: who says to be there, and the answer."""
        kind, version, cluster, peer, me, nonce = _fields(message, 6)
        if (kind, version, cluster, me) != ("hello", VERSION, self._cluster, self._me) or type(peer) is not str:
            raise Refused("not a greeting for this node")
        self._agree(peer, self._me, nonce, self._nonce)
        return peer, ["welcome", VERSION, self._nonce, self._proof(b"listener")]

    def answer_welcome(self, message: Any) -> list[Any]:
        """The dialler: checks the listener's proof and gives its own."""
        kind, version, nonce, proof = _fields(message, 4)
        if (kind, version) != ("welcome", VERSION):
            raise Refused("not a welcome")
        self._agree(self._me, self._peer, self._nonce, nonce)
        self._check(b"listener", proof)
        self.send_key, self.receive_key = self._key(b"dialler"), self._key(b"listener")
        return ["proof", self._proof(b"dialler")]

    def check_proof(self, message: Any) -> None:
        kind, proof = _fields(message, 2)
        if kind != "proof":
            raise Refused("not a proof")
        self._check(b"dialler", proof)
        self.send_key, self.receive_key = self._key(b"listener"), self._key(b"dialler")

    def _agree(self, dialler: str, listener: str, first: Any, second: Any) -> None:
        if any(type(nonce) is not bytes or len(nonce) != NONCE_SIZE for nonce in (first, second)):
            raise Refused("a nonce is missing")
        self._transcript = msgpack.packb([VERSION, self._cluster, dialler, listener, first, second])

    def _digest(self, purpose: bytes) -> bytes:
        return hmac.digest(self._secret, purpose + b"\0" + self._transcript, "sha256") if self._secret else b""

    def _proof(self, role: bytes) -> bytes:
        return self._digest(b"dq raft proof of the " + role)

    def _key(self, role: bytes) -> bytes:
        return self._digest(b"dq raft frames of the " + role)

    def _check(self, role: bytes, proof: Any) -> None:
        if type(proof) is not bytes or not hmac.compare_digest(proof, self._proof(role)):
            raise Refused("the proof is wrong")


def _fields(message: Any, count: int) -> Any:
    if type(message) is not tuple or len(message) != count:
        raise Refused("not a message of the handshake")
    return message


class FrameWriter:
    def __init__(self) -> None:
        self.key = b""
        self._number = 0

    def pack(self, message: Any) -> list[bytes]:
        payload = msgpack.packb(message)
        if not self.key:
            return [_LENGTH.pack(len(payload)), payload]
        self._number += 1
        return [_LENGTH.pack(len(payload)), payload, _mac(self.key, self._number, payload)]


class FrameReader:
    """Bytes in, messages out; never holds more than the limit that is in force."""

    def __init__(self) -> None:
        self.key = b""
        self.limit = MAX_HANDSHAKE
        self._number = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The whole messages there are now. Key and limit may change between two of them."""
        buffer = self._buffer
        buffer += data
        position = 0
        try:
            while len(buffer) - position >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(buffer, position)
                if size > self.limit:
                    raise Refused(f"a frame of {size} bytes is larger than {self.limit}")
                start, key = position + _LENGTH.size, self.key
                end = start + size + (MAC_SIZE if key else 0)
                if len(buffer) < end:
                    break
                payload = bytes(buffer[start : start + size])
                if key:
                    self._number += 1
                    if not hmac.compare_digest(_mac(key, self._number, payload), bytes(buffer[start + size : end])):
                        raise Refused("the MAC of a frame is wrong")
                position = end
                yield _unpack(payload)
        finally:
            del buffer[:position]


def _mac(key: bytes, number: int, payload: bytes) -> bytes:
    return blake2b(_NUMBER.pack(number) + payload, digest_size=MAC_SIZE, key=key).digest()


def _unpack(payload: bytes) -> Any:
    try:
        return msgpack.unpackb(payload, use_list=False, strict_map_key=True, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise Refused(f"not msgpack: {type(error).__name__}") from None
