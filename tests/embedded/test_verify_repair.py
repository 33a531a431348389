"""Verifying and repairing data directories: what is damaged is found and named, and a repair loses nothing else."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import dq
from dq.engine.embedded.repair import repair
from dq.engine.embedded.verify import Finding, PartitionReport, verify
from dq.engine.files import FileSystem, OsFiles, read_file
from dq.engine.index.environment import IndexEnvironment
from dq.engine.raft.event_log import METADATA_TOPIC_ID
from dq.engine.segments.batch import encode, pack_header
from dq.engine.segments.config import LogConfig
from dq.engine.segments.log import Identity, PartitionLog
from dq.engine.segments.positions import IndexEntry, MemoryIndex
from dq.engine.segments.recovery import list_segments
from dq.engine.segments.segment import SEGMENT_HEADER_SIZE, Segment, file_name
from tests.clocks import ManualClock
from tests.faulty_files import CrashPoint, FaultyFiles, seed_in_failures

DATA = "/data"
CLOCK = ManualClock()


def value_of(number: int) -> bytes:
    return b"value %06d " % number + b"." * 90


def build(files: FileSystem | None = None, path: str = DATA, *, records: int = 60, flush: str = "always") -> str:
    """A closed log of numbered records, one a batch, in several segments; returns the directory of its partition."""
    with dq.open(path, files=files, clock=CLOCK, flush=flush) as log:  # type: ignore[arg-type]
        topic = log.create_topic("orders", segment_bytes=4096)
        for number in range(records):
            topic.append(value_of(number), timestamp=CLOCK.now() + number)
        return f"{path}/topics/{topic.directory_name}/0"


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def partition(files: FaultyFiles) -> str:
    return build(files)


def orders(files: FileSystem, path: str = DATA) -> PartitionReport:
    [report] = [item for item in verify(path, files=files).partitions if item.topic == "orders"]
    return report


def only_finding(files: FileSystem, path: str = DATA) -> Finding:
    [finding] = verify(path, files=files).findings
    return finding


def readable(files: FileSystem | None, path: str = DATA, *, read_only: bool = True) -> dict[int, bytes | None]:
    """Every record that a reader gets, going on behind damage."""
    found: dict[int, bytes | None] = {}
    with dq.open(path, read_only=read_only, files=files, clock=CLOCK) as log:
        topic = log.topic("orders")
        start: int | None = topic.log(0).start_offset
        while start is not None:
            try:
                for record in topic.read(0, start):
                    found[record.offset] = record.value
                return found
            except dq.Corruption as damage:
                start = damage.resume_offset
            except dq.OffsetOutOfRange:
                return found
    return found


def bases(files: FileSystem, partition: str) -> tuple[int, ...]:
    return list_segments(files, partition)


def segment_file(partition: str, base: int) -> str:
    return f"{partition}/{file_name(base)}"


def places(files: FileSystem, partition: str, base: int) -> list[tuple[int, int, int]]:
    """(position, size, offset) of every batch in a segment."""
    segment = Segment.open(files, partition, base)
    try:
        return [(position, header.size, header.base_offset) for position, header in segment.headers()]
    finally:
        segment.close()


def content(files: FileSystem, path: str) -> bytes:
    data = read_file(files, path)
    assert data is not None
    return data


def overwrite(files: FileSystem, path: str, data: bytes) -> None:
    """Changes a file behind everybody's back, on the disk as well."""
    file = files.open(path, write=True, create=True)
    file.truncate(0)
    file.write([data], 0)
    file.sync()
    file.close()
    files.sync_directory(os.path.dirname(path))


def tree(files: FaultyFiles) -> dict[str, bytes]:
    return {path: bytes(node.data) for path, node in files._files.items() if not path.endswith("/lock")}


def open_partition(files: FileSystem, partition: str) -> PartitionLog:
    """The log of the partition, to put in what no topic would."""
    segment = Segment.open(files, partition, bases(files, partition)[0])
    header = segment.read_header()
    segment.close()
    identity = Identity(header.topic_id, header.partition)
    return PartitionLog(files, CLOCK, partition, identity, LogConfig(segment_bytes=4096), MemoryIndex())


