"""Everything that can keep records in order on disk, behind one interface: DQ, its peers, and a bare file.

Peers are driven in the fastest way their own interface offers, one transaction for a batch. What a contender needs
besides the values, such as keys that keep them in order, it makes itself and on the clock. The bare file is a
ceiling, not a queue: it is handed bytes that DQ has encoded beforehand.
"""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import dq
from bench.harness import CEILING, OURS, PEER
from dq.engine.segments.batch import decode, encode, split
from dq.engine.segments.config import Flush

PAGE_CACHE = "page cache"  # survives the process
STABLE_STORAGE = "stable storage"  # survives the machine

_big_endian = struct.Struct(">Q").pack  # keys that sort as their numbers do


class Contender(ABC):
    role: ClassVar[str] = PEER
    module: ClassVar[str | None] = None  # what has to be installed
    share: ClassVar[float] = 1.0  # of the records that the others get: slow ones get fewer
    read_share: ClassVar[float] = 1.0  # the same when reading
    consumes: ClassVar[bool] = False  # reading takes records away

    name: str
    durability: str

    @classmethod
    def missing(cls) -> str | None:
        """The module that is not installed, if any."""
        return cls.module if cls.module and importlib.util.find_spec(cls.module) is None else None

    @abstractmethod
    def open(self, folder: Path) -> None: ...

    @abstractmethod
    def append_batch(self, batch: Any) -> None:
        """Stores what `dress` made of a list of values; as durable as stated when it returns."""

    def dress(self, values: list[bytes]) -> Any:
        """The batch as `append_batch` takes it. Done before the clock starts."""
        return values

    def append(self, value: Any) -> None:
        """Stores one record."""
        self.append_batch([value])

    def dress_one(self, value: bytes) -> Any:
        return value

    @abstractmethod
    def read(self) -> Iterator[list[bytes]]:
        """All values in order, as a consumer gets them."""

    def stored(self) -> Iterator[list[bytes]]:
        """All values in order, for comparing; other than `read` where that is slow or takes them away."""
        return self.read()

    @abstractmethod
    def close(self) -> None: ...


class Dq(Contender):
    role = OURS

    def __init__(self, flush: Flush = "always", compression: str = "none") -> None:
        self.name = "DQ" if compression == "none" else f"DQ, {compression}"
        self.durability = STABLE_STORAGE if flush == "always" else PAGE_CACHE
        self._flush = flush
        self._compression = compression

    def open(self, folder: Path) -> None:
        self.log = dq.open(folder / "dq", flush=self._flush)
        self.topic = self.log.create_topic("bench", compression=self._compression, exist_ok=True)

    def append_batch(self, batch: list[bytes]) -> None:
        self.topic.append_many(batch)

    def append(self, value: bytes) -> None:
        self.topic.append(value)

    def read(self) -> Iterator[list[bytes]]:
        for batch in self.topic.read_batches():
            yield batch.values  # type: ignore[misc]

    def close(self) -> None:
        self.log.close()


class BareFile(Contender):
    """write(), and fdatasync() where durability asks for it, of the very bytes that DQ writes."""

    role = CEILING

    def __init__(self, *, sync: bool) -> None:
        self.name = "bare write + fdatasync" if sync else "bare write"
        self.durability = STABLE_STORAGE if sync else PAGE_CACHE
        self._sync = sync

    def open(self, folder: Path) -> None:
        self._fd = os.open(folder / "bare", os.O_RDWR | os.O_CREAT, 0o644)

    def dress(self, values: list[bytes]) -> bytes:
        return encode(values).to_bytes()

    def dress_one(self, value: bytes) -> bytes:
        return self.dress([value])

    def append_batch(self, batch: bytes) -> None:
        os.write(self._fd, batch)
        if self._sync:
            os.fdatasync(self._fd)

    def append(self, value: bytes) -> None:
        self.append_batch(value)

    def read(self) -> Iterator[list[bytes]]:
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            for header, body in split(file.read()):
                yield decode(header, body).values  # type: ignore[misc]

    def close(self) -> None:
        os.close(self._fd)


class Sqlite(Contender):
    """A table in write-ahead mode; a batch is one executemany in one transaction."""

    share = read_share = 0.2

    def __init__(self, *, full: bool) -> None:
        self.name = f"SQLite, WAL {'FULL' if full else 'NORMAL'}"
        self.durability = STABLE_STORAGE if full else PAGE_CACHE
        self._synchronous = "FULL" if full else "NORMAL"

    def open(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "sqlite", isolation_level=None, check_same_thread=False)
        self._execute = self._connection.execute
        self._execute("PRAGMA journal_mode = WAL")
        self._execute(f"PRAGMA synchronous = {self._synchronous}")
        self._execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, value BLOB NOT NULL)")

    def append_batch(self, batch: list[bytes]) -> None:
        self._execute("BEGIN")
        self._connection.executemany("INSERT INTO queue (value) VALUES (?)", zip(batch, strict=True))
        self._execute("COMMIT")

    def append(self, value: bytes) -> None:
        self._execute("INSERT INTO queue (value) VALUES (?)", (value,))

    def read(self) -> Iterator[list[bytes]]:
        with closing(self._execute("SELECT value FROM queue ORDER BY id")) as cursor:
            while rows := cursor.fetchmany(1_000):
                yield [value for (value,) in rows]

    def close(self) -> None:
        self._connection.close()


