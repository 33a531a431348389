"""Results on their way from the Raft thread to asyncio loops: one wake-up of a loop for all that came together."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from concurrent.futures import Future
from weakref import WeakKeyDictionary


class Mailbox:
    """Of one loop. `expect` is called in the loop, the rest happens by itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._results: deque[tuple[Future[int], asyncio.Future[int]]] = deque()
        self._woken = False

    def expect(self, source: Future[int]) -> asyncio.Future[int]:
        target: asyncio.Future[int] = self._loop.create_future()
        source.add_done_callback(lambda done: self._put(done, target))
        return target

    def _put(self, source: Future[int], target: asyncio.Future[int]) -> None:
        self._results.append((source, target))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        while self._results:
            source, target = self._results.popleft()
            if target.done():
                continue
            if source.cancelled():
                target.cancel()
            elif (error := source.exception()) is not None:
                target.set_exception(error)
            else:
                target.set_result(source.result())


class Mailboxes:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = WeakKeyDictionary()

    def of_this_loop(self) -> Mailbox:
        loop = asyncio.get_running_loop()
        with self._lock:
            box = self._by_loop.get(loop)
            if box is None:
                box = self._by_loop[loop] = Mailbox(loop)
            return box
