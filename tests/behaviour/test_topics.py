"""Topics: made, listed, described, configured, deleted."""

from __future__ import annotations

from datetime import timedelta

import pytest

import dq


def test_a_new_topic_is_listed_and_described(log: dq.EmbeddedLog) -> None:
    log.create_topic("orders", partitions=3, retention=timedelta(days=2), compression="zstd")
    log.create_topic("a.b_c-D9")
    assert [topic.name for topic in log.topics()] == ["a.b_c-D9", "orders"]
    info = log.topic("orders").describe()
    assert info.name == "orders"
    assert [item.partition for item in info.partitions] == [0, 1, 2]
    assert info.config.retention == 2 * 24 * 3600 * 1_000_000
    assert info.config.compression == "zstd"
    assert info.records == 0
    assert info.size == 0


def test_a_description_counts_records_and_bytes(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", partitions=2)
    topic.append_many([b"x" * 100] * 10, partition=1)
    info = topic.describe()
    assert info.records == 10
    assert info.partitions[1].next_offset == 10
    assert info.partitions[1].size > 1000
    assert info.partitions[1].last_timestamp is not None
    assert info.partitions[0].last_timestamp is None


def test_a_topic_is_made_only_once(log: dq.EmbeddedLog) -> None:
    log.create_topic("t", partitions=2)
    with pytest.raises(dq.TopicExists) as caught:
        log.create_topic("t")
    assert caught.value.name == "t"
    assert log.create_topic("t", partitions=5, exist_ok=True).partitions == 2


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "../up", ".", "..", "with space", "ümlaut", "a\0b", "a\nb", "x" * 201, "__mine", None, 7, b"bytes"],
)
def test_a_bad_name_is_refused(log: dq.EmbeddedLog, name: object) -> None:
    with pytest.raises(dq.InvalidName):
        log.create_topic(name)  # type: ignore[arg-type]
    assert log.topics() == []


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"partitions": 0}, "1 to"),
        ({"partitions": True}, "1 to"),
        ({"partitions": "4"}, "1 to"),
        ({"retention": -1}, "not negative"),
        ({"retention": "forever"}, "timedelta"),
        ({"retention_bytes": -1}, "bytes"),
        ({"segment_bytes": 10}, "bytes"),
        ({"max_batch_bytes": 1 << 40}, "bytes"),
        ({"compression": "gzip"}, "lz4"),
        ({"compact": "yes"}, "True or False"),
        ({"retenton": 5}, "retention"),
    ],
)
def test_a_bad_setting_is_refused_and_told_what_is_allowed(
    log: dq.EmbeddedLog, settings: dict[str, object], word: str
) -> None:
    with pytest.raises(dq.InvalidConfig, match=word):
        log.create_topic("t", **settings)  # type: ignore[arg-type]
    assert log.topics() == []


def test_settings_can_be_changed_and_taken_back(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t", retention_bytes=1000)
    topic.configure(compression="lz4", retention_bytes=None)
    assert log.topic("t").config.compression == "lz4"
    assert log.topic("t").config.retention_bytes is None
    topic.append(b"x" * 1000)
    assert [record.value for record in topic.read()] == [b"x" * 1000]


def test_a_setting_can_be_without_limit_where_the_default_is_not(log: dq.EmbeddedLog) -> None:
    assert log.create_topic("a", segment_age=None).config.segment_age is None
    log.create_topic("b")
    assert log.configure_topic("b", segment_age=None).config.segment_age is None
    assert log.configure_topic("b", retention=60).config.segment_age is None
    assert log.configure_topic("b", segment_age=timedelta(days=7)).config == log.create_topic("c", retention=60).config


def test_a_deleted_topic_is_gone_and_its_name_is_free(log: dq.EmbeddedLog) -> None:
    log.create_topic("t").append(b"old")
    log.delete_topic("t")
    with pytest.raises(dq.UnknownTopic):
        log.topic("t")
    with pytest.raises(dq.UnknownTopic):
        log.delete_topic("t")
    fresh = log.create_topic("t")
    assert list(fresh.read()) == []
    assert fresh.append(b"new").offset == 0


def test_a_handle_of_a_deleted_topic_says_so(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    topic.append(b"x")
    log.delete_topic("t")
    with pytest.raises(dq.UnknownTopic):
        topic.append(b"y")
    with pytest.raises(dq.UnknownTopic):
        list(topic.read())


def test_a_handle_of_a_topic_that_was_made_anew_does_not_reach_the_new_one(log: dq.EmbeddedLog) -> None:
    old = log.create_topic("t")
    log.delete_topic("t")
    new = log.create_topic("t")
    new.append(b"new")
    with pytest.raises(dq.UnknownTopic):
        old.append(b"old")
    assert [record.value for record in new.read()] == [b"new"]


def test_the_metadata_is_a_topic_that_only_dq_writes(log: dq.EmbeddedLog) -> None:
    log.create_topic("t")
    assert len(list(log.topic("__metadata").read())) == 1
    with pytest.raises(dq.ReadOnly):
        log.topic("__metadata").append(b"x")
    with pytest.raises(dq.InvalidName):
        log.delete_topic("__metadata")


def test_nothing_works_after_close(log: dq.EmbeddedLog) -> None:
    topic = log.create_topic("t")
    topic.append(b"x")
    log.close()
    log.close()
    for use in (
        lambda: log.create_topic("u"),
        lambda: log.topic("t"),
        lambda: topic.append(b"y"),
        lambda: topic.append_many([b"y"]),
        lambda: topic.consumer("c"),
    ):
        with pytest.raises(dq.Closed):
            use()