# ---------------------------------------------------------------- verify


def test_a_sound_directory_has_no_findings_and_everything_in_it_is_counted(files: FaultyFiles, partition: str) -> None:
    seen: list[tuple[int, int]] = []
    report = verify(DATA, files=files, progress=lambda done, total: seen.append((done, total)))
    assert report.ok
    metadata, topic = report.partitions
    assert (metadata.topic, metadata.records) == ("__metadata", 1)
    assert (topic.topic, topic.partition, topic.batches, topic.records) == ("orders", 0, 60, 60)
    assert topic.segments == len(bases(files, partition)) > 2
    assert topic.bytes == sum(len(content(files, segment_file(partition, base))) for base in bases(files, partition))
    assert (topic.start_offset, topic.end_offset) == (0, 60)
    total = topic.bytes + metadata.bytes
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)


def test_verify_changes_nothing(files: FaultyFiles, partition: str) -> None:
    files.flip(segment_file(partition, 0), 8 * 300)
    before = tree(files)
    verify(DATA, files=files)
    assert tree(files) == before


def test_a_directory_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(dq.NotADataDirectory):
        verify(tmp_path)


@pytest.mark.parametrize("part", ["header", "body"])
def test_a_flipped_bit_is_found_and_only_its_batch_is_lost(files: FaultyFiles, partition: str, part: str) -> None:
    base = bases(files, partition)[1]
    position, size, offset = places(files, partition, base)[3]
    files.flip(segment_file(partition, base), 8 * (position + (20 if part == "header" else 120)))
    finding = only_finding(files)
    assert finding.kind == "damage"
    assert finding.file == segment_file(partition, base)
    assert (finding.position, finding.end) == (position, position + size)
    assert (finding.offset, finding.next_offset) == (offset, offset + 1)
    assert f"the CRC of the {'batch header' if part == 'header' else 'body'} does not match" in finding.reason
    assert orders(files).records == 59


def test_several_places_of_damage_are_all_found(files: FaultyFiles, partition: str) -> None:
    for base in bases(files, partition)[:3]:
        for position, _, _ in places(files, partition, base)[2:8:3]:
            files.flip(segment_file(partition, base), 8 * (position + 100))
    assert len(verify(DATA, files=files).findings) == 6


def test_a_damaged_segment_header_loses_no_records(files: FaultyFiles, partition: str) -> None:
    base = bases(files, partition)[1]
    files.flip(segment_file(partition, base), 8 * 20)
    finding = only_finding(files)
    assert (finding.kind, finding.position, finding.offset, finding.next_offset) == ("segment header", 0, base, base)
    assert orders(files).records == 60


def test_a_missing_segment_is_a_gap(files: FaultyFiles, partition: str) -> None:
    _, second, third, *_ = bases(files, partition)
    files.remove(segment_file(partition, second))
    finding = only_finding(files)
    assert (finding.kind, finding.file) == ("gap", segment_file(partition, third))
    assert (finding.offset, finding.next_offset) == (second, third)


@pytest.mark.parametrize("how", ["the last segment is gone", "the last batches are gone", "all segments are gone"])
def test_records_that_were_there_before_are_missed_at_the_end(files: FaultyFiles, partition: str, how: str) -> None:
    last = bases(files, partition)[-1]
    missing_from = last
    if how == "the last segment is gone":
        files.remove(segment_file(partition, last))
    elif how == "the last batches are gone":
        position, _, missing_from = places(files, partition, last)[-2]
        files.cut(segment_file(partition, last), position)
    else:
        missing_from = 0
        for base in bases(files, partition):
            files.remove(segment_file(partition, base))
    finding = only_finding(files)
    assert (finding.kind, finding.offset, finding.next_offset) == ("gap", missing_from, 60)


def test_a_segment_of_another_partition_is_found(files: FaultyFiles, partition: str) -> None:
    with dq.open(DATA, files=files, clock=CLOCK) as log:
        other = log.create_topic("other", segment_bytes=4096)
        for number in range(60):
            other.append(value_of(number))
        stranger = f"{DATA}/topics/{other.directory_name}/0"
    base = bases(files, partition)[1]
    overwrite(files, segment_file(partition, base), content(files, segment_file(stranger, base)))
    finding = only_finding(files)
    assert finding.kind == "misplaced"
    assert "belongs to the topic with the id" in finding.reason


