"""`dq.open(path)`: the topics of one data directory."""

from __future__ import annotations

import contextlib
import getpass
import os
import threading
import uuid
from collections import OrderedDict
from functools import partial
from types import TracebackType
from typing import Any

from immutables import Map

from dq.engine.clock import Clock, SystemClock
from dq.engine.embedded.arguments import check_count, check_milliseconds
from dq.engine.embedded.directory import DataDirectory, absolute
from dq.engine.embedded.flusher import Flusher
from dq.engine.embedded.settings import (
    TopicConfig,
    change_config,
    check_partitions,
    config_from_image,
    config_to_plain,
)
from dq.engine.embedded.topic import Topic
from dq.engine.errors import Closed, DQError, InvalidConfig, ReadOnly, TopicExists, UnknownTopic
from dq.engine.files import FileSystem, OsFiles
from dq.engine.index.environment import IndexEnvironment
from dq.engine.memory_files import MemoryFiles
from dq.engine.names import check_name, check_user_name
from dq.engine.raft.event_log import METADATA_TOPIC, METADATA_TOPIC_ID, ImageFollower, LocalEventLog
from dq.engine.raft.events import Change, TopicConfigured, TopicCreated, TopicDeleted
from dq.engine.raft.image import Image, TopicImage
from dq.engine.raft.thinning import Thinner
from dq.engine.segments.config import FLUSH_MODES, Flush, LogConfig
from dq.engine.segments.growth import Growth
from dq.engine.segments.log import Identity, PartitionLog
from dq.engine.segments.positions import MemoryIndex, PositionIndex
from dq.engine.segments.retention import apply_retention
from dq.engine.segments.view import PartitionView

MEMORY = ":memory:"


