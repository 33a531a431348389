"""The past: images as of then, what differs, choosing events, and thinning, which must not change any of it."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dq.engine.errors import OffsetOutOfRange
from dq.engine.memory_files import MemoryFiles
from dq.engine.raft import events as e
from dq.engine.raft import recent_events, thinning
from dq.engine.raft.event_log import fold_events, load_image, read_events
from dq.engine.raft.events import Event
from dq.engine.raft.history import Difference, EventFilter, History, diff
from dq.engine.raft.image import EMPTY, Image
from dq.engine.raft.snapshots import list_snapshots, snapshot_path, write_snapshot
from dq.engine.raft.thinning import Thinner, thin
from dq.engine.segments.log import PartitionLog
from tests.clocks import ManualClock
from tests.raft.changes import ORDERS, START, STORY, event, random_events, story
from tests.raft.metadata_logs import DIRECTORY, folded, open_log, open_view, put

SECOND = 1_000_000


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def log(files: MemoryFiles) -> PartitionLog:
    made = open_log(files)
    for found in story():
        put(made, [found])
    return made


# ---------------------------------------------------------------- as of then


@pytest.mark.parametrize("snapshots", [[], [1], [10, 30], [43], list(range(1, 44))])
def test_every_past_image_can_be_made(files: MemoryFiles, log: PartitionLog, snapshots: list[int]) -> None:
    for offset in snapshots:
        write_snapshot(files, DIRECTORY, folded(story()[:offset]))
    history = History(files, log)
    for offset in range(len(STORY)):
        assert history.before(offset) == folded(story()[:offset])
        assert history.after(offset) == folded(story()[: offset + 1])
        assert history.at_time(START + offset * SECOND) == history.after(offset)
        assert history.at_time(START + offset * SECOND + 1) == history.after(offset)
        assert history.at_time(START + offset * SECOND - 1) == history.before(offset)
    assert history.latest() == history.before(len(STORY)) == folded(story())


def test_the_past_starts_at_the_nearest_snapshot_before_it(files: MemoryFiles, log: PartitionLog) -> None:
    marked = folded([event(e.TopicCreated(topic="mark", topic_id=bytes(16), partitions=1), 99)], folded(story()[:19]))
    # As if the twentieth event had made another topic: whoever uses the snapshot sees it.
    recent = folded(story()[:20]).recent
    write_snapshot(files, DIRECTORY, Image(**{**_fields(marked), "recent": recent}))
    history = History(files, log)
    assert "mark" not in history.before(19).topics
    assert "mark" in history.before(20).topics
    assert "mark" in history.before(30).topics


def _fields(image: Image) -> dict[str, object]:
    return {name: getattr(image, name) for name in Image.__slots__}  # type: ignore[attr-defined]


def test_what_is_not_in_the_log_is_out_of_range(files: MemoryFiles, log: PartitionLog) -> None:
    history = History(files, log)
    for offset in (-1, len(STORY)):
        with pytest.raises(OffsetOutOfRange):
            history.after(offset)
    with pytest.raises(OffsetOutOfRange):
        history.before(len(STORY) + 1)


def test_a_log_without_events_has_an_empty_past(files: MemoryFiles) -> None:
    files.make_directory(DIRECTORY)
    history = History(files, open_view(files))
    assert history.latest() is history.at_time(START) is history.before(0) is EMPTY


@settings(max_examples=50, deadline=None)
@given(random_events(), st.data())
def test_as_of_a_time_is_everything_before_the_first_later_event(events: list[Event], data: st.DataObject) -> None:
    files = MemoryFiles()
    log = open_log(files)
    for found in events:
        put(log, [found])
    time = data.draw(st.sampled_from(events)).time + data.draw(st.integers(-1, 1))
    count = next((number for number, found in enumerate(events) if found.time > time), len(events))
    assert History(files, log).at_time(time) == folded(events[:count])


# ---------------------------------------------------------------- what differs


def test_a_difference_says_what_was_added_removed_and_changed() -> None:
    before = folded(story()[:22])
    changes = [
        e.TopicConfigured(topic="orders", config={"retention": 5}),
        e.TopicConfigured(topic="orders", config={"compact": None}),
        e.ConsumerRegistered(topic="orders", consumer="new", positions={0: 3}),
        e.PositionsCommitted(topic="orders", consumer="billing", positions={0: 7}),
        e.ProducerRemoved(name="till-1"),
    ]
    after = folded([event(change, 5000 + number) for number, change in enumerate(changes)], before)
    found = diff(before, after)
    assert ("changed", ("topics", "orders", "config", "retention"), 3_600_000_000, 5) in found
    assert ("removed", ("topics", "orders", "config", "compact"), True, None) in found
    assert ("changed", ("topics", "orders", "consumers", "billing", "positions", "0"), 0, 7) in found
    assert [item.path[-1] for item in found if item.kind == "added"] == ["new"]
    assert [item.path for item in found if item.kind == "removed"][-1] == ("producers", "till-1")
    assert len(found) == 5
    assert str(found[0]) == "removed topics/orders/config/compact: True"


def test_the_other_way_round_added_is_removed() -> None:
    before, after = folded(story()[:10]), folded(story())
    opposite = {"added": "removed", "removed": "added", "changed": "changed"}
    turned = [Difference(opposite[kind], path, new, old) for kind, path, old, new in diff(before, after)]  # type: ignore[arg-type]
    assert sorted(turned, key=lambda item: item.path) == sorted(diff(after, before), key=lambda item: item.path)


@settings(max_examples=100)
@given(random_events(), st.data())
def test_there_is_a_difference_exactly_when_states_differ(events: list[Event], data: st.DataObject) -> None:
    from dq.engine.raft.image import state_hash

    before = folded(events[: data.draw(st.integers(0, len(events)))])
    after = folded(events)
    assert (diff(before, after) == []) == (state_hash(before) == state_hash(after))


# ---------------------------------------------------------------- choosing events


def test_events_are_chosen_by_type_topic_actor_and_time(log: PartitionLog) -> None:
    def chosen(**options: object) -> list[int]:
        return [offset for offset, _ in EventFilter(**options).select(log)]  # type: ignore[arg-type]

    by_type = [number for number, change in enumerate(STORY) if change.type == "broker_registered"]
    assert chosen(types={"broker_registered"}) == by_type
    assert chosen(topic="logs") == [6, len(STORY) - 1]
    assert chosen(actor="nobody") == []
    assert chosen(actor="ada@test") == list(range(len(STORY)))
    assert chosen(since=START + 5 * SECOND, until=START + 8 * SECOND) == [5, 6, 7]
    assert chosen(since=START + 5 * SECOND, topic="logs") == [6, len(STORY) - 1]


# ---------------------------------------------------------------- thinning


DAY = 24 * 3600 * SECOND


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (recent_events, thinning):
        monkeypatch.setattr(module, "MOST", 4)
    monkeypatch.setattr(recent_events, "FEWEST", 2)


def commit(position: int, number: int, consumer: str = "billing", partition: int = 0) -> Event:
    change = e.PositionsCommitted(topic="orders", consumer=consumer, positions={partition: position})
    return event(change, number, START + number * SECOND)


def old_log(files: MemoryFiles, events: list[Event], *, segment_bytes: int = 300) -> tuple[PartitionLog, ManualClock]:
    clock = ManualClock(START)
    log = open_log(files, clock, segment_bytes=segment_bytes)
    for found in events:
        put(log, [found])
    clock.time = START + len(events) * SECOND
    return log, clock


def offsets(log: PartitionLog) -> list[int]:
    return [offset for offset, _ in read_events(log)]


BEGIN = [
    event(e.TopicCreated(topic="orders", topic_id=ORDERS, partitions=4), 0),
    event(e.ConsumerRegistered(topic="orders", consumer="billing", positions={0: 0}), 1),
]


@pytest.mark.usefixtures("small_window")
def test_superseded_positions_go_and_everything_else_stays(files: MemoryFiles) -> None:
    events = [*BEGIN, *(commit(number, number) for number in range(2, 30))]
    log, clock = old_log(files, events)
    result = thin(log, clock, kept=10 * SECOND)  # the limit is event 20, so the border is 16
    assert offsets(log) == [0, 1, *range(15, 30)]
    assert result.records_removed == 13
    assert result.bytes_after < result.bytes_before
    assert load_image(files, log) == folded(events)
    again = open_log(files, clock)
    assert load_image(files, again) == folded(events)
    assert thin(log, clock, kept=10 * SECOND).records_removed == 0


@pytest.mark.usefixtures("small_window")
def test_nothing_young_goes(files: MemoryFiles) -> None:
    log, clock = old_log(files, [*BEGIN, *(commit(number, number) for number in range(2, 30))])
    assert thin(log, clock).records_removed == 0
    assert offsets(log) == list(range(30))


@pytest.mark.usefixtures("small_window")
def test_a_position_of_a_partition_that_nobody_set_again_stays(files: MemoryFiles) -> None:
    events = [*BEGIN, commit(9, 2, partition=3), *(commit(number, number) for number in range(3, 30))]
    log, clock = old_log(files, events)
    thin(log, clock, kept=10 * SECOND)
    assert 2 in offsets(log)
    assert fold_events(EMPTY, log).topics == folded(events).topics


@pytest.mark.usefixtures("small_window")
def test_positions_of_consumers_and_topics_that_are_gone_go(files: MemoryFiles) -> None:
    removed = event(e.ConsumerRemoved(topic="orders", consumer="billing"), 3)
    again = event(e.ConsumerRegistered(topic="orders", consumer="billing", positions={0: 0}), 4)
    deleted = event(e.TopicDeleted(topic="orders", topic_id=ORDERS), 6)
    filler = [event(e.ProducerRemoved(name="x"), number) for number in range(7, 30)]
    events = [*BEGIN, commit(5, 2), removed, again, commit(6, 5), deleted, *filler]
    log, clock = old_log(files, events)
    thin(log, clock, kept=10 * SECOND)
    assert offsets(log) == [0, 1, 3, 4, *range(6, 30)]


@pytest.mark.usefixtures("small_window")
def test_an_event_that_comes_again_behind_the_border_stays(files: MemoryFiles) -> None:
    """Without the first one, the second would be folded as if it were new, and set the position back."""
    commits = [commit(number, number) for number in range(2, 30)]
    commits[15] = commits[12]  # offset 17, behind the border of 16, is offset 14 once more
    log, clock = old_log(files, [*BEGIN, *commits])
    thin(log, clock, kept=10 * SECOND)
    assert 14 in offsets(log)
    assert fold_events(EMPTY, log).topics == folded([*BEGIN, *commits]).topics


def test_a_thinner_looks_only_when_there_is_enough_to_find(
    files: MemoryFiles, small_window: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, clock = old_log(files, [*BEGIN, *(commit(number, number) for number in range(2, 30))])
    thinner = Thinner(log, clock, kept=10 * SECOND)
    assert thinner.run().records_removed == 13
    monkeypatch.setattr(thinning, "thin", None)  # not called again
    assert thinner.run().records_removed == 0


_position_change = st.one_of(
    st.builds(
        e.PositionsCommitted,
        topic=st.just("a"),
        consumer=st.sampled_from(["x", "y"]),
        positions=st.dictionaries(st.integers(0, 2), st.integers(0, 9), max_size=2),
        member=st.none() | st.just("m1"),
    ),
    st.builds(
        e.PositionsClaimed,
        topic=st.just("a"),
        consumer=st.just("x"),
        generation=st.integers(0, 1),
        claims=st.dictionaries(st.integers(0, 1), st.sampled_from([(0, 2), (1, 3), (3, 4), (4, 9)]), max_size=2),
    ),
    st.builds(
        e.PositionsReset,
        topic=st.just("a"),
        consumer=st.just("x"),
        positions=st.dictionaries(st.integers(0, 1), st.integers(0, 9), max_size=2),
    ),
    st.just(e.ConsumerRemoved(topic="a", consumer="x")),
    st.just(e.ConsumerRegistered(topic="a", consumer="x", positions={0: 0})),
)


@st.composite
def _positions(draw: st.DrawFn) -> list[Event]:
    events = draw(random_events(max_size=2))
    for number in range(draw(st.integers(10, 50))):
        if draw(st.integers(0, 7)) == 0:
            events.append(draw(st.sampled_from(events[-6:])))
        else:
            events.append(event(draw(_position_change), 100 + number))
    return [Event(found.change, found.id, START + at * SECOND, found.actor) for at, found in enumerate(events)]


@pytest.mark.usefixtures("small_window")
@settings(max_examples=200, deadline=None)
@given(_positions(), st.integers(1, 40), st.integers(100, 2000))
def test_no_image_at_or_after_the_limit_changes(events: list[Event], kept: int, segment_bytes: int) -> None:
    files = MemoryFiles()
    log, clock = old_log(files, events, segment_bytes=max(segment_bytes, 200))
    with patch.object(thinning.logger, "error") as refused:
        thin(log, clock, kept=kept * SECOND)
    assert not refused.called
    for offset in list_snapshots(files, DIRECTORY):
        files.remove(snapshot_path(DIRECTORY, offset))  # from zero, with what is left
    limit = max(len(events) - kept, 0)
    history = History(files, log)
    for offset in range(limit, len(events) + 1):
        assert history.before(offset) == folded(events[:offset])
    gone = set(range(len(events))) - set(offsets(log))
    assert all(isinstance(events[at].change, (e.PositionsCommitted, e.PositionsClaimed)) for at in gone)
    assert all(at < limit for at in gone)