def test_a_segment_with_another_name_than_it_says_is_found(files: FaultyFiles, partition: str) -> None:
    last = bases(files, partition)[-1]
    files.rename(segment_file(partition, last), segment_file(partition, last + 1))
    assert {"segment header"} <= {finding.kind for finding in verify(DATA, files=files).findings}


def test_two_segments_with_the_same_offsets_are_found(files: FaultyFiles, partition: str) -> None:
    first, second, *_ = bases(files, partition)
    data = content(files, segment_file(partition, second))
    position, size, _ = places(files, partition, second)[0]
    longer = content(files, segment_file(partition, first)) + data[position : position + size]
    overwrite(files, segment_file(partition, first), longer)
    assert verify(DATA, files=files).findings[0].kind == "damage"  # the first one does not belong there
    assert readable(files)[second] == value_of(second)


def test_bytes_behind_the_last_batch_of_a_sealed_segment_are_damage(files: FaultyFiles, partition: str) -> None:
    path = segment_file(partition, 0)
    overwrite(files, path, content(files, path) + b"junk" * 50)
    finding = only_finding(files)
    assert (finding.kind, finding.end - finding.position) == ("damage", 200)
    assert finding.offset == finding.next_offset


def test_a_batch_inside_a_record_is_not_taken_for_one_of_the_log(files: FaultyFiles) -> None:
    inner = encode([b"an inner record"], base_offset=3).to_bytes()
    with dq.open(DATA, files=files, clock=CLOCK) as log:
        topic = log.create_topic("orders")
        for number in range(8):
            topic.append(b"%d" % number + inner)
        partition = f"{DATA}/topics/{topic.directory_name}/0"
    position, size, _ = places(files, partition, 0)[1]
    for flipped in (position + 20, position + 110):  # its header, its body
        damaged = files.copy()
        damaged.flip(segment_file(partition, 0), 8 * flipped)
        finding = only_finding(damaged)
        assert (finding.position, finding.end, finding.offset, finding.next_offset) == (position, position + size, 1, 2)


def test_a_body_that_is_intact_but_makes_no_sense_is_damage(files: FaultyFiles, partition: str) -> None:
    log = open_partition(files, partition)
    batch = encode([b"0123456789"], timestamp=CLOCK.now())
    body = bytes(batch.body)[:-1] + b"\xc1"
    header = batch.header._replace(body_crc=_crc(body))
    log.append([batch._replace(header=header, body=body)])
    log.append([batch])
    log.close()
    finding = only_finding(files)
    assert (finding.kind, finding.offset, finding.next_offset) == ("damage", 60, 61)
    assert orders(files).records == 61


def _crc(data: bytes) -> int:
    from dq.engine.segments.crc import crc32c

    return crc32c(data)


def test_a_header_with_wrong_timestamps_or_a_falling_epoch_is_found(files: FaultyFiles, partition: str) -> None:
    log = open_partition(files, partition)
    batch = encode([b"a", b"b"], timestamps=[CLOCK.now(), CLOCK.now() + 5])
    log.append([batch._replace(header=batch.header._replace(last_timestamp=CLOCK.now() + 99))], leader_epoch=7)
    log.append([batch])
    log.close()
    last = bases(files, partition)[-1]
    position, _, offset = places(files, partition, last)[-1]
    segment = Segment.open(files, partition, last, write=True)
    _, header = list(segment.headers())[-1]
    segment.write([pack_header(header._replace(leader_epoch=3))], position)
    segment.sync()
    segment.close()
    timestamps, epoch = verify(DATA, files=files).findings
    assert (timestamps.kind, timestamps.offset) == ("batch header", 60)
    assert "timestamps" in timestamps.reason
    assert (epoch.kind, epoch.offset) == ("batch header", offset)
    assert "leader epoch 3 stands behind 7" in epoch.reason