class EmbeddedLog:
    """One data directory. Safe to share between threads; close it, or use it in a `with` statement."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        flush: Flush = "always",
        flush_interval_ms: float = 100.0,
        read_only: bool = False,
        create: bool = True,
        max_open_partitions: int = 256,
        files: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        if flush not in FLUSH_MODES:
            raise InvalidConfig("flush", flush, ", ".join(FLUSH_MODES))
        check_milliseconds("flush_interval_ms", flush_interval_ms, 10_000_000, may_be_zero=False)
        check_count("max_open_partitions", max_open_partitions)
        if not isinstance(path, (str, os.PathLike)):
            raise InvalidConfig("path", path, f"a str or a path, or {MEMORY!r}")
        in_memory = os.fspath(path) == MEMORY
        self.path = MEMORY if in_memory else absolute(path)
        self.flush = flush
        self.read_only = read_only
        self.clock: Clock = clock or SystemClock()
        self._files: FileSystem = files or (MemoryFiles() if in_memory else OsFiles())
        self.metadata_lock = threading.RLock()  # guards the maps below and every check before a metadata event
        self._logs: dict[tuple[bytes, int], PartitionLog | PartitionView] = {}
        self._recent: OrderedDict[tuple[bytes, int], None] = OrderedDict()
        self._growth: dict[bytes, Growth] = {}
        self._most_open = max_open_partitions
        self._closed = False
        self._follower: ImageFollower | None = None  # of the metadata, when somebody else may be writing
        self._flusher: Flusher | None = None
        if flush == "interval" and not read_only:
            self._flusher = Flusher(self._open_logs, flush_interval_ms / 1000)
        self._directory = DataDirectory(self._files, self.path)
        self._directory.open(self.clock, create=create, read_only=read_only)
        self._index: IndexEnvironment | None = None
        self._metadata: LocalEventLog | None = None
        self._thinner: Thinner | None = None
        try:
            if isinstance(self._files, OsFiles):
                self._index = IndexEnvironment(self._directory.index_path, self._files.boot_id, read_only=read_only)
            if not read_only:
                self._metadata = self._open_metadata()
                self._thinner = Thinner(self._metadata.log, self.clock)
                self._finish_deletions()
        except BaseException:
            with contextlib.suppress(Exception):
                self.close()
            raise

    def __enter__(self) -> EmbeddedLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dq log {self.path!r}{' read-only' if self.read_only else ''}{' closed' if self._closed else ''}>"

    # ------------------------------------------------------------ topics

    def create_topic(self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Any) -> Topic:
        """Makes a topic. Settings: retention, retention_bytes, compact, tombstone_retention, segment_bytes,
        segment_age, compression, max_batch_bytes. With exist_ok an existing topic is returned as it is.
        """
        check_user_name(name, "a topic name")
        check_partitions(partitions)
        config = change_config(TopicConfig(), settings)
        with self.metadata_lock:
            self._check_writable()
            if name in self.image.topics:
                if not exist_ok:
                    raise TopicExists(name)
            else:
                self.propose(
                    TopicCreated(
                        topic=name,
                        topic_id=uuid.uuid4().bytes,
                        partitions=partitions,
                        config=config_to_plain(config),
                    )
                )
        return self.topic(name)

    def topic(self, name: str) -> Topic:
        """An existing topic; raises UnknownTopic."""
        check_name(name, "a topic name")
        return Topic(self, self.topic_image(name))

    def topics(self) -> list[Topic]:
        """All topics, sorted by name, without those of DQ itself."""
        return [Topic(self, image) for _, image in sorted(self.image.topics.items())]

    def configure_topic(self, name: str, **settings: Any) -> Topic:
        """Changes settings of a topic; they hold from now on."""
        check_user_name(name, "a topic name")
        with self.metadata_lock:
            self._check_writable()
            topic = self.topic_image(name)
            changed = config_to_plain(change_config(config_from_image(topic.config), settings))
            gone = {setting: None for setting in topic.config if setting not in changed}
            self.propose(TopicConfigured(topic=name, config={**changed, **gone}))
            topic = self.topic_image(name)
            log_config = config_from_image(topic.config).to_log_config(self.flush)
            for partition in range(topic.partitions):
                log = self._logs.get((topic.topic_id, partition))
                if isinstance(log, PartitionLog):
                    log.config = log_config
        return Topic(self, topic)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and everything in it."""
        check_user_name(name, "a topic name")
        with self.metadata_lock:
            self._check_writable()
            topic = self.topic_image(name)
            self.propose(TopicDeleted(topic=name, topic_id=topic.topic_id))
            for partition in range(topic.partitions):
                log = self._logs.pop((topic.topic_id, partition), None)
                self._recent.pop((topic.topic_id, partition), None)
                if isinstance(log, PartitionLog):
                    log.discard(partial(UnknownTopic, name))
            self._growth.pop(topic.topic_id, None)
            self._remove_topic_files(topic.name, topic.topic_id)

    def _remove_topic_files(self, name: str, topic_id: bytes) -> None:
        path = self._directory.topic_path(name, topic_id)
        if self._files.exists(path):
            self._files.remove_tree(path)
        if self._index is not None:
            self._index.forget_topic(topic_id)

    def _finish_deletions(self) -> None:
        """A crash may have come between the event that deletes a topic and the removal of its files."""
        for topic_id, name in self.image.deleted.items():
            self._remove_topic_files(name, topic_id)

    # ------------------------------------------------------------ metadata

    @property
    def image(self) -> Image:
        """The metadata as of now."""
        self.check_open()
        if self._metadata is not None:
            return self._metadata.image
        view = self.partition_log(METADATA_TOPIC, METADATA_TOPIC_ID, 0)
        if self._follower is None:
            self._follower = ImageFollower(self._files, view)
        return self._follower.image

    def topic_image(self, name: str) -> TopicImage:
        if name == METADATA_TOPIC:
            return TopicImage(METADATA_TOPIC, METADATA_TOPIC_ID, 1, Map(), 0, Map())
        topic = self.image.topics.get(name)
        if topic is None:
            raise UnknownTopic(name)
        return topic

    def propose(self, change: Change) -> int:
        with self.metadata_lock:
            self._check_writable()
            assert self._metadata is not None
            return self._metadata.propose(change)

    def _open_metadata(self) -> LocalEventLog:
        log = PartitionLog(
            self._files,
            self.clock,
            self._directory.partition_path(METADATA_TOPIC, METADATA_TOPIC_ID, 0),
            Identity(METADATA_TOPIC_ID, 0),
            LogConfig(flush="always"),
            self._index_of(METADATA_TOPIC_ID, 0),
        )
        self._logs[METADATA_TOPIC_ID, 0] = log
        return LocalEventLog(log, self.clock, actor=_actor())

    # ------------------------------------------------------------ partitions

    def partition_log(self, topic: str, topic_id: bytes, partition: int) -> PartitionLog | PartitionView:
        """The log of a partition, opened on first use. The least recently used ones give back their file handles."""
        key = (topic_id, partition)
        log = self._logs.get(key)
        if log is None:
            log = self._open_partition(topic, topic_id, partition)
        recent = self._recent
        try:
            recent.move_to_end(key)
        except KeyError:  # parked, or opened just now
            recent[key] = None
            if len(recent) > self._most_open:
                self._park_oldest()
        return log

    def _open_partition(self, topic: str, topic_id: bytes, partition: int) -> PartitionLog | PartitionView:
        path = self._directory.partition_path(topic, topic_id, partition)
        with self.metadata_lock:
            self.check_open()
            image = self.topic_image(topic)
            if image.topic_id != topic_id:
                raise UnknownTopic(topic)
            log = self._logs.get((topic_id, partition))
            if log is None:
                index = self._index_of(topic_id, partition)
                if self.read_only:
                    log = PartitionView(self._files, self.clock, path, index, partition)
                else:
                    growth = self._growth.setdefault(topic_id, Growth())
                    log_config = config_from_image(image.config).to_log_config(self.flush)
                    identity = Identity(topic_id, partition)
                    log = PartitionLog(self._files, self.clock, path, identity, log_config, index, growth)
                    log.on_roll = partial(apply_retention, log, self.clock)
                    if self._flusher is not None:
                        self._flusher.start()
                self._logs[topic_id, partition] = log
            return log

    def _park_oldest(self) -> None:
        with self.metadata_lock:
            while len(self._recent) > self._most_open:
                key, _ = self._recent.popitem(last=False)
                log = self._logs.get(key)
                if log is not None:
                    log.park()

    def _index_of(self, topic_id: bytes, partition: int) -> PositionIndex:
        return MemoryIndex() if self._index is None else self._index.partition(topic_id, partition)

    def _open_logs(self) -> list[PartitionLog]:
        with self.metadata_lock:
            return [log for log in self._logs.values() if isinstance(log, PartitionLog)]

    # ------------------------------------------------------------ upkeep and end

    def maintain(self) -> None:
        """Applies retention and compaction to every topic. Retention also runs whenever a segment is full.

        Of the metadata, positions of consumers that were superseded more than seven days ago are removed.
        """
        for topic in self.topics():
            topic.maintain()
        if self._thinner is not None:
            self._thinner.run()

    def sync(self) -> None:
        """Makes everything appended so far durable, whatever the flush mode."""
        self.check_open()
        failures = []
        for log in self._open_logs():
            try:
                log.sync()
            except DQError as error:  # the others are synced all the same
                failures.append(error)
        if failures:
            raise failures[0]

    def close(self) -> None:
        with self.metadata_lock:
            if self._closed:
                return
            self._closed = True
        if self._flusher is not None:
            self._flusher.stop()
        try:
            failures: list[BaseException] = []
            for closable in [*self._logs.values(), self._metadata, self._index]:
                try:
                    if closable is not None:
                        closable.close()
                except Exception as error:  # the others are closed all the same
                    failures.append(error)
            if failures:
                raise failures[0]
        finally:
            self._directory.release()

    def check_open(self) -> None:
        if self._closed:
            raise Closed(f"the log {self.path!r} is closed")

    def _check_writable(self) -> None:
        self.check_open()
        if self.read_only:
            raise ReadOnly(f"the log {self.path!r} was opened with read_only=True")


def orphaned_directories(store: EmbeddedLog) -> list[str]:
    """Directories of topics that the metadata does not know: left alone, and reported by `dq doctor`."""
    known = {topic.directory_name for topic in store.topics()} | {f"{METADATA_TOPIC}-{METADATA_TOPIC_ID.hex()[:8]}"}
    return sorted(name for name in store._files.list(store._directory.topics_path) if name not in known)


def _actor() -> str:
    try:
        return f"{getpass.getuser()}@embedded"
    except (KeyError, OSError):  # no such user, as in some containers
        return "embedded"
