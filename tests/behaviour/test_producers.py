"""The buffered producer."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

import pytest

import dq


def test_what_is_sent_is_stored_in_order(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    with topic.producer(linger_ms=1) as producer:
        deliveries = [producer.send(b"%d" % number) for number in range(5000)]
    assert [record.value for record in topic.read()] == [b"%d" % number for number in range(5000)]
    assert [delivery.result().offset for delivery in deliveries] == list(range(5000))


def test_records_of_all_kinds_keep_their_place(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    when = datetime(2026, 5, 1, tzinfo=timezone.utc)
    with topic.producer(linger_ms=0.1, batch_records=7) as producer:
        for number in range(500):
            if number % 5 == 0:
                producer.send(b"%d" % number, key=b"k")
            elif number % 7 == 0:
                producer.send(b"%d" % number, headers={"n": b"%d" % number})
            elif number % 11 == 0:
                producer.send(b"%d" % number, timestamp=when)
            elif number % 13 == 0:
                producer.send(b"%d" % number + b"x" * 5000)
            else:
                producer.send(b"%d" % number)
    for number, record in enumerate(topic.read()):
        assert record.value is not None
        assert record.value.rstrip(b"x") == b"%d" % number
        assert record.key == (b"k" if number % 5 == 0 else None)
        assert record.headers == ({"n": b"%d" % number} if number % 5 and number % 7 == 0 else None)
        if number % 5 and number % 7 and number % 11 == 0:
            assert record.timestamp == 1_777_593_600_000_000


def test_keys_choose_the_partition_and_the_rest_is_spread(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=4)
    with topic.producer(batch_records=10) as producer:
        for number in range(200):
            producer.send(b"keyed", key=b"k%d" % (number % 9))
            producer.send(b"plain")
            producer.send(b"named", partition=2)
    records = list(topic.read())
    assert len(records) == 600
    assert all(r.partition == dq.partition_of_key(r.key, 4) for r in records if r.key is not None)
    assert {record.partition for record in records if record.value == b"plain"} == {0, 1, 2, 3}
    assert {record.partition for record in records if record.value == b"named"} == {2}


def test_a_record_is_stored_after_the_linger_time_without_a_flush(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    with topic.producer(linger_ms=20) as producer:
        delivery = producer.send(b"x")
        assert delivery.result(timeout=10).offset == 0
        assert delivery.done()
        assert producer.send(b"y").result(timeout=10).offset == 1


def test_flush_does_not_wait_for_the_linger_time(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    with topic.producer(linger_ms=60_000) as producer:
        producer.send(b"x")
        producer.flush(timeout=10)
        assert [record.value for record in topic.read()] == [b"x"]
        producer.flush(timeout=10)


def test_many_threads_may_send(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=3)
    results: list[tuple[int, int, dq.Delivery]] = []

    with topic.producer(linger_ms=0.5, batch_records=50) as producer:

        def send(thread: int) -> None:
            for number in range(1000):
                key = b"t%d" % thread if number % 3 else None
                results.append((thread, number, producer.send(b"%d:%d" % (thread, number), key=key)))

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = {(record.partition, record.offset): record.value for record in topic.read()}
    assert len(stored) == 6000
    for number, place, delivery in results:
        appended = delivery.result()
        assert stored[appended.partition, appended.offset] == b"%d:%d" % (number, place)
    for thread_number in range(6):
        mine = [r.value for r in topic.read() if r.key == b"t%d" % thread_number]
        assert mine == [b"%d:%d" % (thread_number, number) for number in range(1000) if number % 3]


def test_callbacks_are_called_once_each(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    called: list[int] = []
    with topic.producer(linger_ms=1) as producer:
        for number in range(100):
            producer.send(b"%d" % number).add_done_callback(lambda delivery: called.append(delivery.result().offset))
        producer.flush()
        assert called == list(range(100))
        done = producer.send(b"x")
        done.result(10)
        done.add_done_callback(lambda delivery: called.append(-1))
    assert called[-1] == -1


def test_a_callback_that_raises_is_reported_and_does_not_stop_the_producer(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    producer = topic.producer(linger_ms=1)
    producer.send(b"x").add_done_callback(lambda delivery: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        producer.flush()
    producer.send(b"y")
    producer.close()
    assert len(list(topic.read())) == 2


@pytest.mark.parametrize("bad", [{"value": "text"}, {"value": None}, {"value": b"x", "key": "text"}])
def test_a_bad_record_is_refused_at_once(log: dq.EmbeddedLog, bad: dict[str, object]) -> None:
    topic = log.create_topic("t", partitions=2)
    with topic.producer() as producer:
        producer.send(b"before")
        with pytest.raises(dq.InvalidRecord):
            producer.send(**bad)  # type: ignore[arg-type]
        with pytest.raises(dq.UnknownPartition):
            producer.send(b"x", partition=2)
        with pytest.raises(dq.BatchTooLarge):
            producer.send(b"x" * (17 << 20))
        producer.send(b"after", key=b"k")
    assert sorted(record.value or b"" for record in topic.read()) == [b"after", b"before"]


def test_a_batch_that_fails_later_says_so_in_its_deliveries_and_in_flush(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    producer = topic.producer(linger_ms=1)
    good = producer.send(b"good")
    good.result(10)
    log.delete_topic("t")
    bad = producer.send(b"bad")
    assert isinstance(bad.exception(10), dq.DQError)
    with pytest.raises(dq.DQError):
        bad.result()
    with pytest.raises(dq.DQError):
        producer.close()


def test_a_closed_producer_takes_nothing(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    producer = topic.producer()
    producer.send(b"x")
    producer.close()
    producer.close()
    for _ in range(2):
        with pytest.raises(dq.Closed):
            producer.send(b"y")
    assert [record.value for record in topic.read()] == [b"x"]


def test_memory_in_flight_is_bounded(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    with topic.producer(max_in_flight_bytes=100_000, batch_bytes=10_000) as producer:
        for _ in range(2000):
            producer.send(b"x" * 1500)
    assert len(list(topic.read())) == 2000


@pytest.mark.parametrize("bad", [{"linger_ms": "5"}, {"linger_ms": -1}, {"batch_records": 0}, {"batch_bytes": 1.5}])
def test_bad_settings_of_a_producer_are_refused(log: dq.EmbeddedLog, bad: dict[str, object]) -> None:
    with pytest.raises(dq.InvalidConfig, match="allowed"):
        log.create_topic("t").producer(**bad)  # type: ignore[arg-type]