def test_a_record_of_the_metadata_log_that_is_no_event_is_found(files: FaultyFiles, partition: str) -> None:
    path = f"{DATA}/topics/__metadata-00000000/0"
    log = PartitionLog(files, CLOCK, path, Identity(METADATA_TOPIC_ID, 0), LogConfig(), MemoryIndex())
    log.append([encode([b"not an event"])])
    log.close()
    finding = only_finding(files)
    assert (finding.kind, finding.offset) == ("event", 1)


def test_topics_that_the_metadata_does_not_know_are_verified_too(files: FaultyFiles, partition: str) -> None:
    copy = partition.replace("orders-", "found-again-")
    for base in bases(files, partition):
        files.make_directory(copy)
        overwrite(files, segment_file(copy, base), content(files, segment_file(partition, base)))
    report = verify(DATA, files=files)
    assert report.ok
    assert [(item.topic, item.records) for item in report.partitions if item.topic == "found-again"] == [
        ("found-again", 60)
    ]


# ---------------------------------------------------------------- torn tails, and writers at work


def test_a_torn_tail_is_not_damage(files: FaultyFiles, partition: str) -> None:
    last = bases(files, partition)[-1]
    path = segment_file(partition, last)
    data = content(files, path)
    overwrite(files, path, data + data[SEGMENT_HEADER_SIZE:][:150])
    report = orders(files)
    assert report.findings == ()
    assert report.torn_tail is not None
    assert (report.torn_tail.file, report.torn_tail.position, report.torn_tail.bytes) == (path, len(data), 150)
    assert report.torn_tail.offset == 60
    with dq.open(DATA, files=files, clock=CLOCK) as log:
        assert log.topic("orders").append(b"next").offset == 60
    assert orders(files).torn_tail is None


def test_a_segment_that_was_being_created_is_a_torn_tail(files: FaultyFiles, partition: str) -> None:
    overwrite(files, segment_file(partition, 60), b"DQSEG")
    report = orders(files)
    assert report.findings == ()
    assert report.torn_tail is not None
    assert report.torn_tail.bytes == 5


def test_damage_at_the_end_of_what_was_acknowledged_is_no_torn_tail(files: FaultyFiles, partition: str) -> None:
    last = bases(files, partition)[-1]
    position, size, offset = places(files, partition, last)[-1]
    files.flip(segment_file(partition, last), 8 * (position + 10))
    finding = only_finding(files)
    assert (finding.kind, finding.offset, finding.next_offset, finding.end) == ("damage", offset, 60, position + size)


@pytest.mark.parametrize("seed", range(12))
def test_what_a_power_loss_leaves_is_at_most_a_torn_tail(seed: int) -> None:
    with seed_in_failures(seed):
        files = FaultyFiles(seed, page=512)
        log = dq.open(DATA, files=files, clock=CLOCK, flush="os" if seed % 2 else "always")
        topic = log.create_topic("orders", segment_bytes=4096)
        for number in range(50):
            topic.submit([value_of(number)])
        files.power_loss()
        assert verify(DATA, files=files).findings == []


def test_nothing_above_the_visible_end_of_a_running_writer_is_looked_at(files: FaultyFiles, partition: str) -> None:
    with dq.open(DATA, files=files, clock=CLOCK) as log:
        topic = log.topic("orders")
        topic.append(b"visible")
        path = segment_file(partition, bases(files, partition)[-1])
        file = files.open(path, write=True)
        size = file.size()
        file.write([b"a batch that is on its way"], size)
        report = orders(files)
        assert (report.findings, report.torn_tail, report.end_offset) == ((), None, 61)
        file.truncate(size)
        file.close()


def test_verifying_beside_a_writer_that_rolls_and_removes_segments_finds_nothing(tmp_path: Path) -> None:
    with dq.open(tmp_path, flush="os") as log:
        topic = log.create_topic("orders", segment_bytes=4096, retention_bytes=20_000)
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                topic.append_many([value_of(number) for number in range(5)])
                topic.maintain()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(30):
                report = verify(tmp_path)
                assert report.findings == []
                assert all(item.torn_tail is None for item in report.partitions)
        finally:
            stop.set()
            writer.join()


# ---------------------------------------------------------------- the index


