"""Named consumers and their positions."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone

import pytest

import dq


def test_a_consumer_sees_everything_once_over_all_partitions(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=3)
    for number in range(100):
        topic.append(b"%d" % number)
    consumer = topic.consumer("c")
    seen = [record.value for _ in range(20) for record in consumer.poll(max_records=7)]
    assert sorted(value or b"" for value in seen) == sorted(b"%d" % number for number in range(100))
    assert consumer.poll() == []


def test_partitions_take_turns_and_empty_ones_are_skipped(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=4)
    topic.append_many([b"a"] * 10, partition=1)
    topic.append_many([b"b"] * 10, partition=3)
    consumer = topic.consumer("c")
    first = [consumer.poll(max_records=2)[0].partition for _ in range(10)]
    assert first == [1, 3] * 5
    assert consumer.poll() == []


def test_order_within_a_partition_is_kept(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=2)
    for number in range(50):
        topic.append(b"%d" % number, partition=number % 2)
    records = list(topic.consumer("c"))
    for partition in range(2):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(25))


def test_a_committed_position_is_where_the_next_one_of_that_name_goes_on(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    topic.append_many([b"%d" % number for number in range(10)])
    first = topic.consumer("c")
    first.poll(max_records=4)
    first.commit()
    first.poll(max_records=3)
    assert first.positions() == {0: 7}
    assert first.committed() == {0: 4}
    again = topic.consumer("c")
    assert [record.value for record in again.poll()] == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert topic.consumers() == ["c"]


def test_consumers_are_independent(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    topic.append_many([b"x"] * 5)
    one, two = topic.consumer("one"), topic.consumer("two")
    assert len(one.poll()) == 5
    one.commit()
    assert len(two.poll()) == 5


def test_where_a_new_consumer_starts(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=2)
    base = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for number in range(10):
        topic.append(b"%d" % number, partition=number % 2, timestamp=base + timedelta(hours=number))
    assert len(topic.consumer("all").poll()) == 10
    latest = topic.consumer("new", start="latest")
    assert latest.poll() == []
    topic.append(b"late", partition=0)
    assert [record.value for record in latest.poll()] == [b"late"]
    timed = topic.consumer("timed", start=base + timedelta(hours=6))
    assert len(timed.poll()) == 5
    with pytest.raises(dq.InvalidInput):
        topic.consumer("offset", start=3)
    assert topic.consumers() == ["all", "new", "timed"]
    single = log.create_topic("single")
    single.append_many([b"x"] * 5)
    assert len(single.consumer("offset", start=3).poll()) == 2
    with pytest.raises(dq.OffsetOutOfRange):
        single.consumer("beyond", start=6)


def test_the_start_counts_only_for_a_new_name(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    topic.append_many([b"x"] * 5)
    topic.consumer("c", start="earliest")
    assert len(topic.consumer("c", start="latest").poll()) == 5


def test_seek(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=2)
    base = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for number in range(20):
        topic.append(b"%d" % number, partition=number % 2, timestamp=base + timedelta(hours=number))
    consumer = topic.consumer("c")
    assert len(consumer.poll()) == 20
    consumer.seek("earliest")
    assert len(consumer.poll()) == 20
    consumer.seek("latest")
    assert consumer.poll() == []
    consumer.seek(7, partition=1)
    assert [(record.partition, record.offset) for record in consumer.poll()] == [(1, 7), (1, 8), (1, 9)]
    consumer.seek(base + timedelta(hours=18))
    assert sorted(record.value or b"" for record in consumer.poll()) == [b"18", b"19"]
    with pytest.raises(dq.OffsetOutOfRange):
        consumer.seek(11, partition=1)
    with pytest.raises(dq.InvalidInput):
        consumer.seek(3)
    with pytest.raises(dq.UnknownPartition):
        consumer.seek(3, partition=2)


def test_seek_in_the_middle_of_what_was_fetched(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    topic.append_many([b"%d" % number for number in range(100)])
    consumer = topic.consumer("c")
    consumer.poll(max_records=10)
    consumer.seek(50)
    assert consumer.poll(max_records=1)[0].value == b"50"
    consumer.seek(5)
    assert consumer.poll(max_records=1)[0].value == b"5"


def test_lag_in_records_and_seconds(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=2)
    now = datetime.now(timezone.utc)
    topic.append(b"old", partition=0, timestamp=now - timedelta(seconds=100))
    topic.append_many([b"x"] * 3, partition=1)
    consumer = topic.consumer("c")
    lag = consumer.lag()
    assert lag.records == 4
    assert 99 < lag.seconds < 130
    assert lag.partitions[0].records == 1
    assert lag.partitions[1].seconds < 30
    consumer.poll()
    assert consumer.lag().records == 0
    assert consumer.lag().seconds == 0.0


def test_polling_waits_for_new_records(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=3)
    consumer = topic.consumer("c")
    started = time.monotonic()
    assert consumer.poll(timeout=0.05) == []
    assert time.monotonic() - started >= 0.04
    timer = threading.Timer(0.05, lambda: topic.append(b"x", partition=2))
    timer.start()
    assert [record.value for record in consumer.poll(timeout=10)] == [b"x"]
    timer.join()


def test_a_position_that_retention_removed_is_an_error_not_a_jump(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", segment_bytes=4096)
    consumer = topic.consumer("c")
    for _ in range(50):
        topic.append(b"x" * 500)
    topic.configure(retention_bytes=5_000)
    log.maintain()
    with pytest.raises(dq.OffsetOutOfRange) as caught:
        consumer.poll()
    assert caught.value.earliest > 0
    consumer.seek("earliest")
    assert consumer.poll(1)[0].offset == caught.value.earliest


def test_a_removed_consumer_is_forgotten(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    topic.append(b"x")
    consumer, other = topic.consumer("c"), topic.consumer("c")
    consumer.poll()
    consumer.commit()
    consumer.remove()
    assert topic.consumers() == []
    with pytest.raises(dq.Closed):
        consumer.poll()
    other.poll()
    with pytest.raises(dq.UnknownConsumer):
        other.commit()
    assert len(topic.consumer("c").poll()) == 1


def test_commit_without_a_move_writes_nothing(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    consumer = topic.consumer("c")
    before = log.image.offset
    consumer.commit()
    consumer.commit()
    assert log.image.offset == before


@pytest.mark.parametrize("name", ["", "a/b", None, "x" * 300])
def test_a_bad_consumer_name_is_refused(log: dq.EmbeddedLog, name: object) -> None:
    with pytest.raises(dq.InvalidName):
        log.create_topic("t").consumer(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"max_records": 0}, {"max_records": "5"}, {"timeout": "1"}, {"timeout": -1}])
def test_a_poll_that_makes_no_sense_is_refused(log: dq.EmbeddedLog, bad: dict[str, object]) -> None:
    with pytest.raises(dq.InvalidInput, match="allowed"):
        log.create_topic("t").consumer("c").poll(**bad)  # type: ignore[arg-type]
