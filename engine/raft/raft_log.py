"""The event log of a cluster: every manager holds it, the Raft leader takes proposals, all fold the same image.

`propose` returns once the event is committed: durable on a majority, so that no failure of a minority can undo it.
Readers, here and in other processes, see committed events only. Every method may be called from any thread; those
that end in `_async` are for asyncio and never block its loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from dq.engine.clock import Clock
from dq.engine.errors import BatchTooLarge, Corruption, DamagedBatch, DQError
from dq.engine.files import FileSystem
from dq.engine.raft.errors import JournalDamaged, NodeStopped, NoQuorum, NotLeader, OutcomeUnknown
from dq.engine.raft.event_log import METADATA_TOPIC_ID, derived_ids, fold_events, read_events
from dq.engine.raft.events import Change, Event, decode_event, new_event, validate
from dq.engine.raft.hard_state import HardStateFile
from dq.engine.raft.image import Image, advance, fold
from dq.engine.raft.journal import Entry, RaftJournal
from dq.engine.raft.mailbox import Mailboxes
from dq.engine.raft.members import Member, check_members
from dq.engine.raft.node import RaftNode
from dq.engine.raft.proposals import Appender, Proposal, Proposals
from dq.engine.raft.raft_thread import RaftThread
from dq.engine.raft.snapshots import list_snapshots, nearest_snapshot
from dq.engine.raft.standing import Status, Timing
from dq.engine.raft.transport import RaftTransport, Security
from dq.engine.raft.upkeep import Upkeep
from dq.engine.segments.batch import CONTROL, HEADER_SIZE, Batch, decode, unpack_header
from dq.engine.segments.config import LogConfig
from dq.engine.segments.log import Identity, PartitionLog
from dq.engine.segments.positions import MemoryIndex, PositionIndex

DEADLINE = 5.0  # seconds
MAX_PROPOSAL_BYTES = 1 << 20

T = TypeVar("T")
logger = logging.getLogger("dq.raft")


@dataclass(frozen=True)
class RaftConfig:
    """One node. `members` are those the cluster begins with; later the log says who belongs to it."""

    node: str
    members: tuple[Member, ...]
    security: Security
    cluster: str = "dq"
    listen: tuple[str, int] | None = None  # the member's own address when not given
    routes: dict[str, tuple[str, int]] | None = None  # how this node reaches others, where not at their addresses
    timing: Timing = field(default_factory=Timing)


class RaftEventLog:
    """One node of the replicated event log."""

    def __init__(
        self,
        config: RaftConfig,
        files: FileSystem,
        clock: Clock,
        log_directory: str,
        state_directory: str,
        *,
        actor: str,
        index: PositionIndex | None = None,
    ) -> None:
        self.config = config
        self._files, self._clock, self._actor = files, clock, actor
        self._directory = log_directory
        self._index = index or MemoryIndex()
        self._proposals = Proposals()
        self._mailboxes = Mailboxes()
        self._watchers: list[Callable[[Status], object]] = []
        self._waiters: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._closed = False
        self._hard_state = HardStateFile(files, state_directory, config.node)
        self.log, self._journal = self._open_log()
        self.image = self._load_image()
        self.status: Status | None = None
        self._thread = RaftThread(config.node, self._make_node)
        self._thread.after_turn = self._after_turn
        self._upkeep = Upkeep(self._journal, self.image, self._halt)
        try:
            self._thread.start()
        except BaseException:
            self._upkeep.close(None)
            self.log.close()
            self._hard_state.close()
            raise

    # ------------------------------------------------------------ opening

    def _open_log(self) -> tuple[PartitionLog, RaftJournal]:
        """The log, or an empty one in its place when it is damaged: it is then filled from the others."""
        hard_state = self._hard_state
        for _ in range(2):
            if hard_state.state.discard:
                self._set_aside()
            config = LogConfig(flush="always", segment_age=None, publish="owner")
            identity = Identity(METADATA_TOPIC_ID, 0)
            log = PartitionLog(self._files, self._clock, self._directory, identity, config, self._index)
            try:
                journal = RaftJournal(log, hard_state)
                if any(offset > log.next_offset for offset in list_snapshots(self._files, self._directory)):
                    raise JournalDamaged(self._directory, "it ends before its snapshot")
            except JournalDamaged as damage:
                logger.error("%s; it is set aside and fetched from the other members", damage)
                log.discard(partial(NodeStopped, "the log was set aside"))
                hard_state.save_standing(rejoining=True, discard=True)
                continue
            if journal.is_empty and hard_state.state.term:
                hard_state.save_standing(rejoining=True)  # it may have held entries that are gone with their files
            return log, journal
        raise JournalDamaged(self._directory, "a new log cannot be made in its place")

    def _set_aside(self) -> None:
        if self._files.list(self._directory):
            self._files.rename(self._directory, f"{self._directory}.damaged-{self._clock.now()}")
        self._index.cut(0)
        self._hard_state.acked = 0
        self._hard_state.save_standing(rejoining=True, discard=False)

    def _load_image(self) -> Image:
        """That of everything that is known to be committed: the last snapshot, and what readers have seen already."""
        with _kept_from_collections():
            image = nearest_snapshot(self._files, self._directory, self.log.next_offset)
        self.log.publish(image.offset)
        return fold_events(image, self.log)

    def _make_node(self, loop: asyncio.AbstractEventLoop) -> tuple[RaftNode, RaftTransport]:
        config = self.config
        members = check_members(config.members)
        own = next((member for member in members if member.id == config.node), None)
        listen = config.listen or (own.host if own else "127.0.0.1", own.port if own else 0)
        transport = RaftTransport(loop, config.cluster, config.node, config.security, listen, config.routes)
        node = RaftNode(
            config.node,
            members,
            self._journal,
            transport,
            self,
            timing=config.timing,
            applied_index=self._journal.index_behind(self.image.offset),
            now=self._clock.now,
        )
        return node, transport

    # ------------------------------------------------------------ what the node calls, in the Raft thread

    def propose_to(self, log: Appender) -> None:
        if len(self._proposals):
            self._proposals.take(log, self.image, self._clock.now())

    def committed(self, entries: Sequence[Entry]) -> None:
        for command, index, term in entries:
            header = unpack_header(command)
            image = self._proposals.image_after(index, term)
            if image is None:
                image = self.image
                if not header.flags & CONTROL:
                    image = _fold(image, decode(header, memoryview(command)[HEADER_SIZE:]))
            self.image = advance(image, header.next_offset)
            self._proposals.committed(index, term, header.next_offset)
        self.log.publish(self.image.offset)
        self._release_waiters()
        self._upkeep.committed(self.image)

    def changed(self, status: Status) -> None:
        if self.status is not None and self.status.role == "leader" != status.role:
            self._proposals.lost_leadership()
        self.status = status
        for watcher in list(self._watchers):
            _call_safely(watcher, status)

    def stopped(self, error: Exception) -> None:
        self._proposals.refuse(NodeStopped(str(error)))
        self._proposals.give_up(lambda proposal: OutcomeUnknown(proposal.event_id, str(error)))

    def _after_turn(self) -> None:
        if not len(self._proposals):
            return
        status = self._thread.node.status()
        if status.role == "stopped":
            self._proposals.refuse(NodeStopped(str(self.failure)))
        elif status.role != "leader" and status.leader is not None:
            self._proposals.refuse(NotLeader(status.leader))

    # ------------------------------------------------------------ proposing

    def propose(
        self, change: Change, *, event_id: bytes | None = None, actor: str | None = None, timeout: float = DEADLINE
    ) -> int:
        """Commits a change as an event and returns its offset. With the same id again it returns the same offset.

        Raises NotLeader and NoQuorum when nothing was stored, OutcomeUnknown when it may have been, and a typed
        error of the change when it would change nothing.
        """
        return self._wait(self._submit(self._proposal([change], event_id, actor)), timeout)

    def propose_all(
        self,
        changes: Sequence[Change],
        *,
        event_id: bytes | None = None,
        actor: str | None = None,
        timeout: float = DEADLINE,
    ) -> list[int]:
        """Commits several changes, all or none, each an event that the next one can rely on."""
        if not changes:
            return []
        first = self._wait(self._submit(self._proposal(changes, event_id, actor)), timeout)
        return list(range(first, first + len(changes)))

    async def propose_async(
        self, change: Change, *, event_id: bytes | None = None, actor: str | None = None, timeout: float = DEADLINE
    ) -> int:
        return await self._wait_async(self._submit(self._proposal([change], event_id, actor)), timeout)

    def barrier(self, timeout: float = DEADLINE) -> int:
        """A point for linearizable reads: the image here holds everything committed before the call. Leader only."""
        return self._wait(self._submit(Proposal()), timeout)

    async def barrier_async(self, timeout: float = DEADLINE) -> int:
        return await self._wait_async(self._submit(Proposal()), timeout)

    def _proposal(self, changes: Sequence[Change], event_id: bytes | None, actor: str | None) -> Proposal:
        now = self._clock.now()
        for change in changes:
            validate(change)
        ids = derived_ids(event_id or uuid.uuid4().bytes, len(changes))
        events = [
            new_event(change, now, actor or self._actor, given) for change, given in zip(changes, ids, strict=True)
        ]
        proposal = Proposal(events)
        size = sum(map(len, proposal.values))
        if size > MAX_PROPOSAL_BYTES:
            raise BatchTooLarge(size, MAX_PROPOSAL_BYTES, "proposal")
        return proposal

    def _submit(self, proposal: Proposal) -> Proposal:
        self._proposals.put(proposal)
        self._thread.wake()
        return proposal

    def _wait(self, proposal: Proposal, timeout: float) -> int:
        try:
            return proposal.future.result(timeout)
        except concurrent.futures.TimeoutError:
            return self._timed_out(proposal, timeout)

    async def _wait_async(self, proposal: Proposal, timeout: float) -> int:
        future = self._mailboxes.of_this_loop().expect(proposal.future)
        timer = asyncio.get_running_loop().call_later(timeout, self._expire, proposal, future, timeout)
        try:
            return await future
        finally:
            timer.cancel()

    def _expire(self, proposal: Proposal, future: asyncio.Future[int], timeout: float) -> None:
        if not future.done():
            try:
                future.set_result(self._timed_out(proposal, timeout))
            except DQError as error:
                future.set_exception(error)

    def _timed_out(self, proposal: Proposal, timeout: float) -> int:
        if proposal.future.cancel():
            raise NoQuorum(timeout)
        if proposal.future.done():
            return proposal.future.result()
        raise OutcomeUnknown(proposal.event_id, f"no majority answered within {timeout:g} s")

    # ------------------------------------------------------------ reading and following

    def events(
        self, start: int = 0, *, follow: bool = False, timeout: float | None = None
    ) -> Iterator[tuple[int, Event]]:
        """Committed events from an offset on, see `read_events`."""
        return read_events(self.log, start, follow=follow, timeout=timeout)

    def wait_for(self, offset: int, timeout: float | None) -> bool:
        """Long poll: waits until an offset is committed; False when the time is over."""
        return self.log.wait_for(offset, timeout)

    async def wait_for_async(self, offset: int, timeout: float | None) -> bool:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append((offset, loop, future))
        if self.log.visible_end() <= offset:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(future, timeout)
        future.cancel()
        return self.log.visible_end() > offset

    def _release_waiters(self) -> None:
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            offset, loop, future = waiter
            if future.done():
                continue
            if offset < self.image.offset:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(_finish, future)
            else:
                self._waiters.append(waiter)

    # ------------------------------------------------------------ the cluster

    def on_change(self, watcher: Callable[[Status], object]) -> None:
        """Calls it, in the Raft thread, whenever the role, the leader, the term or the members change."""
        self._watchers.append(watcher)

    @property
    def failure(self) -> Exception | None:
        """Why this node has left the cluster; None while it takes part."""
        return self._thread.node.failure

    def _halt(self, damage: Corruption) -> None:
        error = JournalDamaged(self._directory, str(damage))
        with contextlib.suppress(NodeStopped):
            self._thread.run(lambda: self._thread.node.halt(error))

    def describe(self, timeout: float = DEADLINE) -> Status:
        return self._in_thread(lambda: self._thread.node.status(), timeout)

    def add_member(self, member: Member, timeout: float = 30.0) -> None:
        """Adds a voter: it follows first, and this returns when it has caught up and counts. Leader only."""
        self._change_members(
            lambda: self._thread.node.add_member(member),
            lambda status: any(known.id == member.id and known.voter for known in status.members),
            timeout,
        )

    def remove_member(self, name: str, timeout: float = 30.0) -> None:
        self._change_members(
            lambda: self._thread.node.remove_member(name),
            lambda status: all(known.id != name for known in status.members),
            timeout,
        )

    def step_down(self) -> None:
        """Lets another member lead."""
        self._in_thread(lambda: self._thread.node.step_down(), DEADLINE)

    def _change_members(self, change: Callable[[], int], done: Callable[[Status], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        index = self._in_thread(change, timeout)
        while time.monotonic() < deadline:
            status = self.describe()
            if status.commit_index >= index and done(status):
                self.barrier(max(deadline - time.monotonic(), 0.1))
                return
            if status.role != "leader":
                raise OutcomeUnknown(b"members", "another node leads now")
            time.sleep(0.01)
        raise OutcomeUnknown(b"members", f"not done within {timeout:g} s")

    def _in_thread(self, work: Callable[[], T], timeout: float) -> T:
        return self._thread.run(work).result(timeout)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._thread.stop()
        closed = NodeStopped("the node is closed")
        self._proposals.refuse(closed)
        self._proposals.give_up(lambda proposal: OutcomeUnknown(proposal.event_id, "the node was closed"))
        try:
            if self.failure is None:
                self._journal.sync()
            self._upkeep.close(self.image if self.failure is None else None)
        finally:
            self.log.close()
            self._hard_state.close()


@contextlib.contextmanager
def _kept_from_collections() -> Iterator[None]:
    """What is made meanwhile is not looked at by the garbage collector, now or later.

    An image has millions of objects and no cycles. A full collection would hold up the Raft thread for as long as it
    takes to look at all of them, again and again. What is garbage already is removed first, because it stays as well.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


def _fold(image: Image, batch: Batch) -> Image:
    for offset, value in zip(batch.offsets, batch.values, strict=True):
        try:
            image = fold(image, decode_event(value or b""), offset)
        except DQError:
            raise
        except Exception as error:  # a fold must not fail; if one does, this node must not go on
            raise DamagedBatch(f"event {offset} cannot be applied: {type(error).__name__} {error}") from error
    return image


def _call_safely(watcher: Callable[[Status], object], status: Status) -> None:
    try:
        watcher(status)
    except Exception:
        logger.exception("a watcher of the cluster's state failed")


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