def test_an_index_entry_that_points_elsewhere_is_found_and_forgotten(tmp_path: Path) -> None:
    partition = build(path=str(tmp_path))
    files = OsFiles()
    base = bases(files, partition)[1]
    segment = Segment.open(files, partition, base)
    topic_id = segment.read_header().topic_id
    segment.close()
    assert verify(tmp_path).ok
    index = IndexEnvironment(f"{tmp_path}/index", files.boot_id)
    for number in range(20):  # fewer are kept in memory
        index.partition(topic_id, 0).add(IndexEntry(base + number, base, 1234 + number, 0))
    index.close()
    findings = verify(tmp_path).findings
    assert {finding.kind for finding in findings} == {"index"}
    assert {finding.offset for finding in findings} >= {base, base + 1}
    report = repair(tmp_path, apply=True)
    assert {step.action for step in report.steps} == {"forget"}
    assert report.lost_offsets == 0
    assert verify(tmp_path).ok
    assert len(readable(None, str(tmp_path))) == 60


# ---------------------------------------------------------------- repair


def test_a_sound_directory_needs_no_repair(files: FaultyFiles, partition: str) -> None:
    before = tree(files)
    report = repair(DATA, files=files, apply=True, clock=CLOCK)
    assert (report.steps, report.left_alone, report.kept_in) == ((), (), None)
    assert tree(files) == before


def test_a_dry_run_says_what_would_be_lost_and_changes_nothing(files: FaultyFiles, partition: str) -> None:
    base = bases(files, partition)[1]
    position, size, offset = places(files, partition, base)[3]
    files.flip(segment_file(partition, base), 8 * (position + 100))
    before = tree(files)
    report = repair(DATA, files=files)
    assert tree(files) == before
    [step] = report.steps
    assert not report.applied
    assert (step.action, step.topic, step.partition) == ("replace", "orders", 0)
    assert (step.file, step.position, step.bytes) == (segment_file(partition, base), position, size)
    assert (step.offset, step.next_offset, report.lost_offsets) == (offset, offset + 1, 1)


def test_damage_is_replaced_and_kept_and_everything_else_stays(files: FaultyFiles, partition: str) -> None:
    base = bases(files, partition)[1]
    position, size, offset = places(files, partition, base)[3]
    files.flip(segment_file(partition, base), 8 * (position + 100))
    damaged = content(files, segment_file(partition, base))[position : position + size]
    report = repair(DATA, files=files, apply=True, clock=CLOCK)
    kept = f"{report.kept_in}/{os.path.basename(os.path.dirname(partition))}/0/{file_name(base)}@{position}.bin"
    assert content(files, kept) == damaged
    assert verify(DATA, files=files).ok
    assert readable(files) == {number: value_of(number) for number in range(60) if number != offset}
    with dq.open(DATA, files=files, clock=CLOCK) as log:
        topic = log.topic("orders")
        assert [record.offset for record in topic.read()] == [number for number in range(60) if number != offset]
        assert topic.append(b"next").offset == 60


def test_a_repair_is_not_needed_twice(files: FaultyFiles, partition: str) -> None:
    for base in bases(files, partition):
        files.flip(segment_file(partition, base), 8 * 300)
    assert repair(DATA, files=files, apply=True, clock=CLOCK).steps
    before = tree(files)
    assert not repair(DATA, files=files, apply=True, clock=CLOCK).steps
    assert tree(files) == before


def test_a_repair_waits_for_nobody(files: FaultyFiles, partition: str) -> None:
    files.flip(segment_file(partition, 0), 8 * 300)
    with dq.open(DATA, files=files, clock=CLOCK):
        assert repair(DATA, files=files).steps  # looking is allowed
        with pytest.raises(dq.DirectoryLocked):
            repair(DATA, files=files, apply=True)


def test_a_missing_segment_becomes_a_segment_without_records(files: FaultyFiles, partition: str) -> None:
    _, second, third, *_ = bases(files, partition)
    files.remove(segment_file(partition, second))
    report = repair(DATA, files=files, apply=True, clock=CLOCK)
    assert [step.action for step in report.steps] == ["fill"]
    assert report.lost_offsets == third - second
    assert second in bases(files, partition)
    assert verify(DATA, files=files).ok
    with dq.open(DATA, files=files, clock=CLOCK) as log:
        found = {record.offset for record in log.topic("orders").read()}
    assert found == {number for number in range(60) if not second <= number < third}


