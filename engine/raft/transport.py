"""Connections between the nodes: asyncio, authenticated, bounded. Messages are maps of plain values.

Of two nodes the one with the greater id dials. A stranger gets the time and the memory of one handshake, of which
there are only so many at once, and nothing of what it sends is looked at beyond that.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from dq.engine.errors import InvalidConfig
from dq.engine.raft.members import Member, Members
from dq.engine.raft.wire import MAX_FRAME, FrameReader, FrameWriter, Handshake, Refused

HANDSHAKE_SECONDS = 3.0
MOST_STRANGERS = 64
DIAL_EVERY = 0.1
PING_AFTER, DEAD_AFTER = 1.0, 5.0
FULL = 1 << 20  # bytes that wait for a peer before entries are held back

logger = logging.getLogger("dq.raft")


@dataclass(frozen=True)
class Security:
    """How nodes prove who they are: a secret that all share, certificates whose names are the node ids, or both."""

    secret: bytes | None = None
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if (self.server_tls is None) != (self.client_tls is None):
            raise InvalidConfig("TLS", "one side only", "contexts for both sides, or none")
        if self.server_tls is not None and self.server_tls.verify_mode != ssl.CERT_REQUIRED:
            raise InvalidConfig("TLS", "no client certificates", "a context with verify_mode=CERT_REQUIRED")
        if self.secret is None and self.server_tls is None:
            raise InvalidConfig("security", None, "a shared secret or TLS")
        if self.secret is not None and len(self.secret) < 16:
            raise InvalidConfig("secret", "shorter", "16 bytes or more")


def make_tls(certificate: str, key: str, authority: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts for both sides from the files of a node's certificate, its key, and the authority behind all of them."""
    contexts = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        context = ssl.create_default_context(purpose, cafile=authority)
        context.load_cert_chain(certificate, key)
        context.verify_mode = ssl.CERT_REQUIRED
        contexts.append(context)
    return contexts[0], contexts[1]


def _certified_names(peer: Any) -> set[str]:
    names = {value for kind, value in peer.get("subjectAltName", ()) if kind == "DNS"}
    return names or {value for group in peer.get("subject", ()) for name, value in group if name == "commonName"}


class Link(asyncio.Protocol):
    """One connection. `peer` is set once the other side has proved who it is."""

    def __init__(self, owner: RaftTransport, dialled: str | None = None) -> None:
        self._owner = owner
        self._dialled = dialled
        self._handshake = Handshake(owner.cluster, owner.me, owner.security.secret)
        self._reader, self._writer = FrameReader(), FrameWriter()
        self._claimed: str | None = None
        self.peer: str | None = None
        self.heard_at = self.spoke_at = owner.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._timer = self._owner.loop.call_later(HANDSHAKE_SECONDS, self._expire)
        self._owner.strangers.add(self)
        if self._dialled is not None:
            self.send(self._handshake.hello(self._dialled))
        elif len(self._owner.strangers) > MOST_STRANGERS:
            self.transport.abort()

    def _expire(self) -> None:
        if self.peer is None:
            self.transport.abort()

    def send(self, message: Any) -> None:
        self.spoke_at = self._owner.loop.time()
        self.transport.writelines(self._writer.pack(message))

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._owner.loop.time()
        try:
            for message in self._reader.feed(data):
                if self.peer is None:
                    self._shake_hands(message)
                elif message:
                    self._owner.received(self, message)
                if self.transport.is_closing():
                    return
        except Refused as error:
            logger.warning("%s: connection of %s ended: %s", self._owner.me, self.peer or "a stranger", error)
            self.transport.abort()
        self._owner.on_progress()

    def _shake_hands(self, message: Any) -> None:
        if self._dialled is not None:
            self._check_certificate(self._dialled)
            self.send(self._handshake.answer_welcome(message))
            self._open(self._dialled)
        elif self._claimed is None:
            claimed, answer = self._handshake.answer_hello(message)
            self._check_certificate(claimed)
            if claimed not in self._owner.peers:
                raise Refused("not a member")
            self._claimed = claimed
            self.send(answer)
        else:
            self._handshake.check_proof(message)
            self._open(self._claimed)

    def _check_certificate(self, name: str) -> None:
        if self._owner.security.server_tls is not None:
            names = _certified_names(self.transport.get_extra_info("peercert") or {})
            if name not in names:
                raise Refused(f"the certificate is of {sorted(names)}, not of {name!r}")

    def _open(self, peer: str) -> None:
        self._writer.key, self._reader.key = self._handshake.send_key, self._handshake.receive_key
        self._reader.limit = MAX_FRAME
        self._timer.cancel()
        self._owner.strangers.discard(self)
        self.peer = peer
        self._owner.opened(self, peer)

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._owner.strangers.discard(self)
        self._owner.closed(self)


