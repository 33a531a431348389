"""Many threads ask, one of them serves all. No thread of its own.

The first to ask becomes the leader and serves; those who come meanwhile queue up and sleep. When the leader is
done, it wakes everyone it served and hands the lead to the first of those who came too late. So what is costly
once, like a sync, is done once for many, and a thread that is alone pays next to nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from dq.engine.errors import StorageError


class Request:
    """What a thread asks for; served when `run` returns. Subclasses add what is asked and what is answered."""

    __slots__ = ("error", "leads", "wake")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.leads = False
        self.wake: threading.Lock | None = None


R = TypeVar("R", bound=Request)


class Combiner(Generic[R]):
    """`serve` gets all requests that wait, and may set `error` on single ones. What it raises counts for all."""

    __slots__ = ("_busy", "_mutex", "_queue", "_serve")

    def __init__(self, serve: Callable[[list[R]], None]) -> None:
        self._serve = serve
        self._mutex = threading.Lock()
        self._queue: list[R] = []
        self._busy = False

    def run(self, request: R) -> None:
        """Returns when the request is served; raises its error."""
        with self._mutex:
            self._queue.append(request)
            if self._busy:
                request.wake = threading.Lock()
                request.wake.acquire()
            self._busy = True
        if request.wake is not None:
            try:
                request.wake.acquire()
            except BaseException:  # an interrupt: the others must not wait for this thread to lead
                self._leave(request)
                raise
        if request.wake is None or request.leads:
            self._lead(request)
        if request.error is not None:
            raise request.error

    def _leave(self, request: R) -> None:
        """Stops waiting. If the request is being served already, it will be."""
        with self._mutex:
            leads = request.leads
            if not leads and request in self._queue:
                self._queue.remove(request)
        if leads:
            self._lead(request)

    def _lead(self, own: R) -> None:
        with self._mutex:
            requests, self._queue = self._queue, []
        try:
            self._serve(requests)
        except BaseException as error:
            # An interrupt is meant for the thread that got it; the others only learn that it stopped their work.
            shared = error if isinstance(error, Exception) else StorageError("interrupted while writing")
            for request in requests:
                request.error = request.error or (error if request is own else shared)
        with self._mutex:
            heir = self._queue[0] if self._queue else None
            self._busy = heir is not None
            if heir is not None:
                heir.leads = True
        for request in requests:
            if request is not own and request.wake is not None:
                request.wake.release()
        if heir is not None and heir.wake is not None:
            heir.wake.release()
