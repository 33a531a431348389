"""Many threads ask, one of them serves all. No thread of its own.

The first to ask becomes the leader and serves; those who come meanwhile queue up and sleep. When the leader is
done, it wakes everyone it served and hands the lead to the first of those who came too late. So what is costly
once, like a sync, is done once for many, and a thread that is alone pays next to nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from dq.engine.errors import StorageError


class Request:
    """What a thread asks for; served when `run` returns. Subclasses add what is asked and what is answered."""

    __slots__ = ("error", "followers", "heir", "leads", "wake")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.followers: list[Request] = []  # whom this one serves, as their leader
        self.heir: Request | None = None  # who leads after this one
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
        """Returns when the request is served; raises its error. An interrupt leaves nobody without a leader."""
        try:
            with self._mutex:
                self._queue.append(request)
                if self._busy:
                    wake = threading.Lock()
                    wake.acquire()
                    request.wake = wake
                else:
                    request.leads = True
                    self._busy = True
            if request.wake is not None:
                request.wake.acquire()
            if request.leads:
                self._serve_waiting(request)
        finally:
            # An interrupt can come with any call, so also here; spelled out, since a loop or a function of its own
            # would have moments outside of every `try`.
            try:
                self._step_down(request)
            except BaseException:
                try:
                    self._step_down(request)
                except BaseException:
                    self._step_down(request)
                raise
        if request.error is not None:
            raise request.error

    def _serve_waiting(self, own: R) -> None:
        with self._mutex:
            requests, own.followers, self._queue = self._queue, list(self._queue), []
        try:
            self._serve(requests)
        except BaseException as error:
            # An interrupt is meant for the thread that got it; the others only learn that it stopped their work.
            shared = error if isinstance(error, Exception) else StorageError("interrupted while writing")
            for request in requests:
                request.error = request.error or (error if request is own else shared)

    def _step_down(self, request: R) -> None:
        """Wakes those who were served and passes on the lead; or, after an interrupt, leaves the queue.

        Can be called again if it was interrupted: each step looks at what is left to do.
        """
        with self._mutex:
            if request in self._queue:
                self._queue.remove(request)
            if request.leads:
                request.heir = self._queue[0] if self._queue else None
                if request.heir is not None:
                    request.heir.leads = True
                self._busy = request.heir is not None
                request.leads = False
        while request.followers:
            _wake(request.followers[-1])
            request.followers.pop()
        if request.heir is not None:
            _wake(request.heir)
            request.heir = None


def _wake(request: Request) -> None:
    if request.wake is not None:
        with contextlib.suppress(RuntimeError):  # it is awake already
            request.wake.release()
