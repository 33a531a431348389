"""Events as bytes: all of them, of every version, and anything that is none."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dq.engine.errors import DamagedBatch, FormatTooNew, InvalidInput
from dq.engine.files import OsFiles
from dq.engine.raft import events as module
from dq.engine.raft.event_log import load_image, read_events
from dq.engine.raft.events import (
    CHANGES,
    Change,
    ConsumerRegistered,
    Event,
    LeaderElected,
    PositionsCommitted,
    TokenGranted,
    TopicCreated,
    TopicDeleted,
    UnknownEvent,
    decode_event,
    encode_event,
    validate,
)
from dq.engine.raft.history import describe
from dq.engine.raft.image import EMPTY, apply_event, state_hash
from dq.engine.raft.image_bytes import decode_image, encode_image
from tests.raft.changes import ORDERS, STORY, event, random_change, story
from tests.raft.metadata_logs import open_view
from tests.raft.recording import FIXTURES, record

RECORDED = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())


def packed(type_name: Any = "topic_deleted", version: Any = 1, data: Any = None, **envelope: Any) -> bytes:
    data = {"topic": "orders", "topic_id": ORDERS} if data is None else data
    given = {"id": bytes(16), "time": 1, "actor": "ada", **envelope}
    made: bytes = msgpack.packb([type_name, version, given["id"], given["time"], given["actor"], data])
    return made


# ---------------------------------------------------------------- round trips


def test_the_story_has_every_type_of_event() -> None:
    assert {change.type for change in STORY} == set(CHANGES)


@pytest.mark.parametrize("change", STORY, ids=lambda change: change.type)
def test_every_event_is_read_as_it_was_written(change: Change) -> None:
    validate(change)
    assert decode_event(encode_event(event(change))) == event(change)


@given(random_change, st.binary(min_size=16, max_size=16), st.integers(-(1 << 63), (1 << 63) - 1), st.text())
def test_any_event_is_read_as_it_was_written(change: Change, event_id: bytes, time: int, actor: str) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in actor):
        actor = ""
    made = Event(change, event_id, time, actor)
    assert decode_event(encode_event(made)) == made


# ---------------------------------------------------------------- versions


def test_an_event_of_the_first_version_is_read_as_one_of_today() -> None:
    data = {"topic": "orders", "consumer": "billing", "positions": {0: 7}}
    change = decode_event(packed("consumer_registered", 1, data)).change
    assert change == ConsumerRegistered(topic="orders", consumer="billing", positions={0: 7}, consumer_id=None)


def test_an_event_that_uses_nothing_new_is_written_as_before() -> None:
    change = PositionsCommitted(topic="orders", consumer="billing", positions={0: 7})
    expected = packed("positions_committed", 1, {"topic": "orders", "consumer": "billing", "positions": {0: 7}})
    assert encode_event(Event(change, bytes(16), 1, "ada")) == expected
    _, version, *_, data = msgpack.unpackb(encode_event(event(replace(change, member="w1"))), strict_map_key=False)
    assert (version, data["member"]) == (2, "w1")


def test_upcasters_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic_deleted that began as {name} and became {topic} and then {topic, topic_id}."""
    monkeypatch.setattr(TopicDeleted, "version", 3)
    monkeypatch.setitem(module._UPCASTERS, ("topic_deleted", 1), lambda data: {"topic": data["name"]})
    monkeypatch.setitem(module._UPCASTERS, ("topic_deleted", 2), lambda data: {**data, "topic_id": ORDERS})
    expected = TopicDeleted(topic="orders", topic_id=ORDERS)
    assert decode_event(packed("topic_deleted", 1, {"name": "orders"})).change == expected
    assert decode_event(packed("topic_deleted", 2, {"topic": "orders"})).change == expected
    assert decode_event(encode_event(event(expected))).change == expected
    with pytest.raises(DamagedBatch):
        decode_event(packed("topic_deleted", 1, {"title": "orders"}))


def test_every_old_version_has_an_upcaster() -> None:
    for cls in CHANGES.values():
        for version in range(1, cls.version):
            assert (cls.type, version) in module._UPCASTERS


def test_a_newer_version_is_told_apart_from_damage() -> None:
    with pytest.raises(FormatTooNew) as error:
        decode_event(packed(version=9))
    assert (error.value.version, error.value.supported) == (9, 1)
    with pytest.raises(UnknownEvent, match="topic_renamed"):
        decode_event(packed("topic_renamed"))


