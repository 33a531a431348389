"""Appending and reading: what goes in comes out, in order, with its offset."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

import pytest

import dq


def test_a_record_comes_back_as_it_went_in(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    when = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
    stored = topic.append(b"value", key=b"key", headers={"trace": b"1"}, timestamp=when)
    assert stored == (0, 0, 1_767_323_045_678_901, 1)
    (record,) = topic.read()
    assert record == (0, 1_767_323_045_678_901, b"key", b"value", {"trace": b"1"}, 0)


def test_offsets_count_up_from_zero_within_a_partition(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=2)
    assert [topic.append(b"x", partition=1).offset for _ in range(3)] == [0, 1, 2]
    assert topic.append(b"x", partition=0).offset == 0
    (stored,) = topic.append_many([b"a", b"b", b"c"], partition=1)
    assert (stored.partition, stored.offset, stored.count) == (1, 3, 3)
    assert [record.offset for record in topic.read(1)] == [0, 1, 2, 3, 4, 5]


def test_records_with_one_key_stay_together_and_in_order(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=8)
    for number in range(100):
        topic.append(b"%d" % number, key=b"k%d" % (number % 5))
    for key in range(5):
        found = [record for record in topic.read() if record.key == b"k%d" % key]
        assert {record.partition for record in found} == {dq.partition_of_key(b"k%d" % key, 8)}
        assert [record.value for record in found] == [b"%d" % number for number in range(key, 100, 5)]


def test_append_many_puts_each_key_where_append_does(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=4)
    keys = [b"k%d" % (number % 17) for number in range(200)]
    stored = topic.append_many([b"%d" % number for number in range(200)], keys)
    assert sum(item.count for item in stored) == 200
    for record in topic.read():
        assert record.key is not None
        assert record.partition == dq.partition_of_key(record.key, 4)


def test_records_without_a_key_go_to_the_partitions_in_turn(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=3)
    assert sorted(topic.append(b"x").partition for _ in range(6)) == [0, 0, 1, 1, 2, 2]
    assert sorted(topic.append_many([b"x"] * 5)[0].partition for _ in range(3)) == [0, 1, 2]


def test_the_partitioner_never_changes() -> None:
    # Kept for good: other values would send keys of existing topics elsewhere.
    assert [dq.partition_of_key(key, 16) for key in (b"", b"a", b"order-1", b"\x00\xff")] == [0, 0, 12, 3]


def test_reading_starts_where_it_is_told(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    base = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for number in range(10):
        topic.append(b"%d" % number, timestamp=base + timedelta(minutes=number))
    topic.append_many([b"10", b"11"], timestamps=[base + timedelta(minutes=10), base + timedelta(minutes=11)])

    def read(start: object) -> list[bytes | None]:
        return [record.value for record in topic.read(0, start)]  # type: ignore[arg-type]

    everything = [b"%d" % number for number in range(12)]
    assert read("earliest") == everything
    assert read(0) == everything
    assert read(7) == everything[7:]
    assert read(11) == everything[11:]
    assert read(12) == []
    assert read("latest") == []
    assert read(base + timedelta(minutes=3)) == everything[3:]
    assert read(base + timedelta(minutes=10, seconds=1)) == everything[11:]
    assert read(base - timedelta(days=1)) == everything
    assert read(base + timedelta(days=1)) == []


@pytest.mark.parametrize("offset", [-1, 4, 1 << 62])
def test_an_offset_that_is_not_there_is_an_error_and_never_a_reset(log: dq.EmbeddedLog, offset: int) -> None:
    topic = log.create_topic("t")
    topic.append_many([b"a", b"b", b"c"])
    with pytest.raises(dq.OffsetOutOfRange) as caught:
        topic.read(0, offset)
    assert (caught.value.offset, caught.value.earliest, caught.value.latest) == (offset, 0, 3)


@pytest.mark.parametrize("start", ["first", None, 1.5, True])
def test_a_start_that_means_nothing_is_refused(log: dq.EmbeddedLog, start: object) -> None:
    topic = log.create_topic("t")
    with pytest.raises(dq.InvalidInput):
        topic.read(0, start)  # type: ignore[arg-type]


def test_an_offset_alone_does_not_name_a_place_in_several_partitions(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=2)
    with pytest.raises(dq.InvalidInput, match="partition"):
        topic.read(start=0)


@pytest.mark.parametrize("partition", [-1, 2, "0", True, 1.0])
def test_an_unknown_partition_is_refused(log: dq.EmbeddedLog, partition: object) -> None:
    topic = log.create_topic("t", partitions=2)
    with pytest.raises(dq.UnknownPartition, match="0 to 1"):
        topic.append(b"x", partition=partition)  # type: ignore[arg-type]
    with pytest.raises(dq.UnknownPartition):
        topic.read(partition)  # type: ignore[arg-type]


def test_all_partitions_are_read_when_none_is_named(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=4)
    for number in range(40):
        topic.append(b"%d" % number)
    assert sorted(record.value or b"" for record in topic.read()) == sorted(b"%d" % number for number in range(40))


def test_batches_are_columns(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    topic.append_many([b"a", b"b", b"c"], keys=[b"x", None, b"z"], headers=[None, {"h": b"1"}, None])
    (batch,) = topic.read_batches(0, 1)
    assert (batch.base_offset, batch.values, batch.keys) == (1, [b"b", b"c"], [None, b"z"])
    assert batch.headers == [{"h": b"1"}, None]
    assert len(batch) == 2


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_arrow_says_the_same_as_records(log: dq.EmbeddedLog, compression: str) -> None:
    topic = log.create_topic("t", compression=compression)
    topic.append_many([b"a" * 50, b"b", b""], keys=[b"x", None, b"z"], headers=[None, {"h": b"1"}, None])
    topic.append_many([b"c" * 10] * 5)
    rows = [row for batch in topic.read_arrow(0, 1) for row in batch.to_pylist()]
    records = list(topic.read(0, 1))
    assert [row["offset"] for row in rows] == [record.offset for record in records]
    assert [row["value"] for row in rows] == [record.value for record in records]
    assert [row["key"] for row in rows] == [record.key for record in records]
    assert [dict(row["headers"]) if row["headers"] else None for row in rows] == [r.headers for r in records]
    assert [row["timestamp"].timestamp() for row in rows] == [record.timestamp / 1e6 for record in records]


@pytest.mark.parametrize("value", ["text", 5, ["x"], {}, 1.5])
def test_a_value_is_bytes(log: dq.EmbeddedLog, value: object) -> None:
    topic = log.create_topic("t")
    with pytest.raises(dq.InvalidRecord, match="bytes"):
        topic.append(value)  # type: ignore[arg-type]
    with pytest.raises(dq.InvalidRecord, match="bytes"):
        topic.append_many([b"fine", value])  # type: ignore[list-item]
    with pytest.raises(dq.InvalidRecord, match="bytes"):
        topic.append(b"x", key=value)  # type: ignore[arg-type]
    assert list(topic.read()) == []


def test_columns_of_different_length_are_refused(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=2)
    for columns in ({"keys": [b"x"]}, {"headers": [None]}, {"timestamps": [1, 2, 3]}):
        with pytest.raises(dq.InvalidRecord, match="2 values"):
            topic.append_many([b"a", b"b"], **columns)  # type: ignore[arg-type]


def test_a_record_that_is_too_large_is_refused_with_both_sizes(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", max_batch_bytes=10_000)
    with pytest.raises(dq.BatchTooLarge) as caught:
        topic.append(b"x" * 20_000)
    assert caught.value.size > 20_000
    assert caught.value.limit == 10_000
    topic.append(b"x" * 9_000)
    assert len(list(topic.read())) == 1


def test_many_records_are_cut_into_batches(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    sizes = [1, 500_000, 3, 2_000_000, 7, 900_000, 900_000, 0, 5]
    stored = topic.append_many([b"x" * size for size in sizes])
    assert len(stored) > 1
    assert sum(item.count for item in stored) == len(sizes)
    assert [len(record.value or b"") for record in topic.read()] == sizes
    assert [record.offset for record in topic.read()] == list(range(len(sizes)))


def test_nothing_to_append_is_fine(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    assert topic.append_many([]) == []
    assert list(topic.read()) == []


def test_a_conditional_append_succeeds_only_at_the_expected_offset(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=2)
    topic.append(b"a", partition=0, expected_offset=0)
    with pytest.raises(dq.OffsetMismatch) as caught:
        topic.append(b"b", partition=0, expected_offset=0)
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    topic.append_many([b"b", b"c"], partition=0, expected_offset=1)
    assert [record.value for record in topic.read(0)] == [b"a", b"b", b"c"]
    with pytest.raises(dq.InvalidInput, match="one partition"):
        topic.append_many([b"x"] * 20, keys=[b"k%d" % number for number in range(20)], expected_offset=0)


@pytest.mark.parametrize("bad", ["1", -1, True, 1.0])
def test_an_expected_offset_is_an_offset(log: dq.EmbeddedLog, bad: object) -> None:
    topic = log.create_topic("t")
    with pytest.raises(dq.InvalidInput, match="expected_offset"):
        topic.append(b"x", expected_offset=bad)  # type: ignore[arg-type]
    with pytest.raises(dq.InvalidInput, match="expected_offset"):
        topic.append_many([b"x"], expected_offset=bad)  # type: ignore[arg-type]
    assert list(topic.read()) == []


def test_a_timeout_is_a_number_of_seconds(log: dq.EmbeddedLog) -> None:
    with pytest.raises(dq.InvalidInput, match="seconds"):
        log.create_topic("t").read(follow=True, timeout="1")  # type: ignore[arg-type]


def test_of_many_conditional_appends_at_once_one_wins(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    wins: list[int] = []

    def write(number: int) -> None:
        for expected in range(50):
            try:
                topic.append(b"%d" % number, expected_offset=expected)
                wins.append(expected)
            except dq.OffsetMismatch:
                pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == len(set(wins)) == len(list(topic.read()))


def test_submitted_batches_can_be_waited_for_later(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    pending = [topic.submit([b"%d" % number])[0] for number in range(20)]
    assert [item.result().offset for item in pending] == list(range(20))
    assert all(item.done() for item in pending)
    assert [record.value for record in topic.read()] == [b"%d" % number for number in range(20)]


def test_following_waits_for_more_and_ends_after_the_timeout(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=2)
    topic.append(b"0", partition=0)
    seen: list[bytes | None] = []
    ready = threading.Event()

    def follow() -> None:
        for record in topic.read(follow=True, timeout=5.0):
            seen.append(record.value)
            ready.set()
            if record.value == b"end":
                return

    thread = threading.Thread(target=follow)
    thread.start()
    assert ready.wait(5)
    for number in range(1, 20):
        topic.append(b"%d" % number, partition=number % 2)
    topic.append(b"end", partition=1)
    thread.join(10)
    assert not thread.is_alive()
    assert seen[-1] == b"end"
    odd = [value for value in seen if value != b"end" and int(value or b"0") % 2]
    assert odd == [b"%d" % number for number in range(1, 20, 2)]
    assert list(topic.read(0, "latest", follow=True, timeout=0.05)) == []


def test_segments_roll_and_reading_goes_across_them(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", segment_bytes=4096)
    for number in range(200):
        topic.append(b"%d" % number * 50)
    assert topic.describe().partitions[0].segments > 5
    assert [record.value for record in topic.read()] == [b"%d" % number * 50 for number in range(200)]
    assert [record.offset for record in topic.read(0, 123)] == list(range(123, 200))
    (base, *_) = topic.read(0, datetime.now(timezone.utc) - timedelta(hours=1))
    assert base.offset == 0


def test_retention_by_size_removes_the_oldest_and_keeps_offsets(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", segment_bytes=4096, retention_bytes=10_000)
    for _ in range(100):
        topic.append(b"x" * 500)
    log.maintain()
    info = topic.describe().partitions[0]
    assert 0 < info.start_offset < 90
    assert info.next_offset == 100
    assert 10_000 <= info.size < 25_000
    assert [record.offset for record in topic.read()] == list(range(info.start_offset, 100))
    with pytest.raises(dq.OffsetOutOfRange) as caught:
        topic.read(0, 0)
    assert caught.value.earliest == info.start_offset


def test_retention_runs_by_itself_when_a_segment_is_full(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", segment_bytes=4096, retention_bytes=10_000)
    for _ in range(300):
        topic.append(b"x" * 500)
    assert topic.describe().size < 30_000


def test_retention_by_age(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", segment_bytes=4096, retention=timedelta(days=1))
    now = datetime.now(timezone.utc)
    for hours in range(72, 0, -1):
        topic.append(b"x" * 1000, timestamp=now - timedelta(hours=hours))
    log.maintain()
    kept = [record.offset for record in topic.read()]
    assert kept == list(range(kept[0], 72))
    assert 40 < kept[0] <= 49  # everything younger than a day is there, and at most one segment of older ones


def test_compaction_keeps_the_latest_of_each_key(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", compact=True, segment_bytes=4096, tombstone_retention=0)
    for number in range(300):
        topic.append(b"%d" % number * 20, key=b"k%d" % (number % 7))
    topic.append(None, key=b"k3")
    for number in range(100):
        topic.append(b"fill" * 20, key=b"fill%d" % (number % 3))
    topic.compact()
    records = list(topic.read())
    assert [record.offset for record in records] == sorted({record.offset for record in records})
    latest = {record.key: record.value for record in records}
    for key in (b"k0", b"k1", b"k2", b"k4", b"k5", b"k6"):
        newest = max(number for number in range(300) if number % 7 == int(key[1:]))
        assert latest[key] == b"%d" % newest * 20
    assert b"k3" not in latest
    assert len(records) < 60
    assert topic.append(b"next", key=b"k0").offset == 401


def test_a_compacted_topic_needs_keys_and_only_it_takes_deletions(log: dq.EmbeddedLog) -> None:
    compacted = log.create_topic("c", compact=True)
    plain = log.create_topic("p")
    with pytest.raises(dq.InvalidRecord, match="key"):
        compacted.append(b"x")
    with pytest.raises(dq.InvalidRecord, match="not compacted"):
        plain.append(None, key=b"k")
    with pytest.raises(dq.InvalidInput, match="not compacted"):
        plain.compact()
    compacted.append(None, key=b"k")
