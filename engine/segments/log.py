"""The partition log: append, sync, read, roll, truncate, and what retention and compaction need of it.

One object owns the files of one partition in the process that writes it. `append` puts batches into the page
cache, `wait_durable` makes them durable together with everyone else's, and readers see what can no longer be
rolled back: durable batches with flush="always", written ones otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dq.engine.clock import Clock
from dq.engine.errors import (
    Closed,
    Corruption,
    DiskFull,
    DQError,
    InvalidInput,
    OffsetOutOfRange,
    PartitionFailed,
    WriteFailed,
)
from dq.engine.files import Buffer, FileSystem
from dq.engine.segments.batch import AFTER_SYNC, BatchHeader, EncodedBatch, pack_header
from dq.engine.segments.checkpoint import (
    Checkpoint,
    encode_checkpoint,
    remove_checkpoints,
    remove_unsynced_checkpoint,
    write_checkpoint,
)
from dq.engine.segments.combiner import Combiner
from dq.engine.segments.config import LogConfig
from dq.engine.segments.group_commit import GroupCommit
from dq.engine.segments.growth import Growth
from dq.engine.segments.positions import IndexFeed, PositionIndex
from dq.engine.segments.producers import ProducerStates
from dq.engine.segments.reader import Cursor, find_position, offset_at_time, open_segment_of
from dq.engine.segments.recovery import Recovered, recover
from dq.engine.segments.segment import (
    CHUNK,
    SEGMENT_HEADER_SIZE,
    Segment,
    SegmentHeader,
    file_name,
)
from dq.engine.segments.stamping import Append, Stamped, Stamping
from dq.engine.segments.visibility import Visibility

# More than ever waits for a sync, unless the log was written with flush="os".
MOST_REWRITTEN = 256 << 20

logger = logging.getLogger("dq.engine")


class Identity(NamedTuple):
    """Which partition a log belongs to; written into every segment."""

    topic_id: bytes
    partition: int


class PartitionLog:
    """Safe to use from many threads. Readers never wait for the writer."""

    def __init__(
        self,
        files: FileSystem,
        clock: Clock,
        directory: str,
        identity: Identity,
        config: LogConfig,
        index: PositionIndex,
        growth: Growth | None = None,
    ) -> None:
        self.files = files
        self.directory = directory
        self.index = index
        self.identity = identity
        self.config = config
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below; held for the time of one write, never for a sync
        self.growth = growth or Growth()
        self._visibility = Visibility(files, directory, self.growth, owned=config.publish == "owner")
        self.on_roll: Callable[[], object] = lambda: None  # called after a segment became full
        self._rolled = False
        self._active: Segment | None = None
        self._unsynced: list[int] = []  # base offsets of the segments that were written since the last sync
        self._names_unsynced = False  # a segment was created without syncing the directory
        self._writing = False  # there may be more in the active segment than is noted
        self._checkpoint_wanted = False
        self._failed: PartitionFailed | None = None
        self._closed = False
        self._closed_because: Callable[[], DQError] = lambda: Closed(f"{directory} is closed")
        self._feed = IndexFeed(index)
        self._appends: Combiner[Append] = Combiner(self._append_all)
        files.make_directory(directory)
        self._restore(recover(files, directory, index))

    def _restore(self, found: Recovered) -> None:
        for damage in found.damage:
            logger.error("%s; reading goes on at offset %s", damage, damage.resume_offset)
        if found.lost_offsets:
            logger.error("%s: %d offsets that were stored before are gone", self.directory, found.lost_offsets)
        if found.cut_bytes:
            logger.warning("%s: cut a torn tail of %d bytes", self.directory, found.cut_bytes)
        self.recovered = found
        self._segments = found.segments
        self._position = found.position
        self._next_offset = found.next_offset
        self._max_timestamp = found.max_timestamp
        self._producers = found.producers
        self._epochs = found.epochs
        self._bytes_since_checkpoint = self._batches_since_checkpoint = 0
        self._segment_created = self._clock.now()
        durable_end = found.next_offset
        if self._segments:
            with contextlib.suppress(Corruption):
                self._segment_created = self._open_active().read_header().created
            if not self._settle(found):
                durable_end = found.synced_end
        self._commit = GroupCommit(durable_end, self._sync_written)
        self._visibility.open_at(self.start_offset, found.next_offset)

    def _settle(self, found: Recovered) -> bool:
        """Readers see what was found in the page cache, so it has to reach the disk. True when it is there."""
        unsynced = [base for base in self._segments if base >= found.synced_segment]
        clean = found.synced_end == found.next_offset or self.config.flush != "os"
        if not found.closed:
            # The last writer may have died between changing names or sizes and syncing them.
            self.files.sync_directory(self.directory)
        if not clean:
            self._unsynced = unsynced
        elif not found.closed:
            left = MOST_REWRITTEN
            for base in reversed(unsynced):
                left -= self._write_again(base, found.synced_position if base == found.synced_segment else 0, left)
        if found.lost_offsets:
            remove_checkpoints(self.files, self.directory)  # they speak of a log that is no more
        if found.scanned_bytes or found.cut_bytes or found.lost_offsets or found.boot_id != self.files.boot_id:
            self._write_checkpoint(self._encoded_checkpoint(), synced=clean)
        return clean

    def _write_again(self, base: int, position: int, limit: int) -> int:
        """Syncs a segment after writing once more what it holds from a position on, if that is not beyond a limit.

        If the last writer stopped because a sync had failed, the page cache may hold what the disk does not and
        yet call it clean: a sync alone would then say that all is well and do nothing.
        """
        segment = Segment.open(self.files, self.directory, base, write=True)
        try:
            size = max(segment.size() - position, 0)
            if size <= limit:
                while data := segment.read(CHUNK, position):
                    position += segment.write([data], position)
            segment.sync()
        finally:
            segment.close()
        return size

    # ------------------------------------------------------------ what others may know

    @property
    def closed(self) -> bool:
        """Takes no more writes: closed, or failed."""
        return self._closed or self._failed is not None

    @property
    def partition(self) -> int:
        return self.identity.partition

    def segments(self) -> tuple[int, ...]:
        return self._segments

    @property
    def start_offset(self) -> int:
        return self._segments[0] if self._segments else self._next_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._next_offset

    @property
    def durable_end(self) -> int:
        return self._commit.durable_end

    @property
    def leader_epoch(self) -> int:
        return self._epochs.latest

    @property
    def max_timestamp(self) -> int:
        return self._max_timestamp

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """See EpochHistory.end_of."""
        with self._lock:
            return self._epochs.end_of(epoch, self._next_offset)

    def epoch_starts(self) -> list[tuple[int, int]]:
        with self._lock:
            return self._epochs.pairs()

    def visible_end(self) -> int:
        return self._visibility.end

    def publish(self, end: int) -> None:
        """Lets readers see up to an offset that can no longer be rolled back; for logs with publish="owner"."""
        self._visibility.publish(min(end, self._next_offset))

    def size(self) -> int:
        """Bytes on disk."""
        total = 0
        for base in self._segments:
            with contextlib.suppress(FileNotFoundError):
                segment = Segment.open(self.files, self.directory, base)
                total += segment.size()
                segment.close()
        return total

    def cursor(self, offset: int) -> Cursor:
        return Cursor(self, offset)

    def offset_at_time(self, timestamp: int) -> int:
        return offset_at_time(self, timestamp)

    def wait_for(self, offset: int, timeout: float | None) -> bool:
        """Waits until an offset is visible; False when the time is over."""
        self.growth.wait(lambda: self._visibility.end > offset or self.closed, timeout)
        return self._visibility.end > offset

    # ------------------------------------------------------------ append

    def append(
        self,
        batches: Sequence[EncodedBatch],
        *,
        expected_offset: int | None = None,
        leader_epoch: int | None = None,
    ) -> list[int]:
        """Stamps and writes batches in one go; returns their base offsets. Not yet durable: see `wait_durable`.

        A batch that an idempotent producer sends again is not stored again: its first offset is returned.
        """
        request = Append(batches, expected_offset, leader_epoch)
        self._write_requests([request])
        if request.error is not None:
            raise request.error
        return request.offsets

    def append_durably(self, batches: Sequence[EncodedBatch], *, expected_offset: int | None = None) -> list[int]:
        """As `append`, durable when it returns. Threads that call it at the same time share one write and one sync."""
        if self.config.flush != "always":
            return self.append(batches, expected_offset=expected_offset)
        request = Append(batches, expected_offset)
        self._appends.run(request)
        return request.offsets

    def _append_all(self, requests: list[Append]) -> None:
        self._write_requests(requests)
        self._commit.lead(max([request.end for request in requests]))

    def _write_requests(self, requests: Sequence[Append]) -> None:
        """Writes what may be written, in one go; the others get their error."""
        with self._lock:
            stamping = self._begin_stamping()
            try:
                for request in requests:
                    stamping.add(request)
                self._write(stamping.stamped)
            except BaseException:
                stamping.take_back()
                raise
        self._after_write()

    def _begin_stamping(self) -> Stamping:
        self._check_writable()
        return Stamping(
            self._next_offset,
            self._producers,
            self._epochs,
            after_sync=self._commit.durable_end == self._next_offset,
            limit=self.config.max_batch_bytes,
        )

    def _after_write(self) -> None:
        if self.config.flush != "always":
            self._visibility.raise_to(self._next_offset)
        if self._rolled:
            self._rolled = False
            try:
                self.on_roll()
            except (DQError, OSError) as error:
                # What was written is written; the next roll tries again.
                logger.warning("%s: upkeep failed: %s", self.directory, error)

    def append_stamped(self, batches: Sequence[tuple[BatchHeader, Buffer]]) -> None:
        """Writes batches that already have their offsets: what a follower gets from its leader."""
        with self._lock:
            stamping = self._begin_stamping()
            try:
                for header, body in batches:
                    stamping.add_stamped(header, body)
                self._write(stamping.stamped)
            except BaseException:
                stamping.take_back()
                raise
        self._after_write()

    def wait_durable(self, end: int) -> None:
        """Returns when everything below `end` is as durable as the flush mode promises."""
        if self.config.flush == "always":
            self._commit.wait(end)

    def sync(self) -> None:
        """Makes everything written so far durable, whatever the flush mode."""
        self._commit.wait(self._next_offset)

    def _check_writable(self) -> None:
        if self._failed is not None:
            # A new one each time: an exception keeps what it passes through.
            raise PartitionFailed(self._failed.file, self._failed.cause)
        if self._closed:
            raise self._closed_because()

    def _write(self, stamped: list[Stamped]) -> None:
        if not stamped:
            return
        if self._writing:
            # The last write was interrupted and may have left all of itself behind, unnoticed.
            self._undo_write(self._open_active(), self._position)
            self._check_writable()
            self._writing = False
        size = sum([header.size for header, _, _ in stamped])
        active = self._segment_for(size)
        if self._names_unsynced and stamped[0][0].flags & AFTER_SYNC:
            # Not even the header of the segment is on stable storage.
            header = stamped[0][0]._replace(flags=stamped[0][0].flags & ~AFTER_SYNC)
            stamped[0] = header, pack_header(header), stamped[0][2]
        buffers: list[Buffer] = []
        for _, packed, body in stamped:
            buffers.append(packed)
            buffers.append(body)
        position = self._position
        self._writing = True
        try:
            active.write(buffers, position)
        except BaseException as error:
            self._undo_write(active, position)
            if self._failed is not None:
                raise self._failed from error  # a part of it may be there, and nobody knows which
            if isinstance(error, OSError):
                raise _write_failed(active.path, error) from error
            raise
        if not self._unsynced or self._unsynced[-1] != active.base_offset:
            self._unsynced.append(active.base_offset)
        for header, _, _ in stamped:
            self._feed.see(active.base_offset, position, header, self._max_timestamp)
            position += header.size
            if header.last_timestamp > self._max_timestamp:
                self._max_timestamp = header.last_timestamp
        end = stamped[-1][0].next_offset
        # Nothing is called from here to the last of them, so no interrupt comes between.
        self._position = position
        self._next_offset = end
        self._writing = False
        self._bytes_since_checkpoint += size
        self._batches_since_checkpoint += len(stamped)
        if self.config.flush == "os" and self._checkpoint_is_due():
            self._write_checkpoint(self._encoded_checkpoint(), synced=False)

    def _undo_write(self, segment: Segment, position: int) -> None:
        """A write may have left a part of itself behind: cut it off for good, or take no more writes."""
        try:
            segment.truncate(position)
            segment.sync()  # the next batch may go to another segment, and a power loss bring the part back
        except OSError as error:
            self._fail(PartitionFailed(segment.path, error))

    def _rebuild_producers(self) -> None:
        producers = ProducerStates()
        for base in self._segments:
            segment = Segment.open(self.files, self.directory, base)
            try:
                end = self._position if base == self._segments[-1] else None
                for _, header in segment.headers(end=end):
                    producers.add(header)
            except Corruption as damage:
                logger.error("%s; producers known only from there are forgotten", damage)
            finally:
                segment.close()
        self._producers = producers

    # ------------------------------------------------------------ visibility and durability

    def _sync_written(self) -> int:
        end, checkpoint = self._sync_all()
        if checkpoint is not None:
            self._write_checkpoint(checkpoint, synced=True)
        return end

    def _sync_all(self, *, with_checkpoint: bool = False, closing: bool = False) -> tuple[int, bytes | None]:
        """Syncs what is written; returns its end and, when asked for or due, the state at that point.

        Called by one thread at a time, the one that holds `_commit.paused`.
        """
        with self._lock:
            if self._failed is not None:
                raise PartitionFailed(self._failed.file, self._failed.cause)
            end = self._next_offset
            bases, self._unsynced = self._unsynced, []
            names_too, self._names_unsynced = self._names_unsynced, False
            active = self._active
            wanted = with_checkpoint or self._checkpoint_is_due()
            checkpoint = self._encoded_checkpoint(closed=closing) if wanted else None
        try:
            self._sync_segments(bases, active, names_too)
        except OSError as error:
            failure = PartitionFailed(self.directory, error)
            with self._lock:
                self._fail(failure)
                self._cut_unsynced()
            raise failure from error
        except BaseException:  # interrupted: whoever comes next has to do it all again
            with self._lock:
                self._unsynced = sorted({*bases, *self._unsynced})
                self._names_unsynced |= names_too
            raise
        if self.config.flush == "always":
            self._visibility.raise_to(end)
        return end, checkpoint

    def _sync_segments(self, bases: Sequence[int], active: Segment | None, names_too: bool) -> None:
        for base in bases:
            if active is not None and active.base_offset == base:
                active.sync()
                continue
            try:
                segment = Segment.open(self.files, self.directory, base, write=True)
            except FileNotFoundError:
                continue  # retention was faster
            try:
                segment.sync()
            finally:
                segment.close()
        if names_too:
            self.files.sync_directory(self.directory)

    def _fail(self, failure: PartitionFailed) -> None:
        logger.error("%s", failure)
        self._failed = failure
        self.growth.announce()

    def _cut_unsynced(self) -> None:
        """After a failed sync the page cache may hold what the disk does not: nobody was told of it, so drop it."""
        if self.config.flush != "always" or self._active is None:
            return
        with contextlib.suppress(Corruption, OffsetOutOfRange):
            durable_end = self._commit.durable_end
            if durable_end >= self._active.base_offset:
                self.index.cut(durable_end)
                try:
                    self._active.truncate(find_position(self, self._active, durable_end))
                    self._active.sync()
                except OSError:
                    # The file may look as it did when the log was last closed, and still not be so on the disk.
                    with contextlib.suppress(OSError):
                        remove_checkpoints(self.files, self.directory)

    # ------------------------------------------------------------ segments

    def _open_active(self) -> Segment:
        """The last segment, opened for writing if it is parked."""
        if self._active is None:
            self._active = Segment.open(self.files, self.directory, self._segments[-1], write=True)
        return self._active

    def _segment_for(self, size: int) -> Segment:
        """The segment that the next `size` bytes go to: a new one when the last is full or old."""
        if not self._segments:
            return self._create_segment()
        if self._position > SEGMENT_HEADER_SIZE:
            age = self.config.segment_age
            too_old = age is not None and self._clock.now() - self._segment_created > age
            if too_old or self._position + size > self.config.segment_bytes:
                return self._create_segment()
        return self._open_active()

    def _create_segment(self) -> Segment:
        created = self._clock.now()
        header = SegmentHeader(
            flags=0,
            partition=self.identity.partition,
            topic_id=self.identity.topic_id,
            base_offset=self._next_offset,
            created=created,
            max_timestamp_before=self._max_timestamp,
        )
        path = f"{self.directory}/{file_name(self._next_offset)}"
        durably = self.config.flush != "os"
        try:
            self._active = Segment.create(self.files, self.directory, header, sync=durably)
        except OSError as error:
            if self.files.exists(path):
                # It could not be taken back, and must not stay between what is written from here on.
                self._fail(PartitionFailed(path, error))
            raise _write_failed(path, error) from error
        self._segment_created = created
        if not durably:
            self._names_unsynced = True
            self._unsynced.append(self._next_offset)
        self._rolled = bool(self._segments)
        self._segments = (*self._segments, self._next_offset)
        self._position = SEGMENT_HEADER_SIZE
        # Not now: an append that needs a new segment has noted its batches already, but not written them.
        self._checkpoint_wanted = True
        return self._active

    def roll(self) -> None:
        """Begins a new segment, unless the last one is empty."""
        with self._lock:
            self._check_writable()
            if self._position > SEGMENT_HEADER_SIZE:
                self._create_segment()

    # ------------------------------------------------------------ checkpoints

    def _checkpoint_is_due(self) -> bool:
        return (
            self._checkpoint_wanted
            or self._bytes_since_checkpoint >= self.config.checkpoint_bytes
            or self._batches_since_checkpoint >= self.config.checkpoint_batches
        )

    def _encoded_checkpoint(self, *, closed: bool = False) -> bytes:
        """The state as it is now; to be written once everything in it is synced."""
        self._bytes_since_checkpoint = self._batches_since_checkpoint = 0
        self._checkpoint_wanted = False
        self._producers.forget(self._clock.now())
        return encode_checkpoint(
            Checkpoint(
                synced=False,
                boot_id=self.files.boot_id,
                segment=self._segments[-1],
                position=self._position,
                next_offset=self._next_offset,
                max_timestamp=self._max_timestamp,
                producers=self._producers,
                epochs=self._epochs,
                closed=closed,
            )
        )

    def _write_checkpoint(self, encoded: bytes, *, synced: bool, durable: bool = False) -> bool:
        try:
            self.index.flush()
            write_checkpoint(self.files, self.directory, encoded, synced=synced, durable=durable)
        except OSError as error:
            # Without it the next opening reads a little more; the log itself is not affected.
            logger.warning("%s: cannot write a checkpoint: %s", self.directory, error)
            return False
        return True

    # ------------------------------------------------------------ truncate, replace, close

    def truncate(self, offset: int) -> None:
        """Removes the batches from an offset on; one that only reaches beyond it goes as well."""
        # No sync may be under way: it would call durable what is no longer there.
        with self._commit.paused, self._lock:
            self._check_writable()
            if not self.start_offset <= offset <= self._next_offset:
                raise OffsetOutOfRange(offset, self.start_offset, self._next_offset)
            if offset == self._next_offset:
                return
            base, position, offset = self._place_of(offset)
            try:
                self._sync_segments(self._unsynced, self._active, self._names_unsynced)
                self._set_end(base, position, offset)
                self._cut_files(base, position)
            except OSError as error:
                # What is noted and what the files hold may differ now: only opening anew brings them together.
                failure = PartitionFailed(self.directory, error)
                self._fail(failure)
                raise failure from error
            self._unsynced, self._names_unsynced = [], False

    def _cut_files(self, base: int, position: int) -> None:
        """From the last segment backwards, so that a crash leaves a log that ends early, not one with a hole."""
        later = [segment for segment in self._segments if segment > base]
        self._active = None
        for segment in reversed(later):
            self.files.remove(f"{self.directory}/{file_name(segment)}")
            self.files.sync_directory(self.directory)
        self._segments = tuple(segment for segment in self._segments if segment <= base)
        active = self._open_active()
        active.truncate(position)
        active.sync()

    def _place_of(self, offset: int) -> tuple[int, int, int]:
        """Segment, position and base offset of the batch that covers an offset."""
        segment = open_segment_of(self, offset)
        try:
            position = find_position(self, segment, offset)
            _, header = next(segment.headers(position))
        finally:
            segment.close()
        return segment.base_offset, position, header.base_offset

    def _set_end(self, base: int, position: int, offset: int) -> None:
        """Turns the state back to an earlier end and writes it down before the files follow."""
        segments = self._segments
        self._segments = tuple(segment for segment in segments if segment <= base)
        self._position = position
        self._next_offset = offset
        self._epochs.truncate(offset)
        if not self._producers.truncate(offset):
            self._rebuild_producers()
        self._feed = IndexFeed(self.index)
        self.index.cut(offset)
        self.index.flush()
        # An older checkpoint would name a place beyond the end, and fit again once the log has grown over it.
        write_checkpoint(self.files, self.directory, self._encoded_checkpoint(), synced=True, durable=True)
        remove_unsynced_checkpoint(self.files, self.directory)
        self._segments = segments
        self._commit.durable_end = offset
        self._visibility.cut_to(offset)

    def remove_segments_before(self, base: int) -> list[int]:
        """Deletes whole segments from the front, up to the one that begins at `base`; never the last one."""
        self._check_writable()
        if len(self._segments) < 2 or self._segments[0] >= base:
            return []
        self.checkpoint()  # an older one may name what goes now, and the producers that are known only from there
        # What stays must be there before anything goes. From the front, one after the other, so that a crash
        # leaves a log that starts later, not one with a hole.
        self.files.sync_directory(self.directory)
        removed: list[int] = []
        while True:
            with self._lock:
                self._check_writable()
                if len(self._segments) < 2 or self._segments[0] >= base:
                    return removed
                segment, self._segments = self._segments[0], self._segments[1:]
                try:
                    self.files.remove(f"{self.directory}/{file_name(segment)}")
                except OSError:
                    self._segments = (segment, *self._segments)
                    raise
                self._epochs.trim(self.start_offset)
                self.index.drop(self.start_offset)
            self.files.sync_directory(self.directory)
            removed.append(segment)

    def replace_segment(self, base: int, path: str, end: int) -> bool:
        """Puts a rewritten file in the place of a sealed segment that covers the offsets [base, end).

        False when retention has removed the segment: the file is then removed as well.
        """
        with self._lock:
            self._check_writable()
            if base < self.start_offset:
                self.files.remove(path)
                return False
            if base not in self._segments[:-1]:
                raise InvalidInput(f"segment {base} is not sealed")
            self.index.forget_segment(base, end)
            self.files.rename(path, f"{self.directory}/{file_name(base)}")
            self.files.sync_directory(self.directory)
            return True

    def checkpoint(self, *, closing: bool = False) -> bool:
        """Syncs and writes down the state, so that no older checkpoint is needed any more. True when that is done."""
        with self._commit.paused:
            if not self._segments:
                return True
            if self._closed:
                return False
            self._commit.durable_end, checkpoint = self._sync_all(with_checkpoint=True, closing=closing)
            if checkpoint is None or not self._write_checkpoint(checkpoint, synced=True, durable=True):
                return False
            try:
                with self._lock:
                    remove_unsynced_checkpoint(self.files, self.directory)
            except OSError as error:
                logger.warning("%s: cannot remove an old checkpoint: %s", self.directory, error)
                return False
            return True

    def park(self) -> None:
        """Lets go of the file handles until they are needed again."""
        with self._lock:
            self._active = None
        self._visibility.park()

    def close(self) -> None:
        """Syncs, leaves the mark of a clean shutdown and closes the files."""
        if self._closed:
            return
        try:
            if self._failed is None and self._segments:
                self.checkpoint(closing=True)
        finally:
            with self._lock:
                self._closed = True
                self._active = None
            self._visibility.park()
            self.growth.announce()

    def discard(self, because: Callable[[], DQError]) -> None:
        """Closes without a sync or a mark: the files are about to be deleted. Later writes raise what it says."""
        with self._commit.paused, self._lock:
            self._closed = True
            self._closed_because = because
            self._active = None
            self._visibility.close()
        self.growth.announce()


def _write_failed(path: str, error: OSError) -> WriteFailed:
    return (DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else WriteFailed)(path, error)
