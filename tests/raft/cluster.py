"""A cluster of real processes on loopback, and a client that proposes through whoever leads."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("node_process.py")
SECRET = b"a secret of the tests, 32 bytes."
UNSTORED = {"not_leader", "no_quorum"}  # nothing was stored
UNKNOWN = {"outcome_unknown", "gone", "node_stopped"}  # it may have been


class Gone(Exception):
    """The process ended before it answered."""


class Failed(Exception):
    def __init__(self, code: str, text: str, leader: str | None) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.leader = leader


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()


def wait_until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    """What the condition gives as soon as it gives something."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition}")
        time.sleep(0.01)


class NodeProcess:
    def __init__(self, config: dict[str, Any]) -> None:
        self.name: str = config["node"]
        self.config = config
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers = 0
        self.paused = False

    def start(self) -> None:
        ready: Future[Any] = Future()
        self._waiting = {0: ready}
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(self.config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process, self._waiting), daemon=True)
        self._reader.start()
        self._ready = ready

    def wait_ready(self) -> None:
        self._ready.result(30)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _read(self, process: subprocess.Popen[str], waiting: dict[int, Future[Any]]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                break
            number, code, *rest = json.loads(line)
            future = waiting.pop(number)
            if code == "ok":
                future.set_result(rest[0])
            else:
                future.set_exception(Failed(code, *rest))
        with self._lock:
            left = list(waiting.values())
            waiting.clear()
            waiting[-1] = Future()  # closed
        for future in left:
            future.set_exception(Gone(self.name))

    def submit(self, command: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            process = self._process
            if process is None or process.stdin is None or -1 in self._waiting:
                future.set_exception(Gone(self.name))
                return future
            self._numbers += 1
            self._waiting[self._numbers] = future
            try:
                process.stdin.write(json.dumps([self._numbers, command, list(arguments)]) + "\n")
                process.stdin.flush()
            except (BrokenPipeError, ValueError):
                self._waiting.pop(self._numbers, None)
                future.set_exception(Gone(self.name))
        return future

    def call(self, command: str, *arguments: Any, timeout: float = 30.0) -> Any:
        return self.submit(command, *arguments).result(timeout)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._finish()

    def _finish(self) -> int:
        process = self._process
        assert process is not None
        status = process.wait(30)
        self._reader.join(10)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
        self._process = None
        self.paused = False
        return status

    def close(self) -> int:
        """Ends it in good order; returns its exit status."""
        if self._process is None:
            return 0
        if self.paused:
            self.resume()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        return self._finish()

    def wait_for_exit(self) -> int:
        return self._finish()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.paused = False


class Cluster:
    """`routes` says how nodes reach each other, where not directly: (from, to) -> port."""

    def __init__(
        self,
        folder: Path,
        names: str = "abc",
        *,
        ports: dict[str, int] | None = None,
        routes: dict[tuple[str, str], int] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.ports = ports or dict(zip(names, free_ports(len(names)), strict=True))
        self.settings = {"secret": SECRET.hex(), **settings}
        self.members = [[name, "127.0.0.1", self.ports[name], True] for name in names]
        self.nodes: dict[str, NodeProcess] = {}
        for name in names:
            self.nodes[name] = self.make(name, self.members, routes or {})

    def make(self, name: str, members: list[Any], routes: dict[tuple[str, str], int]) -> NodeProcess:
        own = {to: ["127.0.0.1", port] for (source, to), port in routes.items() if source == name}
        folder = str(self.folder / name)
        return NodeProcess({"node": name, "members": members, "folder": folder, "routes": own, **self.settings})

    def __enter__(self) -> Cluster:
        return self.start()

    def start(self) -> Cluster:
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            node.wait_ready()
        return self

    def __exit__(self, *error: object) -> None:
        for node in self.nodes.values():
            if error[0] is not None and node.running:
                node.kill()
            else:
                node.close()

    def folder_of(self, name: str) -> Path:
        return self.folder / name

    def log_of(self, name: str) -> Path:
        return self.folder / name / "topics" / "__metadata" / "0"

    def running(self) -> list[NodeProcess]:
        return [node for node in list(self.nodes.values()) if node.running and not node.paused]

    def status_of(self, node: NodeProcess) -> list[Any] | None:
        try:
            return list(node.call("status", timeout=10))
        except (Gone, Failed):
            return None

    def leader(self, among: str | None = None, seconds: float = 20.0) -> NodeProcess:
        """Whoever leads and is known to by a majority of those asked."""

        def find() -> NodeProcess | None:
            nodes = [node for node in self.running() if among is None or node.name in among]
            states = {node.name: status for node in nodes if (status := self.status_of(node))}
            for node in nodes:
                status = states.get(node.name)
                if status and status[0] == "leader":
                    followers = [other for other in states.values() if other[1] == node.name and other[2] == status[2]]
                    if len(followers) > len(self.nodes) // 2 or len(self.nodes) == 1:
                        return node
            return None

        found: NodeProcess = wait_until(find, seconds, "a leader")
        return found

    def converge(self, seconds: float = 30.0) -> list[Any]:
        """Waits until all running nodes have applied the same; returns that image."""

        def same() -> list[Any] | None:
            try:
                images = [node.call("image", timeout=10) for node in self.running()]
            except (Gone, Failed):
                return None
            return list(images[0]) if all(image == images[0] for image in images) else None

        leader = self.leader(seconds=seconds)
        leader.call("barrier", 10.0)
        found: list[Any] = wait_until(same, seconds, "equal images")
        return found


class Client(threading.Thread):
    """Proposes one topic after the other until told to stop; retries with the same event id, as it should."""

    def __init__(self, cluster: Cluster, seed: int, name: str) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._random = random.Random(seed)
        self._prefix = name
        self._stop_wanted = threading.Event()
        self.acknowledged: dict[str, int] = {}  # event id -> offset
        self.tried: set[str] = set()
        self.times: list[float] = []  # when each was acknowledged
        self.failure: Exception | None = None

    def run(self) -> None:
        number = 0
        try:
            while not self._stop_wanted.is_set():
                event_id = self._random.randbytes(16).hex()
                self.tried.add(event_id)
                offset = self._propose(event_id, f"{self._prefix}-{number}")
                if offset is not None:
                    self.acknowledged[event_id] = offset
                    self.times.append(time.monotonic())
                number += 1
        except Exception as error:
            self.failure = error

    def _propose(self, event_id: str, topic: str) -> int | None:
        target: str | None = None
        while not self._stop_wanted.is_set():
            nodes = self._cluster.running() or list(self._cluster.nodes.values())
            node = next((item for item in nodes if item.name == target), None) or self._random.choice(nodes)
            target = None
            try:
                return int(node.call("propose", event_id, topic, 1.0, timeout=5.0))
            except Failed as error:
                if error.code not in UNSTORED | UNKNOWN:
                    raise
                target = error.leader
                if target is None:
                    time.sleep(0.01)
            except (Gone, TimeoutError):
                time.sleep(0.01)
        return None

    def finish(self) -> None:
        self._stop_wanted.set()
        self.join(20)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


def check_history(cluster: Cluster, clients: list[Client], start: int = 0) -> None:
    """Every acknowledged event stands where it was said to, everywhere; none twice; all nodes have the same."""
    histories = {node.name: node.call("events", start) for node in cluster.running()}
    first = next(iter(histories.values()))
    assert all(history == first for history in histories.values()), "the nodes have different histories"
    by_id: dict[str, int] = {}
    for offset, event_id in first:
        assert event_id not in by_id, f"event {event_id} is there twice, at {by_id[event_id]} and {offset}"
        by_id[event_id] = offset
    for client in clients:
        lost = [item for item in client.acknowledged.items() if by_id.get(item[0]) != item[1]]
        assert not lost, f"acknowledged, and lost or moved: {lost[:5]}"
    tried = set().union(*(client.tried for client in clients)) if clients else set()
    if clients and start == 0:
        assert set(by_id) <= tried, "events that nobody proposed"


def remove_files(folder: Path, pattern: str) -> None:
    for path in sorted(folder.glob(pattern)):
        os.remove(path)
