"""A partition log on a faulty disk, and beside it a plain list of what the log has been told.

`Partition` does to both what a test asks for. Whatever crash comes in between, `reopen` knows what the log then
may hold and must hold, compares, and goes on from what it found. Every value is unique, so that a record that
comes up twice or in a wrong place is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dq.engine.errors import PartitionFailed, WriteFailed
from dq.engine.segments.batch import Record, encode
from dq.engine.segments.compaction import compact
from dq.engine.segments.config import LogConfig
from dq.engine.segments.log import PartitionLog
from dq.engine.segments.positions import MemoryIndex
from dq.engine.segments.retention import apply_retention
from tests.clocks import ManualClock
from tests.faulty_files import FaultyFiles
from tests.segments.log_tools import DIRECTORY, IDENTITY, delete_checkpoints, records


@dataclass(frozen=True)
class Stored:
    """A batch that the log was told to store."""

    base: int
    records: tuple[Record, ...]
    epoch: int
    producer: tuple[int, int, int] | None  # id, epoch, base sequence

    @property
    def end(self) -> int:
        return self.base + len(self.records)


@dataclass
class Model:
    batches: list[Stored] = field(default_factory=list)
    next_offset: int = 0  # where the next batch goes
    returned: int = 0  # the end of what `append` has returned for: must survive the death of the process
    durable: int = 0  # the end of what the log has called durable or shown to readers in "always" mode
    least_end: int | None = None  # while a truncation is under way: how far back it may go
    starts: set[int] = field(default_factory=lambda: {0})  # where the log may begin
    gone: set[int] = field(default_factory=set)  # removed by compaction
    compacted: int = 0  # the end of what compaction may have rewritten
    maybe_gone: set[int] = field(default_factory=set)  # removed by a compaction that a crash interrupted

    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch.records]

    def last_of(self, producer_id: int) -> Stored | None:
        return next(
            (batch for batch in reversed(self.batches) if batch.producer and batch.producer[0] == producer_id), None
        )

    def cut(self, end: int) -> list[Stored]:
        """Forgets what stood from an offset on, and returns it."""
        lost = [batch for batch in self.batches if batch.base >= end]
        self.batches = [batch for batch in self.batches if batch.base < end]
        self.next_offset = end
        self.returned = min(self.returned, end)
        self.durable = min(self.durable, end)
        self.gone = {offset for offset in self.gone if offset < end}
        self.maybe_gone = {offset for offset in self.maybe_gone if offset < end}
        return lost


class Partition:
    def __init__(self, files: FaultyFiles, config: LogConfig, clock: ManualClock | None = None) -> None:
        self.files = files
        self.config = config
        self.clock = clock or ManualClock()
        self.index = MemoryIndex()
        self.model = Model()
        self.unique = 0
        self.log = self._open()

    def _open(self) -> PartitionLog:
        return PartitionLog(self.files, self.clock, DIRECTORY, IDENTITY, self.config, self.index)

    # ------------------------------------------------------------ what tests do to it

    def append(
        self,
        sizes: Sequence[int],
        *,
        keys: Sequence[bytes | None] | None = None,
        tombstones: bool = False,
        timestamp: int | None = None,
        producer: int | None = None,
        epoch: int | None = None,
        batches: int = 1,
        wait: bool = True,
    ) -> None:
        """Appends batches of records of the given sizes."""
        model = self.model
        leader_epoch = max(self.log.leader_epoch, epoch or 0)
        encoded = []
        added: list[Stored] = []
        base = model.next_offset
        for _ in range(batches):
            sequence = None if producer is None else self._next_sequence(producer, added)
            values = [None if tombstones else self._unique_value(size) for size in sizes]
            stamp = self.clock.now() if timestamp is None else timestamp
            stored = Stored(
                base,
                tuple(
                    Record(base + number, stamp, keys[number] if keys else None, value, None, IDENTITY.partition)
                    for number, value in enumerate(values)
                ),
                leader_epoch,
                None if producer is None or sequence is None else (producer, 0, sequence),
            )
            encoded.append(encode(values, keys, timestamp=stamp, producer=stored.producer or (-1, -1, -1)))
            added.append(stored)
            base = stored.end
        model.batches += added
        model.next_offset = base
        failed_before = self.log.closed
        try:
            found = self.log.append(encoded, leader_epoch=leader_epoch)
        except (WriteFailed, PartitionFailed) as error:
            if isinstance(error, PartitionFailed) and not failed_before:
                raise  # nobody knows how much of it is there
            model.batches = model.batches[: len(model.batches) - len(added)]
            model.next_offset = added[0].base
            raise
        assert found == [stored.base for stored in added]
        model.returned = model.next_offset
        if wait:
            self.wait()

    def wait(self) -> None:
        end = self.log.next_offset
        self.log.wait_durable(end)
        if self.config.flush == "always":
            assert self.log.durable_end >= end
        self._note_promises()

    def retry(self, producer: int) -> None:
        """An idempotent producer that did not get its answer sends its last batch again."""
        last = self.model.last_of(producer)
        if last is None or last.producer is None:
            return
        batch = encode(
            [record.value for record in last.records],
            [record.key for record in last.records],
            timestamp=last.records[0].timestamp,
            producer=last.producer,
        )
        if last.base >= self.log.start_offset:
            assert self.log.append([batch]) == [last.base], "a batch was stored twice"
            assert self.log.next_offset == self.model.next_offset
        # Otherwise retention has taken the batch, and maybe a crash what was known of its producer.

    def _send_lost(self, lost: Sequence[Stored]) -> None:
        """Idempotent producers send again what the log has lost, and it has to be stored this time."""
        sent = set()
        for batch in lost:
            if batch.producer is None or batch.producer[0] in sent:
                continue
            sent.add(batch.producer[0])
            known = self.model.last_of(batch.producer[0])
            if known is not None and known.base < self.log.start_offset:
                continue
            base = self.model.next_offset
            again = replace(
                batch,
                base=base,
                records=tuple(record._replace(offset=base + n) for n, record in enumerate(batch.records)),
                epoch=self.log.leader_epoch,
            )
            self.model.batches.append(again)
            self.model.next_offset = again.end
            encoded = encode(
                [record.value for record in again.records],
                [record.key for record in again.records],
                timestamp=again.records[0].timestamp,
                producer=batch.producer,
            )
            assert self.log.append([encoded]) == [base], "a batch that was lost is taken for a duplicate"
            self.model.returned = again.end

    def sync(self) -> None:
        end = self.log.next_offset
        self.log.sync()
        assert self.log.durable_end >= end
        self._note_promises()

    def roll(self) -> None:
        self.log.roll()

    def checkpoint(self) -> None:
        self.log.checkpoint()
        self._note_promises()

    def truncate(self, offset: int) -> None:
        offset = min(max(offset, self.log.start_offset), self.log.next_offset)
        if offset < self.model.compacted:
            return  # only what cannot be rolled back may be compacted
        base = next((batch.base for batch in self.model.batches if batch.base <= offset < batch.end), offset)
        self.model.least_end = base
        self.log.truncate(offset)
        end = self.log.next_offset
        assert end == base, f"truncated to {end}, not to {base}"
        self.model.least_end = None
        self._send_lost(self.model.cut(end))

    def apply_retention(self) -> None:
        model = self.model
        model.starts.update(base for base in self.log.segments())
        model.starts.add(self.log.next_offset)  # of a segment that retention itself begins
        size = self.log.size()
        removed = apply_retention(self.log, self.clock)
        model.starts = {start for start in model.starts if start <= self.log.start_offset}
        assert all(base < self.log.start_offset for base in removed)
        if self.config.retention_bytes is not None and self.config.retention_age is None:
            assert self.log.size() >= min(size, self.config.retention_bytes)

    def compact(self) -> None:
        model = self.model
        sealed_end = self.log.segments()[-1] if self.log.segments() else 0
        present = [
            record
            for record in model.records()
            if self.log.start_offset <= record.offset and record.offset not in model.gone
        ]
        latest = {record.key: record.offset for record in present if record.key is not None}
        removed = {
            record.offset
            for record in present
            if record.offset < sealed_end
            and record.key is not None
            and (
                latest[record.key] != record.offset
                or (record.value is None and record.timestamp < self.clock.now() - self.config.tombstone_age)
            )
        }
        model.maybe_gone |= removed
        model.compacted = max(model.compacted, sealed_end)
        result = compact(self.log, self.clock)
        assert result.records_removed == len(removed)
        model.maybe_gone -= removed
        model.gone |= removed
        self._note_promises()

    def close(self) -> None:
        self.log.close()
        self._note_promises()

    # ------------------------------------------------------------ crashes

    def reopen_cleanly(self) -> None:
        self.close()
        end = self.log.next_offset
        self.files.kill()
        self.log = self._open()
        assert self.log.recovered.scanned_bytes == 0
        assert self.log.next_offset == end
        self._recovered(least=end)

    def kill(self) -> None:
        self.files.kill()

    def power_loss(self) -> None:
        self._note_promises()
        self.files.power_loss()
        self.model.returned = min(self.model.returned, self.model.durable)
        if self.config.flush == "os" and self.model.durable <= min(self.model.starts):
            # Nothing was promised, so the first segments may be gone and later ones not.
            self.model.starts.update(batch.base for batch in self.model.batches)
            self.model.starts.add(self.model.next_offset)

    def failed(self) -> None:
        """A sync has failed: what was not acknowledged yet may be dropped, and never comes back half."""
        if self.config.flush == "always":
            self.model.returned = self.model.durable

    def delete_checkpoints(self) -> None:
        delete_checkpoints(self.files)

    def forget_index(self) -> None:
        self.index = MemoryIndex()

    def reopen(self) -> None:
        """After a crash: opens the log and checks it against everything that was promised."""
        self.log = self._open()
        self._recovered(least=max(self.model.returned, self.model.durable))

    def _recovered(self, least: int) -> None:
        log, model = self.log, self.model
        assert log.recovered.damage == (), log.recovered.damage
        if model.least_end is not None:
            least = min(least, model.least_end)
        end = log.next_offset
        assert least <= end <= model.next_offset, f"the log ends at {end}, not from {least} to {model.next_offset}"
        boundaries = {0, *(batch.base for batch in model.batches), *(batch.end for batch in model.batches)}
        assert end in boundaries, f"the log ends at {end}, inside a batch"
        assert log.start_offset in model.starts, f"the log starts at {log.start_offset}, not at one of {model.starts}"
        model.least_end = None
        lost = model.cut(end)
        model.returned = end
        model.starts = {start for start in model.starts if start <= log.start_offset}
        self._note_promises()
        self.check()
        self._send_lost(lost)

    # ------------------------------------------------------------ what must hold at any time

    def _note_promises(self) -> None:
        promised = self.log.durable_end
        if self.config.flush == "always":
            promised = max(promised, self.log.visible_end())
        self.model.durable = max(self.model.durable, min(promised, self.model.next_offset))

    def check(self) -> None:
        """The log shows exactly what it was told, up to where readers may see."""
        log, model = self.log, self.model
        assert log.next_offset == model.next_offset
        visible = log.visible_end()
        assert visible <= log.next_offset
        if self.config.flush != "always":
            assert visible == log.next_offset
        found = records(log)
        present = {record.offset for record in found}
        model.gone |= model.maybe_gone - present - set(range(log.start_offset)) - set(range(visible, log.next_offset))
        model.maybe_gone -= model.gone
        model.maybe_gone = {offset for offset in model.maybe_gone if offset >= visible}
        assert found == self.expected(log.start_offset, visible)
        self._check_epochs()

    def expected(self, start: int, end: int) -> list[Record]:
        gone = self.model.gone
        return [record for record in self.model.records() if start <= record.offset < end and record.offset not in gone]

    def _check_epochs(self) -> None:
        found = self.log.epoch_starts()
        # Retention that fails to remove a file has forgotten its epochs, and the next opening finds the file.
        start = max(self.log.start_offset, found[0][1] if found else 0)
        pairs: list[tuple[int, int]] = []
        for batch in self.model.batches:
            if batch.end > start and (not pairs or pairs[-1][0] != batch.epoch):
                pairs.append((batch.epoch, max(batch.base, start)))
        if pairs:
            # An epoch of which retention took all batches may be known from a checkpoint.
            assert found[-len(pairs) :] == pairs or found[-len(pairs) + 1 :] == pairs[1:], (found, pairs)

    def check_read_from(self, offset: int) -> None:
        visible = self.log.visible_end()
        offset = min(max(offset, self.log.start_offset), visible)
        assert records(self.log, offset) == self.expected(offset, visible)

    def check_time(self, timestamp: int) -> None:
        visible = self.log.visible_end()
        candidates = self.expected(self.log.start_offset, visible)
        first = next((record.offset for record in candidates if record.timestamp >= timestamp), visible)
        assert self.log.offset_at_time(timestamp) == first

    # ------------------------------------------------------------ inside

    def _unique_value(self, size: int) -> bytes:
        self.unique += 1
        return (b"%d " % self.unique).ljust(size, b".")

    def _next_sequence(self, producer: int, added: Sequence[Stored]) -> int:
        before = [batch for batch in added if batch.producer and batch.producer[0] == producer]
        last = before[-1] if before else self.model.last_of(producer)
        if last is None or last.producer is None:
            return 0
        return last.producer[2] + len(last.records)