@pytest.mark.parametrize("how", ["damaged", "cut", "removed"])
def test_offsets_that_are_lost_at_the_end_are_not_given_out_again(files: FaultyFiles, partition: str, how: str) -> None:
    last = bases(files, partition)[-1]
    path = segment_file(partition, last)
    position, _, _ = places(files, partition, last)[-1]
    if how == "damaged":
        files.flip(path, 8 * (position + 100))
    elif how == "cut":
        files.cut(path, position)
    else:
        for base in bases(files, partition):
            files.remove(segment_file(partition, base))
    repair(DATA, files=files, apply=True, clock=CLOCK)
    assert verify(DATA, files=files).ok
    with dq.open(DATA, files=files, clock=CLOCK) as log:
        assert log.topic("orders").append(b"next").offset == 60


def test_a_log_whose_first_segment_is_lost_altogether_is_repaired(files: FaultyFiles, partition: str) -> None:
    first, second, *_ = bases(files, partition)
    overwrite(files, segment_file(partition, first), b"")
    files.flip(segment_file(partition, second), 8 * 20)
    assert repair(DATA, files=files, apply=True, clock=CLOCK).lost_offsets == second
    assert verify(DATA, files=files).ok
    assert sorted(readable(files)) == list(range(second, 60))
    with dq.open(DATA, read_only=True, files=files) as log:
        assert log.topic("orders").describe().records == 60


def test_headers_are_made_anew_without_losing_a_record(files: FaultyFiles, partition: str) -> None:
    for base in bases(files, partition):
        files.flip(segment_file(partition, base), 8 * 20)
    report = repair(DATA, files=files, apply=True, clock=CLOCK)
    assert {step.action for step in report.steps} == {"correct"}
    assert report.lost_offsets == 0
    assert verify(DATA, files=files).ok
    assert len(readable(files)) == 60


def test_a_batch_header_that_is_wrong_is_corrected(files: FaultyFiles, partition: str) -> None:
    test_a_header_with_wrong_timestamps_or_a_falling_epoch_is_found(files, partition)
    report = repair(DATA, files=files, apply=True, clock=CLOCK)
    assert [step.action for step in report.steps] == ["correct", "correct"]
    assert verify(DATA, files=files).ok
    assert len(readable(files)) == 64


def test_a_torn_tail_is_kept_when_there_is_damage_to_repair_as_well(files: FaultyFiles, partition: str) -> None:
    files.flip(segment_file(partition, 0), 8 * 300)
    last = bases(files, partition)[-1]
    path = segment_file(partition, last)
    overwrite(files, path, content(files, path) + b"torn")
    report = repair(DATA, files=files, apply=True, clock=CLOCK)
    assert [step.action for step in report.steps] == ["replace", "cut"]
    kept = [name for name in files._files if name.startswith(f"{report.kept_in}/") and f"{last:020d}" in name]
    assert [content(files, name) for name in kept] == [b"torn"]
    assert orders(files).torn_tail is None


def test_a_file_with_an_absurd_name_is_left_alone(files: FaultyFiles, partition: str) -> None:
    path = segment_file(partition, 1 << 62)
    overwrite(files, path, content(files, segment_file(partition, 0)))
    before = tree(files)
    report = repair(DATA, files=files, apply=True, clock=CLOCK)
    assert [finding.kind for finding in report.left_alone if finding.offset == 60] == ["gap"]
    assert tree(files) == before


def test_what_a_person_has_to_decide_about_is_left_alone(files: FaultyFiles, partition: str) -> None:
    test_a_segment_of_another_partition_is_found(files, partition)
    before = tree(files)
    report = repair(DATA, files=files, apply=True, clock=CLOCK)
    assert [finding.kind for finding in report.left_alone] == ["misplaced"]
    assert tree(files) == before


