"""The thread in which a Raft node lives, with an asyncio loop of its own. Whoever has work for the node wakes it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from dq.engine.raft.errors import NodeStopped
from dq.engine.raft.node import TELL_AFTER, RaftNode
from dq.engine.raft.transport import RaftTransport

TURN_EVERY = 0.02  # seconds, when nothing happens

T = TypeVar("T")
logger = logging.getLogger("dq.raft")


class RaftThread:
    def __init__(self, name: str, make: Callable[[asyncio.AbstractEventLoop], tuple[RaftNode, RaftTransport]]) -> None:
        self.loop = asyncio.new_event_loop()
        self.node, self._transport = make(self.loop)
        self._transport.on_progress = self._schedule
        self.after_turn: Callable[[], None] = lambda: None
        self._scheduled = self._woken = self._delayed = self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"raft {name}", daemon=True)

    def start(self) -> None:
        """Raises OSError when the address cannot be listened on."""
        try:
            self.loop.run_until_complete(self._transport.start())
        except BaseException:
            self.loop.run_until_complete(self._transport.stop())
            self.loop.close()
            raise
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._timer()
        self.loop.run_forever()
        self.loop.run_until_complete(self._transport.stop())
        self.loop.close()

    def _timer(self) -> None:
        self._schedule()
        self.loop.call_later(TURN_EVERY, self._timer)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = self._woken = False
        self.node.tick()
        self.after_turn()
        if self.node.has_work:
            self._schedule()
        elif self.node.has_news and not self._delayed:
            self._delayed = True
            self.loop.call_later(TELL_AFTER, self._delayed_turn)

    def _delayed_turn(self) -> None:
        self._delayed = False
        self._schedule()

    def wake(self) -> None:
        """From any thread: there is something to do."""
        if not self._woken:
            self._woken = True
            self._call(self._schedule)

    def _call(self, work: Callable[..., object], *arguments: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            raise NodeStopped("the node is closed") from None

    def run(self, work: Callable[[], T]) -> concurrent.futures.Future[T]:
        """From any thread: does something in the Raft thread."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            self._schedule()

        self._call(call)
        return future

    def stop(self) -> None:
        if not self._closed:
            self._closed = True
            self._call(self.loop.stop)
            self._thread.join()
