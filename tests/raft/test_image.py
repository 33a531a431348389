"""The image: what events make of it, what they may not do, and that it is the same however it came about."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dq.engine.errors import (
    DQError,
    FormatTooNew,
    InvalidInput,
    ProducerFenced,
    StaleEpoch,
    TopicExists,
    UnknownConsumer,
    UnknownPartition,
    UnknownTopic,
)
from dq.engine.memory_files import MemoryFiles
from dq.engine.raft import events as e
from dq.engine.raft import recent_events
from dq.engine.raft.event_log import fold_events, load_image
from dq.engine.raft.events import Change, Event
from dq.engine.raft.image import (
    EMPTY,
    Image,
    Lease,
    apply_event,
    check,
    find_event,
    fold,
    state_hash,
)
from dq.engine.raft.image_bytes import PART_ITEMS, DamagedImage, decode_image, encode_image, image_parts
from dq.engine.raft.recent_events import RecentEvents
from dq.engine.raft.refusals import (
    BrokerInUse,
    BrokerNotReady,
    LeaseHeld,
    NotAGroup,
    NotInSync,
    NotLeased,
    StaleBroker,
    StalePosition,
    StaleRevision,
    Taken,
    UnknownBroker,
    UnknownMember,
    UnknownProducer,
    UnknownToken,
)
from dq.engine.raft.snapshots import write_snapshot
from tests.raft.changes import HOUR, LOGS, ORDERS, SECRET, START, STORY, event, random_events, story
from tests.raft.metadata_logs import DIRECTORY, folded, open_log, put

WORLD = folded(story())


def state(image: Image) -> Image:
    """Without what belongs to the history."""
    return replace(image, offset=0, time=0, recent=RecentEvents())


# ---------------------------------------------------------------- the rules


def test_every_event_of_the_story_applies() -> None:
    image = EMPTY
    for found in story():
        check(image, found.change, found.time)
        image, refusal, duplicate_of = apply_event(image, found)
        assert (refusal, duplicate_of) == (None, None)
    assert (image.offset, image.time) == (len(STORY), story()[-1].time)


def test_the_story_ends_as_it_should() -> None:
    topic = WORLD.topics["orders"]
    assert dict(topic.config) == {"retention": HOUR, "compact": True}
    assert dict(topic.consumers["billing"].positions) == {0: 12, 1: 4}
    numbered = topic.consumers["consumer-0"]
    assert (numbered.next_offset(0), numbered.generation, numbered.next_offset(3)) == (2, 1, None)
    group = topic.consumers["workers"].group
    assert group is not None
    assert dict(group.leases) == {0: Lease("w1", START + 10 * HOUR)}
    assert (topic.assigned[0].leader, topic.assigned[0].in_sync, topic.assigned[0].epoch) == (2, (2,), 2)
    assert {number: broker.state for number, broker in WORLD.brokers.items()} == {1: "inactive", 2: "fenced"}
    assert set(WORLD.brokers[1].replicas) == {(ORDERS, 0), (ORDERS, 1)}
    assert dict(WORLD.consumer_ids) == {0: ("orders", "consumer-0")}
    assert dict(WORLD.producer_names) == {0: "till-1", 1: "till-2"}
    assert dict(WORLD.token_ids) == {SECRET: "ci"}
    assert dict(WORLD.tokens["ci"].permissions) == {"consume": ("orders",), "produce": ("orders",)}
    assert dict(WORLD.deleted) == {LOGS: "logs"}


def elected(partition: int, leader: int | None, epoch: int, **more: bool) -> e.LeaderElected:
    return e.LeaderElected(topic="orders", topic_id=ORDERS, partition=partition, leader=leader, epoch=epoch, **more)


def in_sync(partition: int, brokers: tuple[int, ...], epoch: int, revision: int) -> e.InSyncChanged:
    return e.InSyncChanged(
        topic="orders", topic_id=ORDERS, partition=partition, in_sync=brokers, epoch=epoch, revision=revision
    )


def claimed(start: int, end: int, generation: int) -> e.PositionsClaimed:
    return e.PositionsClaimed(topic="orders", consumer="consumer-0", generation=generation, claims={0: (start, end)})


def leased(member: str, *partitions: int) -> e.PartitionsLeased:
    return e.PartitionsLeased(topic="orders", group="workers", member=member, partitions=partitions, until=START + HOUR)


@pytest.mark.parametrize(
    "change, error",
    [
        (e.TopicCreated(topic="orders", topic_id=bytes(16), partitions=1), TopicExists),
        (e.TopicCreated(topic="new", topic_id=LOGS, partitions=1), Taken),
        (e.TopicConfigured(topic="logs", config={}), UnknownTopic),
        (e.TopicDeleted(topic="orders", topic_id=LOGS), UnknownTopic),
        (e.PartitionsAssigned(topic="orders", topic_id=LOGS, replicas={0: (1,)}), UnknownTopic),
        (e.PartitionsAssigned(topic="orders", topic_id=ORDERS, replicas={4: (1,)}), UnknownPartition),
        (e.PartitionsAssigned(topic="orders", topic_id=ORDERS, replicas={2: (9,)}), UnknownBroker),
        (e.PartitionsAssigned(topic="orders", topic_id=ORDERS, replicas={2: (1,)}), BrokerNotReady),
        (e.PartitionsAssigned(topic="orders", topic_id=ORDERS, replicas={0: (1,)}), NotInSync),
        (elected(0, 2, 2), StaleEpoch),
        (elected(0, 2, 3), BrokerNotReady),
        (elected(2, 2, 1), NotInSync),
        (elected(7, 2, 1), UnknownPartition),
        (in_sync(0, (2,), 1, 4), StaleEpoch),
        (in_sync(0, (2,), 2, 3), StaleRevision),
        (in_sync(0, (1,), 2, 4), BrokerNotReady),
        (in_sync(1, (3,), 1, 2), NotInSync),
        (e.BrokerRegistered(broker_id=1, address="b", epoch=0), StaleBroker),
        (e.BrokerActivated(broker_id=2), BrokerNotReady),
        (e.BrokerDeactivated(broker_id=2), BrokerNotReady),
        (e.BrokerActivated(broker_id=3), UnknownBroker),
        (e.BrokerFenced(broker_id=1, epoch=7), StaleBroker),
        (e.BrokerRemoved(broker_id=1), BrokerInUse),
        (e.ProducerRegistered(name="till-1", producer_id=0, epoch=0), ProducerFenced),
        (e.ProducerRegistered(name="till-1", producer_id=5, epoch=1), Taken),
        (e.ProducerRegistered(name="new", producer_id=2, epoch=0), Taken),
        (e.ProducerRegistered(name="new", producer_id=3, epoch=0, topic="logs"), UnknownTopic),
        (e.ProducerDeactivated(name="new"), UnknownProducer),
        (e.ProducerRemoved(name="new"), UnknownProducer),
        (e.ConsumerRegistered(topic="orders", consumer="billing", positions={}), Taken),
        (e.ConsumerRegistered(topic="orders", consumer="new", positions={}, consumer_id=0), Taken),
        (e.ConsumerRegistered(topic="orders", consumer="new", positions={4: 0}), UnknownPartition),
        (e.ConsumerRemoved(topic="orders", consumer="audit"), UnknownConsumer),
        (e.PositionsCommitted(topic="logs", consumer="billing", positions={0: 1}), UnknownTopic),
        (e.PositionsCommitted(topic="orders", consumer="audit", positions={0: 1}), UnknownConsumer),
        (e.PositionsCommitted(topic="orders", consumer="billing", positions={0: 1}, member="w1"), NotAGroup),
        (e.PositionsCommitted(topic="orders", consumer="workers", positions={1: 1}, member="w1"), NotLeased),
        (claimed(2, 4, 0), StalePosition),
        (e.GroupRegistered(topic="orders", group="billing", positions={}), Taken),
        (e.MemberJoined(topic="orders", group="workers", member="w1"), Taken),
        (e.MemberJoined(topic="orders", group="billing", member="w1"), NotAGroup),
        (e.MemberLeft(topic="orders", group="workers", member="w2"), UnknownMember),
        (leased("w2", 2), UnknownMember),
        (leased("w1", 9), UnknownPartition),
        (e.PartitionsReleased(topic="orders", group="workers", member="w1", partitions=(1,)), NotLeased),
        (e.TokenGranted(token_id="ci", secret_hash=bytes(32), permissions={}), Taken),
        (e.TokenGranted(token_id="copy", secret_hash=SECRET, permissions={}), Taken),
        (e.TokenRevoked(token_id="old"), UnknownToken),
        (e.PermissionsGranted(token_id="old", permissions={}), UnknownToken),
        (e.PermissionsRevoked(token_id="old", permissions={}), UnknownToken),
    ],
)
def test_what_does_not_apply_is_refused_and_changes_nothing(change: Change, error: type[DQError]) -> None:
    with pytest.raises(error):
        check(WORLD, change)
    image, refusal, _ = apply_event(WORLD, event(change, 1000))
    assert isinstance(refusal, error)
    assert state(image) == state(WORLD)
    assert image.offset == WORLD.offset + 1


@settings(max_examples=200)
@given(random_events())
def test_folding_and_checking_never_disagree(events: list[Event]) -> None:
    image = EMPTY
    for found in events:
        try:
            check(image, found.change, found.time)
            refused = None
        except InvalidInput:
            image = fold(image, found)
            continue
        except DQError as error:
            refused = type(error)
        after, refusal, duplicate_of = apply_event(image, found)
        if duplicate_of is None:
            assert (None if refusal is None else type(refusal)) == refused
        if refusal is not None or duplicate_of is not None:
            assert state(after) == state(image)
        image = after


def test_a_lease_that_ran_out_is_taken_over_by_the_time_of_the_event() -> None:
    world = folded([event(e.MemberJoined(topic="orders", group="workers", member="w3"), 2000)], WORLD)
    with pytest.raises(LeaseHeld) as held:
        check(world, leased("w3", 0), START + HOUR)
    assert (held.value.member, held.value.until) == ("w1", START + 10 * HOUR)
    world = fold(world, event(leased("w3", 0), 2001, time=START + 10 * HOUR))
    group = world.topics["orders"].consumers["workers"].group
    assert group is not None
    assert group.leases[0].member == "w3"


def test_a_claim_may_pass_over_offsets_but_not_go_back() -> None:
    world = folded(
        [event(claimed(2, 6, 1), 2000), event(claimed(2, 6, 1), 2001), event(claimed(9, 12, 1), 2002)], WORLD
    )
    assert world.topics["orders"].consumers["consumer-0"].next_offset(0) == 12


def test_a_leader_outside_the_in_sync_set_needs_force() -> None:
    changes: list[Change] = [
        *(e.BrokerRegistered(broker_id=number, address="b", epoch=1) for number in (1, 2)),
        *(e.BrokerActivated(broker_id=number) for number in (1, 2)),
    ]
    world = folded([event(change, 2000 + number) for number, change in enumerate(changes)], WORLD)
    with pytest.raises(NotInSync):
        check(world, elected(0, 1, 3))
    world = fold(world, event(elected(0, 1, 3, forced=True), 3000))
    assert world.topics["orders"].assigned[0].in_sync == (1,)


def test_deleting_a_topic_frees_its_brokers_and_consumer_ids() -> None:
    world = fold(WORLD, event(e.TopicDeleted(topic="orders", topic_id=ORDERS), 2000))
    assert all(not broker.replicas for broker in world.brokers.values())
    assert not world.consumer_ids
    assert world.next_consumer_id == 1
    check(world, e.BrokerRemoved(broker_id=1))


# ---------------------------------------------------------------- duplicates


@settings(max_examples=100)
@given(random_events(), st.data())
def test_events_that_come_again_change_nothing(events: list[Event], data: st.DataObject) -> None:
    once, twice = EMPTY, EMPTY
    for number, found in enumerate(events):
        once = fold(once, found)
        twice = fold(twice, found)
        again = data.draw(st.sampled_from(events[: number + 1]))
        twice = fold(twice, again)
    assert state(once) == state(twice)


def test_an_event_is_found_by_its_id_at_its_first_offset() -> None:
    image = folded([*story(), story()[7]])
    assert find_event(image, story()[7].id) == 7
    assert image.offset == len(STORY) + 1
    assert find_event(image, b"never seen......") is None


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_events, "FEWEST", 3)
    monkeypatch.setattr(recent_events, "MOST", 8)
    monkeypatch.setattr(recent_events, "SPAN", 10)


def window(times: list[int], gap: int = 1) -> RecentEvents:
    recent = RecentEvents()
    for number, time in enumerate(times):
        recent = with_next(recent, number, number * gap, time)
    return recent


def with_next(recent: RecentEvents, number: int, offset: int, time: int) -> RecentEvents:
    recent = recent.moved_to(offset, time)
    event_id = number.to_bytes(16, "big")
    return recent.with_event(event_id, offset, time) if recent.find(event_id) is None else recent


@pytest.mark.usefixtures("small_window")
@pytest.mark.parametrize(
    "times, kept",
    [
        ([0] * 20, range(12, 20)),  # by count
        (list(range(0, 100, 5)), range(17, 20)),  # by time
        ([*[0] * 10, 1000], range(8, 11)),  # the clock jumped, and the last ones are still known
        ([1000, *[0] * 5], range(6)),  # a time in the future holds up those behind it, at most up to the count
    ],
)
def test_the_window_is_bounded_by_count_and_time(times: list[int], kept: range) -> None:
    recent = window(times)
    assert sorted(recent.order) == sorted(recent.offsets.values()) == list(kept)
    assert recent.first == kept[0]
    assert RecentEvents.from_columns(recent.columns(3)) == recent


@pytest.mark.usefixtures("small_window")
def test_the_window_moves_by_offsets_even_when_some_are_missing() -> None:
    assert sorted(window([0] * 20, gap=3).order) == [51, 54, 57]


@pytest.mark.usefixtures("small_window")
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40), st.integers(1, 4)), max_size=40))
def test_a_window_is_what_it_was_after_a_snapshot(entries: list[tuple[int, int, int]]) -> None:
    recent, offset = RecentEvents(), 0
    for number, time, step in entries:
        offset += step
        recent = with_next(recent, number, offset, time)
        assert RecentEvents.from_columns(recent.columns(3)) == recent
        assert len(recent) <= 8


# ---------------------------------------------------------------- the same state, however it came about


@settings(max_examples=100, deadline=None)
@given(random_events(), st.data())
def test_a_log_folds_the_same_however_it_is_batched_snapshotted_and_replayed(
    events: list[Event], data: st.DataObject
) -> None:
    expected = folded(events)
    files = MemoryFiles()
    log = open_log(files)
    followed = EMPTY
    left = events
    while left:
        count = data.draw(st.integers(1, len(left)))
        put(log, left[:count])
        left = left[count:]
        if data.draw(st.booleans()):
            followed = fold_events(followed, log)
        if data.draw(st.booleans()):
            write_snapshot(files, DIRECTORY, load_image(files, log))
    assert load_image(files, log) == expected
    assert fold_events(followed, log) == expected
    assert fold_events(EMPTY, log) == expected
    assert decode_image(encode_image(expected)) == expected
    assert state_hash(decode_image(encode_image(expected))) == state_hash(expected)


@settings(max_examples=200)
@given(random_events(max_size=15), random_events(max_size=15))
def test_hashes_are_equal_exactly_when_states_are(one: list[Event], other: list[Event]) -> None:
    images = [folded(one), folded(other), folded(one[:-1]), folded(reversed(one)), folded([*one, *one])]
    for first in images:
        for second in images:
            assert (state_hash(first) == state_hash(second)) == (state(first) == state(second))


def test_the_hash_does_not_depend_on_the_history() -> None:
    detour = [
        event(e.TopicCreated(topic="detour", topic_id=bytes(16), partitions=1), 5000),
        event(e.ConsumerDeactivated(topic="orders", consumer="billing"), 5001),
        event(e.ConsumerActivated(topic="orders", consumer="billing"), 5002),
    ]
    assert state_hash(folded(detour[1:], WORLD)) == state_hash(WORLD)
    assert state_hash(folded(detour, WORLD)) != state_hash(WORLD)


# ---------------------------------------------------------------- images as bytes


@given(st.binary(max_size=100))
def test_what_is_no_image_is_a_typed_error(data: bytes) -> None:
    with pytest.raises((DamagedImage, FormatTooNew)):
        decode_image(data)


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_image_is_a_typed_error_or_an_image(data: st.DataObject) -> None:
    encoded = bytearray(encode_image(WORLD))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert isinstance(decode_image(bytes(encoded)), Image)
    except (DamagedImage, FormatTooNew):
        pass


def test_a_newer_image_is_told_apart_from_damage() -> None:
    with pytest.raises(FormatTooNew):
        decode_image(msgpack.packb(["image", 99, "and whatever comes then"]))
    with pytest.raises(DamagedImage):
        decode_image(msgpack.packb(["image", 1]))  # an older one, which the events make anew


def test_an_image_that_was_cut_or_has_something_behind_it_is_damaged() -> None:
    parts = list(image_parts(WORLD))
    for count in range(len(parts)):
        with pytest.raises(DamagedImage):
            decode_image(b"".join(parts[:count]))
        with pytest.raises(DamagedImage):
            decode_image(b"".join(parts[:count] + parts[count + 1 :]))
    with pytest.raises(DamagedImage):
        decode_image(b"".join(parts) + b"\x00")


def test_a_large_image_is_made_of_small_parts_whatever_there_is_much_of() -> None:
    consumers = [
        event(e.ConsumerRegistered(topic="orders", consumer=f"c{number}", positions={0: number}), 9000 + number)
        for number in range(3 * PART_ITEMS)
    ]
    image = folded(consumers, WORLD)
    parts = list(image_parts(image))
    assert max(map(len, parts)) < 300 * PART_ITEMS
    assert decode_image(b"".join(parts)) == image


def test_images_share_what_did_not_change() -> None:
    after = fold(WORLD, event(e.PositionsCommitted(topic="orders", consumer="billing", positions={0: 99}), 5000))
    assert after.brokers is WORLD.brokers
    assert after.tokens is WORLD.tokens
    assert after.topics["orders"].consumers["workers"] is WORLD.topics["orders"].consumers["workers"]