def test_the_metadata_log_is_repaired_like_any_other(files: FaultyFiles, partition: str) -> None:
    with dq.open(DATA, files=files, clock=CLOCK) as log:
        log.create_topic("second")
        log.create_topic("third")
    path = f"{DATA}/topics/__metadata-00000000/0"
    position, _, _ = places(files, path, 0)[1]
    files.flip(segment_file(path, 0), 8 * (position + 100))
    repair(DATA, files=files, apply=True, clock=CLOCK)
    assert verify(DATA, files=files).ok
    with dq.open(DATA, files=files, clock=CLOCK) as log:
        assert {"orders", "third"} <= {topic.name for topic in log.topics()}
        log.create_topic("fourth")


# ---------------------------------------------------------------- killed at any point


def damage_in_several_ways(files: FaultyFiles, partition: str) -> None:
    first, second, third, fourth, *_ = bases(files, partition)
    files.flip(segment_file(partition, first), 8 * 300)
    files.remove(segment_file(partition, second))
    files.sync_directory(partition)
    files.flip(segment_file(partition, third), 8 * 20)
    files.flip(segment_file(partition, fourth), 8 * 200)


@pytest.mark.parametrize("after", ["kill", "power_loss"])
@pytest.mark.parametrize("writer_first", [False, True], ids=["", "a writer opens it in between"])
def test_a_repair_that_was_stopped_anywhere_can_be_run_again(after: str, writer_first: bool) -> None:
    original = FaultyFiles(1)
    partition = build(original)
    damage_in_several_ways(original, partition)
    expected = readable(original)
    call = 0
    while True:
        call += 1
        files = original.copy()
        files.crash_at(call)
        try:
            repair(DATA, files=files, apply=True, clock=CLOCK)
            break
        except CrashPoint:
            pass
        getattr(files, after)()
        if writer_first:
            assert readable(files, read_only=False) == expected, f"after call {call}"
        repair(DATA, files=files, apply=True, clock=CLOCK)
        assert verify(DATA, files=files).ok, f"after call {call}"
        assert readable(files, read_only=False) == expected, f"after call {call}"
    assert call > 20


def test_a_disk_that_is_full_leaves_everything_as_it_was(files: FaultyFiles, partition: str) -> None:
    damage_in_several_ways(files, partition)
    expected = readable(files)
    for free in (0, 100, 1000, 5000):
        files.fill_up(free)
        with pytest.raises((OSError, dq.DQError)):
            repair(DATA, files=files, apply=True, clock=CLOCK)
        assert readable(files) == expected
    files.fill_up(None)
    repair(DATA, files=files, apply=True, clock=CLOCK)
    assert readable(files) == expected
    assert verify(DATA, files=files).ok


# ---------------------------------------------------------------- any damage

Damage = Callable[[bytearray, random.Random], None]


def _zero(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    end = min(start + chance.randrange(1, 600), len(data))
    data[start:end] = bytes(end - start)


def _flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _insert(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    data[start:start] = chance.randbytes(chance.randrange(1, 300))


def _delete(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(data))
    del data[start : start + chance.randrange(1, 600)]


def _cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def _extend(data: bytearray, chance: random.Random) -> None:
    data += chance.randbytes(100)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happened_to_the_files_a_repair_makes_them_sound_and_loses_nothing_readable(seed: int) -> None:
    with seed_in_failures(seed):
        chance = random.Random(seed)
        files = FaultyFiles(seed)
        partition = build(files, flush=chance.choice(["always", "os"]))
        for _ in range(chance.randrange(1, 5)):
            path = segment_file(partition, chance.choice(bases(files, partition)))
            data = bytearray(content(files, path))
            if data:
                damage: Damage = chance.choice([_zero, _flip, _flip, _insert, _delete, _cut, _extend])
                damage(data, chance)
                overwrite(files, path, bytes(data))
        before = readable(files)
        repair(DATA, files=files, apply=True, clock=CLOCK)
        assert verify(DATA, files=files).ok
        after = readable(files)
        assert set(before) <= set(after)
        assert all(value == value_of(offset) for offset, value in after.items())
        assert not repair(DATA, files=files, apply=True, clock=CLOCK).steps
        with dq.open(DATA, files=files, clock=CLOCK) as log:
            assert log.topic("orders").append(b"next").offset == 60
