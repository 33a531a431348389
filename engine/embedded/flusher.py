"""The thread that syncs every so often; with flush="interval" only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dq.engine.errors import DQError
from dq.engine.segments.log import PartitionLog

logger = logging.getLogger("dq.engine")


class Flusher:
    """Started by the first partition that is opened for writing."""

    def __init__(self, logs: Callable[[], list[PartitionLog]], interval: float) -> None:
        self._logs = logs
        self._interval = interval
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dq-flusher", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            for log in [log for log in self._logs() if not log.closed]:
                try:
                    log.sync()
                except DQError as error:
                    # The partition is closed for writing now, and its next append says so.
                    logger.error("interval sync failed: %s", error)

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
