"""The whole embedded engine against a plain model: topics, records, consumers, upkeep, crashes of both kinds.

Everything runs on a file system that loses what was not synced, with flush="always", so after any crash the model
holds exactly: acknowledged records are there, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

import dq
from tests.clocks import ManualClock
from tests.faulty_files import FaultyFiles

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.binary(max_size=60)
KEYS = st.sampled_from([b"x", b"y", b"z"])


@dataclass
class ModelTopic:
    partitions: int
    compact: bool
    records: list[list[tuple[int, bytes | None, bytes | None]]]  # by partition: offset, key, value
    ends: list[int]
    starts: list[int]
    consumers: dict[str, dict[int, int]] = field(default_factory=dict)


class EngineModel(RuleBasedStateMachine):
    topics = Bundle("topics")

    @initialize(seed=st.integers(0, 1 << 30))
    def start(self, seed: int) -> None:
        self.files = FaultyFiles(seed, page=64)
        self.clock = ManualClock()
        self.model: dict[str, ModelTopic] = {}
        self.open()

    def open(self) -> None:
        self.log = dq.open("/data", files=self.files, clock=self.clock, max_open_partitions=2)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()

    # ------------------------------------------------------------ topics

    @rule(target=topics, name=NAMES, partitions=st.integers(1, 3), compact=st.booleans())
    def create_topic(self, name: str, partitions: int, compact: bool) -> str:
        if name in self.model:
            with pytest.raises(dq.TopicExists):
                self.log.create_topic(name)
        else:
            # Segments are as small as they may be, so that they roll all the time.
            self.log.create_topic(
                name, partitions, compact=compact, segment_bytes=4096, tombstone_retention=0, retention=3600
            )
            self.model[name] = ModelTopic(
                partitions, compact, [[] for _ in range(partitions)], [0] * partitions, [0] * partitions
            )
        return name

    @rule(name=consumes(topics))
    def delete_topic(self, name: str) -> None:
        if name in self.model:
            self.log.delete_topic(name)
            del self.model[name]
        else:
            with pytest.raises(dq.UnknownTopic):
                self.log.delete_topic(name)

    # ------------------------------------------------------------ records

    @rule(name=topics, values=st.lists(VALUES, min_size=1, max_size=8), data=st.data())
    def append(self, name: str, values: list[bytes], data: st.DataObject) -> None:
        if name not in self.model:
            return
        topic = self.model[name]
        partition = data.draw(st.integers(0, topic.partitions - 1))
        repeat = data.draw(st.sampled_from([1, 1, 30]))
        payload: list[bytes | None] = [value * repeat for value in values]
        keys: list[bytes] | None = None
        if topic.compact:
            keys = [data.draw(KEYS) for _ in values]
            payload = [None if data.draw(st.integers(0, 9)) == 0 else value for value in payload]
        stored = self.log.topic(name).append_many(payload, keys, partition=partition)
        assert stored[0].offset == topic.ends[partition]
        for number, value in enumerate(payload):
            topic.records[partition].append((topic.ends[partition], None if keys is None else keys[number], value))
            topic.ends[partition] += 1

    @rule(name=topics, data=st.data())
    def append_at_the_wrong_offset(self, name: str, data: st.DataObject) -> None:
        if name not in self.model:
            return
        partition = data.draw(st.integers(0, self.model[name].partitions - 1))
        end = self.model[name].ends[partition]
        wrong = data.draw(st.integers(0, end + 3).filter(lambda offset: offset != end))
        with pytest.raises(dq.OffsetMismatch):
            self.log.topic(name).append(b"x", key=b"x", partition=partition, expected_offset=wrong)

    @rule(name=topics, data=st.data())
    def read_from_anywhere(self, name: str, data: st.DataObject) -> None:
        if name not in self.model:
            return
        topic = self.model[name]
        partition = data.draw(st.integers(0, topic.partitions - 1))
        start = data.draw(st.integers(topic.starts[partition], topic.ends[partition]))
        found = [(r.offset, r.key, r.value) for r in self.log.topic(name).read(partition, start)]
        assert found == [item for item in topic.records[partition] if item[0] >= start]

    @rule(name=topics)
    def read_before_the_start(self, name: str) -> None:
        if name not in self.model:
            return
        for partition, start in enumerate(self.model[name].starts):
            if start:
                with pytest.raises(dq.OffsetOutOfRange):
                    self.log.topic(name).read(partition, start - 1)

    # ------------------------------------------------------------ consumers

    @rule(name=topics, consumer=st.sampled_from(["one", "two"]), count=st.integers(1, 20), commit=st.booleans())
    def consume(self, name: str, consumer: str, count: int, commit: bool) -> None:
        if name not in self.model:
            return
        topic = self.model[name]
        positions = topic.consumers.setdefault(consumer, dict(enumerate(topic.starts)))
        with self.log.topic(name).consumer(consumer) as reader:
            assert reader.positions() == positions
            if any(positions[partition] < start for partition, start in enumerate(topic.starts)):
                reader.seek("earliest")
                positions = dict(enumerate(topic.starts))
            records = reader.poll(max_records=count)
            for partition in range(topic.partitions):
                mine = [(r.offset, r.key, r.value) for r in records if r.partition == partition]
                expected = [item for item in topic.records[partition] if item[0] >= positions[partition]]
                assert mine == expected[: len(mine)]
            left = sum(
                1 for part in range(topic.partitions) for item in topic.records[part] if item[0] >= positions[part]
            )
            assert len(records) == min(count, left)
            if commit:
                reader.commit()
                topic.consumers[consumer] = reader.positions()

    # ------------------------------------------------------------ time, upkeep

    @rule(seconds=st.integers(-100, 3000))
    def time_passes(self, seconds: int) -> None:
        self.clock.jump(seconds * 1_000_000)

    @rule()
    def maintain(self) -> None:
        self.log.maintain()
        self.take_over_upkeep()

    def take_over_upkeep(self) -> None:
        """Which segments are removed or rewritten depends on where they end; what that may mean does not."""
        for name, topic in self.model.items():
            info = self.log.topic(name).describe()
            for partition, part in enumerate(info.partitions):
                assert part.next_offset == topic.ends[partition]
                assert topic.starts[partition] <= part.start_offset <= topic.ends[partition]
                topic.starts[partition] = part.start_offset
                found = [(r.offset, r.key, r.value) for r in self.log.topic(name).read(partition)]
                before = [item for item in topic.records[partition] if item[0] >= part.start_offset]
                assert [item for item in before if item in found] == found
                if topic.compact:
                    latest = {key: (offset, value) for offset, key, value in before}
                    kept = {key: (offset, value) for offset, key, value in found}
                    for key, (offset, value) in latest.items():
                        assert kept.get(key, (offset, None)) == (offset, value)
                else:
                    assert found == before
                topic.records[partition] = found

    # ------------------------------------------------------------ crashes

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.open()

    @rule()
    def kill(self) -> None:
        self.files.kill()
        self.open()

    @rule()
    def power_loss(self) -> None:
        self.files.power_loss()
        self.open()

    @rule()
    def lose_everything_derived(self) -> None:
        self.log.close()
        remove_derived(self.files, "/data")
        self.open()

    # ------------------------------------------------------------ always

    @invariant()
    def topics_are_as_the_model_says(self) -> None:
        if not hasattr(self, "log"):
            return
        assert [topic.name for topic in self.log.topics()] == sorted(self.model)
        for name, topic in self.model.items():
            found = self.log.topic(name).describe()
            for partition, part in enumerate(found.partitions):
                assert part.next_offset == topic.ends[partition]
                # Retention also runs by itself, when a segment is full.
                assert part.start_offset >= topic.starts[partition]
                if part.start_offset > topic.starts[partition]:
                    topic.starts[partition] = part.start_offset
                    topic.records[partition] = [
                        item for item in topic.records[partition] if item[0] >= part.start_offset
                    ]


def remove_derived(files: FaultyFiles, path: str) -> None:
    for name in files.list(path):
        if name in ("checkpoint", "checkpoint.unsynced", "visible") or name.endswith(".snapshot"):
            files.remove(f"{path}/{name}")
        elif name == "topics" or path.startswith("/data/topics"):
            if "." not in name:
                remove_derived(files, f"{path}/{name}")


COMMON = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

TestEngine = EngineModel.TestCase
TestEngine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=COMMON)


@pytest.mark.soak
class TestEngineSoak(EngineModel.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=3000, stateful_step_count=80, deadline=None, suppress_health_check=COMMON)