# ---------------------------------------------------------------- what is no event


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb(["topic_deleted", 1]),
        msgpack.packb({"type": "topic_deleted"}),
        packed([], 1),
        packed(version=0),
        packed(version="1"),
        packed(version=True),
        packed(id=b"short"),
        packed(id="0123456789abcdef"),
        packed(time=1.5),
        packed(time=None),
        packed(actor=b"ada"),
        packed(data=[]),
        packed(data={"topic": "orders"}),
        packed(data={"topic": 7, "topic_id": ORDERS}),
        packed(data={"topic": "orders", "topic_id": "no bytes"}),
        packed(data={"topic": "orders", "topic_id": ORDERS, "unknown": 1}),
        packed(data={"topic": "orders", "topic_id": ORDERS, 7: 1}),
        packed("topic_created", data={"topic": "o", "topic_id": ORDERS, "partitions": True}),
        packed("topic_created", data={"topic": "o", "topic_id": ORDERS, "partitions": 1 << 63}),
        packed("topic_created", data={"topic": "o", "topic_id": ORDERS, "partitions": 1, "config": {"a": 1.5}}),
        packed("topic_created", data={"topic": "o", "topic_id": ORDERS, "partitions": 1, "config": {"a": [1]}}),
        packed("positions_committed", data={"topic": "o", "consumer": "c", "positions": {"0": 1}}),
        packed("positions_committed", data={"topic": "o", "consumer": "c", "positions": [[0, 1]]}),
        packed("positions_claimed", data={"topic": "o", "consumer": "c", "generation": 0, "claims": {0: [1]}}),
    ],
)
def test_what_is_no_event_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(DamagedBatch):
        decode_event(data)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_typed_error(data: bytes) -> None:
    with pytest.raises((DamagedBatch, FormatTooNew)):
        decode_event(data)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(0, 5), inner),
    max_leaves=8,
)


@given(st.sampled_from(STORY), st.data())
def test_an_event_with_any_field_replaced_by_anything_is_read_whole_or_not_at_all(
    change: Change, data: st.DataObject
) -> None:
    type_name, version, event_id, time, actor, values = msgpack.unpackb(
        encode_event(event(change)), strict_map_key=False
    )
    name = data.draw(st.sampled_from(sorted(values)))
    values[name] = data.draw(plain)
    try:
        found = decode_event(msgpack.packb([type_name, version, event_id, time, actor, values]))
    except (DamagedBatch, ValueError):
        return
    assert decode_event(encode_event(found)) == found
    assert isinstance(apply_event(EMPTY, found).image.offset, int)


@given(st.sampled_from(STORY), st.data())
def test_a_flipped_byte_gives_another_event_or_a_typed_error(change: Change, data: st.DataObject) -> None:
    encoded = bytearray(encode_event(event(change)))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        decode_event(bytes(encoded))
    except (DamagedBatch, FormatTooNew):
        pass


# ---------------------------------------------------------------- before proposing


@pytest.mark.parametrize(
    "change",
    [
        TopicCreated(topic="../etc", topic_id=ORDERS, partitions=1),
        TopicCreated(topic="orders", topic_id=b"short", partitions=1),
        TopicCreated(topic="orders", topic_id=ORDERS, partitions=0),
        TopicCreated(topic="orders", topic_id=ORDERS, partitions=1, config={"share": 0.5}),
        TopicCreated(topic="orders", topic_id="a string", partitions=1),  # type: ignore[arg-type]
        PositionsCommitted(topic="orders", consumer="c", positions={0: -1}),
        PositionsCommitted(topic="orders", consumer="c", positions={0: 1 << 63}),
        LeaderElected(topic="orders", topic_id=ORDERS, partition=0, leader=None, epoch=1, forced=True),
        TokenGranted(token_id="ci", secret_hash=b"the secret itself", permissions={}),
        TokenGranted(token_id="ci", secret_hash=bytes(32), permissions={"owner": ("*",)}),
        TokenGranted(token_id="ci", secret_hash=bytes(32), permissions={"admin": ("../*",)}),
        TokenGranted(token_id="ci", secret_hash=bytes(32), permissions={}, description="\ud800"),
    ],
)
def test_values_that_make_no_sense_are_refused(change: Change) -> None:
    with pytest.raises(InvalidInput):
        validate(change)


def test_changes_are_values_with_documented_types() -> None:
    for cls in CHANGES.values():
        assert fields(cls)
        assert cls.version >= 1


# ---------------------------------------------------------------- recorded logs


def test_logs_were_recorded() -> None:
    assert RECORDED[0] == "events-1"


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_log_folds_into_what_it_did_when_it_was_recorded(name: str) -> None:
    """Of every release that changed an event there is one. They are never recorded anew, only read."""
    expected = json.loads((FIXTURES / name / "expected.json").read_text())
    view = open_view(OsFiles(), directory=str(FIXTURES / name))
    types = [found.change.type for _, found in read_events(view)]
    image = load_image(OsFiles(), view)
    assert types == expected["types"]
    assert describe(image) == expected["image"]
    assert state_hash(image) == expected["state_hash"]
    assert decode_image(encode_image(image)) == image


def test_a_recording_is_what_was_recorded(tmp_path: Path) -> None:
    record(tmp_path, story())
    expected = json.loads((tmp_path / "expected.json").read_text())
    assert expected["types"] == [change.type for change in STORY]
    found = [found for _, found in read_events(open_view(OsFiles(), directory=str(tmp_path)))]
    assert found == story()
