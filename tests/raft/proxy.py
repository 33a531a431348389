"""A network that fails: a proxy per pair of nodes, which can be cut, silenced and healed.

- **cut**: connections are reset, new ones refused;
- **silence**: nothing goes through and nobody is told, as when packets are dropped;
- **heal**: what was held back arrives, late and in order, as TCP does it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from tests.raft.cluster import free_ports


class _Wire:
    """One pair of nodes."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.target = target
        self.open = asyncio.Event()
        self.open.set()
        self.is_cut = False
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self.writers |= {writer, there[1]}
        try:
            await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        finally:
            self.writers -= {writer, there[1]}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self.open.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    def reset(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class FaultyNetwork:
    """`routes` is for a Cluster: every node reaches every other one through a wire of its own."""

    def __init__(self, ports: dict[str, int]) -> None:
        pairs = [(source, to) for source in ports for to in ports if source != to]
        self.routes = dict(zip(pairs, free_ports(len(pairs)), strict=True))
        self._loop = asyncio.new_event_loop()
        self._wires: dict[tuple[str, str], _Wire] = {}
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        for (source, to), port in self.routes.items():
            self._run(self._listen(source, to, port, ports[to]))

    async def _listen(self, source: str, to: str, port: int, target: int) -> None:
        wire = self._wires[source, to] = _Wire(port, target)
        self._servers.append(await asyncio.start_server(wire.serve, "127.0.0.1", port))

    def _run(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)  # type: ignore[arg-type]

    def _between(self, names: Iterable[str]) -> list[_Wire]:
        """The wires between these nodes and all others."""
        group = set(names)
        return [wire for (source, to), wire in self._wires.items() if (source in group) != (to in group)]

    def cut(self, *names: str) -> None:
        async def work() -> None:
            for wire in self._between(names):
                wire.is_cut = True
                wire.reset()

        self._run(work())

    def silence(self, *names: str) -> None:
        async def work() -> None:
            for wire in self._between(names):
                wire.open.clear()

        self._run(work())

    def heal(self) -> None:
        async def work() -> None:
            for wire in self._wires.values():
                wire.is_cut = False
                wire.open.set()

        self._run(work())

    def close(self) -> None:
        async def work() -> None:
            for server in self._servers:
                server.close()
            for wire in self._wires.values():
                wire.open.set()
                wire.reset()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(work())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