class RaftTransport(Transport):  # type: ignore[misc]  # pysyncobj has no types
    """All links of one node. Belongs to the Raft thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cluster: str,
        me: str,
        security: Security,
        listen: tuple[str, int],
        routes: dict[str, tuple[str, int]] | None = None,
    ) -> None:
        super().__init__(None, None, [])
        self.loop = loop
        self.cluster = cluster
        self.me = me
        self.security = security
        self.peers: dict[str, Member] = {}
        self.strangers: set[Link] = set()
        self.on_progress: Callable[[], None] = lambda: None  # after messages came in
        self._listen = listen
        self._routes = routes or {}  # other addresses than those that the members have
        self._links: dict[str, Link] = {}
        self._dialling: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        host, port = self._listen
        tls = self.security.server_tls
        self._server = await self.loop.create_server(
            lambda: Link(self), host, port, ssl=tls, ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None
        )
        self._run(self._keep_connected())

    def set_members(self, members: Members) -> None:
        self.peers = {member.id: member for member in members if member.id != self.me}
        for name, link in list(self._links.items()):
            if name not in self.peers:
                link.transport.abort()

    def _run(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_connected(self) -> None:
        while True:
            now = self.loop.time()
            for link in list(self._links.values()):
                if now - link.heard_at > DEAD_AFTER:
                    link.transport.abort()
                elif now - link.spoke_at > PING_AFTER:
                    link.send(None)
            for name, member in self.peers.items():
                if name < self.me and name not in self._links and name not in self._dialling:
                    self._dialling.add(name)
                    self._run(self._dial(member))
            await asyncio.sleep(DIAL_EVERY)

    async def _dial(self, member: Member) -> None:
        host, port = self._routes.get(member.id, (member.host, member.port))
        tls = self.security.client_tls
        try:
            connecting = self.loop.create_connection(
                lambda: Link(self, member.id), host, port, ssl=tls, server_hostname=member.id if tls else None
            )
            _, link = await asyncio.wait_for(connecting, HANDSHAKE_SECONDS)
            while link in self.strangers:
                await asyncio.sleep(DIAL_EVERY / 10)
        except (OSError, asyncio.TimeoutError) as error:
            logger.debug("%s: cannot reach %s: %s", self.me, member.id, error)
        finally:
            self._dialling.discard(member.id)

    # ------------------------------------------------------------ what links report

    def opened(self, link: Link, peer: str) -> None:
        old = self._links.pop(peer, None)
        if old is not None:
            old.transport.abort()
            self._onNodeDisconnected(Node(peer))
        self._links[peer] = link
        self._onNodeConnected(Node(peer))

    def closed(self, link: Link) -> None:
        if link.peer is not None and self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._onNodeDisconnected(Node(link.peer))

    def received(self, link: Link, message: Any) -> None:
        if type(message) is not dict or type(message.get("type")) is not str:
            raise Refused("not a message")
        try:
            self._onMessageReceived(Node(link.peer), message)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise Refused(f"not a message: {type(error).__name__} {error}") from error

    # ------------------------------------------------------------ what the node calls

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        link = self._links.get(node.id)
        if link is None or link.transport.is_closing():
            return False
        link.send(message)
        return True

    def connected(self, node: Node) -> bool:
        return node.id in self._links

    def congested(self, node: Node) -> bool:
        link = self._links.get(node.id)
        return link is not None and link.transport.get_write_buffer_size() > FULL

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in [*self._links.values(), *self.strangers]:
            link.transport.abort()
        await asyncio.sleep(0)
