"""One node as a process of its own: takes commands as lines of JSON on its standard input, answers on its output.

Each command is [number, name, arguments] and gets one answer, [number, "ok", result] or [number, error code,
text, leader]. The process ends when its input does. It exits with status 3 when the node has left the cluster.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dq.engine.clock import SystemClock
from dq.engine.errors import DQError
from dq.engine.files import OsFiles
from dq.engine.raft.events import TopicCreated
from dq.engine.raft.image import state_hash
from dq.engine.raft.members import Member
from dq.engine.raft.raft_log import RaftConfig, RaftEventLog
from dq.engine.raft.standing import Status, Timing
from dq.engine.raft.transport import Security, make_tls

STOPPED = 3


class Commands:
    def __init__(self, log: RaftEventLog) -> None:
        self._log = log

    def propose(self, event_id: str, topic: str, timeout: float = 5.0) -> int:
        change = TopicCreated(topic=topic, topic_id=bytes.fromhex(event_id), partitions=1)
        return self._log.propose(change, event_id=bytes.fromhex(event_id), timeout=timeout)

    def fill(self, start: int, count: int, at_once: int) -> int:
        for first in range(start, start + count, at_once):
            numbers = range(first, min(first + at_once, start + count))
            changes = [
                TopicCreated(topic=f"t{number}", topic_id=number.to_bytes(16, "big"), partitions=1)
                for number in numbers
            ]
            self._log.propose_all(changes, timeout=30)
        return self._log.image.offset

    def load(self, prefix: str, callers: int, each: int, at_once: int) -> list[float]:
        """So many callers in asyncio, each so often; returns how long each took, and at the end all together."""

        async def caller(number: int) -> list[float]:
            times = []
            for turn in range(each):
                changes = [
                    TopicCreated(topic=f"{prefix}-{number}-{turn}-{place}", topic_id=os.urandom(16), partitions=1)
                    for place in range(at_once)
                ]
                start = time.perf_counter()
                if at_once == 1:
                    await self._log.propose_async(changes[0], timeout=30)
                else:
                    await asyncio.to_thread(self._log.propose_all, changes, timeout=30)
                times.append(time.perf_counter() - start)
            return times

        async def work() -> list[float]:
            start = time.perf_counter()
            lists = await asyncio.gather(*map(caller, range(callers)))
            return [*(seconds for times in lists for seconds in times), time.perf_counter() - start]

        return asyncio.run(work())

    def barrier(self, timeout: float = 5.0) -> int:
        return self._log.barrier(timeout)

    def status(self) -> list[Any]:
        status = self._log.describe()
        return [status.role, status.leader, status.term, status.commit_index, [list(item) for item in status.members]]

    def image(self) -> list[Any]:
        image = self._log.image
        return [image.offset, state_hash(image), len(image.topics)]

    def events(self, start: int = 0) -> list[Any]:
        return [[offset, event.id.hex()] for offset, event in self._log.events(start)]

    def wait_for(self, offset: int, timeout: float) -> bool:
        return self._log.wait_for(offset, timeout)

    def add_member(self, name: str, host: str, port: int) -> None:
        self._log.add_member(Member(name, host, port), timeout=20)

    def remove_member(self, name: str) -> None:
        self._log.remove_member(name, timeout=10)

    def step_down(self) -> None:
        self._log.step_down()


def _created(number: int) -> TopicCreated:
    return TopicCreated(topic=f"t{number}", topic_id=number.to_bytes(16, "big"), partitions=1)


class Output:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    def put(self, answer: list[Any]) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


def _serve(commands: Commands, output: Output, number: int, name: str, arguments: list[Any]) -> None:
    try:
        output.put([number, "ok", getattr(commands, name)(*arguments)])
    except DQError as error:
        output.put([number, error.code, str(error), getattr(error, "leader", None)])
    except Exception as error:
        output.put([number, "failed", f"{type(error).__name__}: {error}", None])


def _break_rule(rule: str) -> None:
    """Breaks a rule on purpose, to show that the checks notice."""
    from dq.engine.raft.journal import RaftJournal

    if rule == "forget-unsynced":  # acknowledges entries that a kill then loses
        kept: list[Any] = []

        def sync(self: RaftJournal) -> None:
            kept.extend(self._pending)
            self._pending = []

        RaftJournal.sync = sync  # type: ignore[method-assign]


def open_log(config: dict[str, Any]) -> RaftEventLog:
    tls = make_tls(*config["tls"]) if config.get("tls") else (None, None)
    secret = bytes.fromhex(config["secret"]) if config.get("secret") else None
    return RaftEventLog(
        RaftConfig(
            node=config["node"],
            members=tuple(Member(*member) for member in config["members"]),
            security=Security(secret, *tls),
            routes={name: (host, port) for name, (host, port) in config.get("routes", {}).items()},
            timing=Timing(**config.get("timing", {})),
        ),
        OsFiles(),
        SystemClock(),
        f"{config['folder']}/topics/__metadata/0",
        f"{config['folder']}/raft",
        actor=config["node"],
    )


def main() -> None:
    config = json.loads(sys.argv[1])
    logging.basicConfig(filename=f"{config['folder']}.log", level=logging.INFO, format="%(asctime)s %(message)s")
    if config.get("break"):
        _break_rule(config["break"])
    output = Output()

    def leave_when_stopped(status: Status) -> None:
        if status.role == "stopped":
            os._exit(STOPPED)

    log = open_log(config)
    log.on_change(leave_when_stopped)
    output.put([0, "ok", "ready"])
    commands = Commands(log)
    with ThreadPoolExecutor(80) as pool:
        for line in sys.stdin:
            pool.submit(_serve, commands, output, *json.loads(line))
    log.close()


if __name__ == "__main__":
    main()