class Lmdb(Contender):
    """A map from a growing number to the value; a batch is one putmulti in append mode in one transaction."""

    module = "lmdb"

    def __init__(self, *, sync: bool) -> None:
        self.name = f"LMDB, {'sync' if sync else 'nosync'}"
        self.durability = STABLE_STORAGE if sync else PAGE_CACHE
        self._sync = sync

    def open(self, folder: Path) -> None:
        import lmdb

        self._environment = lmdb.open(str(folder / "lmdb"), map_size=8 << 30, sync=self._sync, metasync=self._sync)
        with self._environment.begin() as transaction:
            self._next = transaction.stat()["entries"]

    def append_batch(self, batch: list[bytes]) -> None:
        first = self._next
        self._next += len(batch)
        with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            keys = map(_big_endian, range(first, self._next))
            cursor.putmulti(zip(keys, batch, strict=True), append=True)

    def append(self, value: bytes) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.put(_big_endian(self._next), value, append=True)
        self._next += 1

    def read(self) -> Iterator[list[bytes]]:
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            values = cursor.iternext(keys=False, values=True)
            while batch := list(islice(values, 1_000)):
                yield batch

    def close(self) -> None:
        self._environment.close()


class RocksDb(Contender):
    """A map from a growing number to the value; a batch is one WriteBatch."""

    module = "rocksdict"

    def __init__(self, *, sync: bool) -> None:
        self.name = f"RocksDB, {'sync' if sync else 'plain'}"
        self.durability = STABLE_STORAGE if sync else PAGE_CACHE
        self._sync = sync

    def open(self, folder: Path) -> None:
        import rocksdict

        self._make_batch = rocksdict.WriteBatch
        self._options = rocksdict.WriteOptions()
        self._options.sync = self._sync
        self._database = rocksdict.Rdict(str(folder / "rocksdb"), rocksdict.Options(raw_mode=True))
        self._next = 0

    def append_batch(self, batch: list[bytes]) -> None:
        first = self._next
        self._next += len(batch)
        writes = self._make_batch(raw_mode=True)
        put = writes.put
        for key, value in zip(map(_big_endian, range(first, self._next)), batch, strict=True):
            put(key, value)
        self._database.write(writes, self._options)

    def append(self, value: bytes) -> None:
        self._database.put(_big_endian(self._next), value, self._options)
        self._next += 1

    def read(self) -> Iterator[list[bytes]]:
        values = self._database.values()
        while batch := list(islice(values, 1_000)):
            yield batch

    def close(self) -> None:
        self._database.close()


class LiteQueue(Contender):
    """A batch is a transaction around as many `put` calls: there is no call for many."""

    module = "litequeue"
    share = 0.02
    read_share = 0.001  # `pop` becomes slower with every record that waits
    consumes = True

    def __init__(self) -> None:
        self.name = "litequeue"
        self.durability = PAGE_CACHE

    def open(self, folder: Path) -> None:
        import litequeue

        self._queue = litequeue.LiteQueue(str(folder / "litequeue"))

    def append_batch(self, batch: list[bytes]) -> None:
        put = self._queue.put
        with self._queue.transaction():
            for value in batch:
                put(value)

    def append(self, value: bytes) -> None:
        self._queue.put(value)

    def read(self) -> Iterator[list[bytes]]:
        while (message := self._queue.pop()) is not None:
            yield [message.data]

    def stored(self) -> Iterator[list[bytes]]:
        rows = self._queue.conn.execute(f"SELECT data FROM {self._queue.table} ORDER BY rowid").fetchall()
        yield [row["data"] for row in rows]

    def close(self) -> None:
        self._queue.close()


class PersistQueue(Contender):
    """Every `put` is a transaction of its own: there is no call for many."""

    module = "persistqueue"
    share = read_share = 0.005
    consumes = True

    def __init__(self) -> None:
        self.name = "persist-queue"
        self.durability = STABLE_STORAGE

    def open(self, folder: Path) -> None:
        import persistqueue

        self._queue = persistqueue.SQLiteQueue(str(folder / "persist-queue"), auto_commit=False)

    def append_batch(self, batch: list[bytes]) -> None:
        put = self._queue.put
        for value in batch:
            put(value)

    def append(self, value: bytes) -> None:
        self._queue.put(value)

    def read(self) -> Iterator[list[bytes]]:
        get = self._queue.get
        for _ in range(self._queue.size):
            yield [get(block=False)]
        self._queue.task_done()

    def stored(self) -> Iterator[list[bytes]]:
        yield [row["data"] for row in self._queue.queue()]

    def close(self) -> None:
        self._queue.close()


PEERS_IN_PAGE_CACHE: tuple[Callable[[], Contender], ...] = (
    lambda: Sqlite(full=False),
    LiteQueue,
    lambda: Lmdb(sync=False),
    lambda: RocksDb(sync=False),
)
PEERS_ON_STABLE_STORAGE: tuple[Callable[[], Contender], ...] = (
    lambda: Sqlite(full=True),
    PersistQueue,
    lambda: Lmdb(sync=True),
    lambda: RocksDb(sync=True),
)


def installed(makers: tuple[Callable[[], Contender], ...]) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that can take part, and those that cannot with the reason."""
    present, absent = [], {}
    for contender in (make() for make in makers):
        missing = contender.missing()
        if missing is None:
            present.append(contender)
        else:
            absent[contender.name] = f"{missing} is not installed"
    return present, absent
