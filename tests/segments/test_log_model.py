"""The partition log on a faulty disk against a plain list, in whatever order Hypothesis thinks of.

`partition_model.py` holds the list and the comparison. A failure prints the steps that lead to it, shortened.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from dq.engine.errors import PartitionFailed, StorageError, WriteFailed
from dq.engine.segments.config import FLUSH_MODES, Flush, LogConfig
from tests.faulty_files import CrashPoint, FaultyFiles
from tests.segments.log_tools import SECOND
from tests.segments.partition_model import Partition

HOUR = 3600 * SECOND
CACHE = Path(__file__).resolve().parent.parent.parent / ".cache"

keys = st.none() | st.sampled_from([b"a", b"b", b"c"])
record_sizes = st.lists(st.integers(8, 300), min_size=1, max_size=4)


class PartitionMachine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 1 << 32),
        page=st.sampled_from([64, 512, 4096]),
        flush=st.sampled_from(FLUSH_MODES),
        segment_bytes=st.sampled_from([400, 1500, 20_000]),
        checkpoint_bytes=st.sampled_from([1, 1000, 1 << 20]),
        retention_bytes=st.sampled_from([1, 2000, None]),
        retention_age=st.sampled_from([HOUR, None]),
    )
    def begin(
        self,
        seed: int,
        page: int,
        flush: Flush,
        segment_bytes: int,
        checkpoint_bytes: int,
        retention_bytes: int | None,
        retention_age: int | None,
    ) -> None:
        logging.disable(logging.CRITICAL)
        self.files = FaultyFiles(seed, page=page)
        config = LogConfig(
            flush=flush,
            segment_bytes=segment_bytes,
            checkpoint_bytes=checkpoint_bytes,
            retention_bytes=retention_bytes,
            retention_age=retention_age,
            tombstone_age=HOUR,
        )
        self.partition = Partition(self.files, config)

    def teardown(self) -> None:
        try:
            if hasattr(self, "partition") and not self.partition.log.closed:
                self.files.crash_at(None)
                self.partition.check()
                self.partition.reopen_cleanly()
        finally:
            logging.disable(logging.NOTSET)

    # ------------------------------------------------------------ what users do

    @rule(
        sizes=record_sizes,
        data=st.data(),
        keyed=st.booleans(),
        tombstones=st.booleans(),
        late=st.sampled_from([0, 0, -2 * HOUR, -5 * SECOND, 7 * SECOND]),
        producer=st.sampled_from([None, 1, 2]),
        next_epoch=st.booleans(),
        batches=st.integers(1, 7),
        wait=st.booleans(),
    )
    def append(
        self,
        sizes: list[int],
        data: st.DataObject,
        keyed: bool,
        tombstones: bool,
        late: int,
        producer: int | None,
        next_epoch: bool,
        batches: int,
        wait: bool,
    ) -> None:
        self.partition.append(
            sizes,
            keys=[data.draw(keys) for _ in sizes] if keyed else None,
            tombstones=keyed and tombstones,
            timestamp=self.partition.clock.now() + late,
            producer=producer,
            epoch=self.partition.log.leader_epoch + next_epoch,
            batches=batches,
            wait=wait,
        )

    @rule(producer=st.sampled_from([1, 2]))
    def retry(self, producer: int) -> None:
        self.partition.retry(producer)

    @rule()
    def wait(self) -> None:
        self.partition.wait()

    @rule()
    def sync(self) -> None:
        self.partition.sync()

    @rule()
    def read_everything(self) -> None:
        self.partition.check()

    @rule(share=st.floats(0, 1))
    def read_from(self, share: float) -> None:
        log = self.partition.log
        self.partition.check_read_from(log.start_offset + int(share * (log.visible_end() - log.start_offset)))

    @rule(distance=st.integers(-3 * HOUR, HOUR))
    def read_by_time(self, distance: int) -> None:
        self.partition.check_time(self.partition.clock.now() + distance)

    # ------------------------------------------------------------ what operators and upkeep do

    @rule()
    def roll(self) -> None:
        self.partition.roll()

    @rule()
    def checkpoint(self) -> None:
        self.partition.checkpoint()

    @rule(back=st.integers(0, 20))
    def truncate(self, back: int) -> None:
        self.partition.truncate(self.partition.log.next_offset - back)

    @rule()
    def apply_retention(self) -> None:
        self.partition.apply_retention()

    @rule()
    def compact(self) -> None:
        self.partition.compact()

    @rule()
    def park(self) -> None:
        self.partition.log.park()

    @rule()
    def drop_the_index(self) -> None:
        self.partition.index.cut(0)

    @rule()
    def delete_checkpoints(self) -> None:
        self.partition.delete_checkpoints()

    @rule(time=st.sampled_from([1, SECOND, HOUR, 30 * 24 * HOUR]))
    def let_time_pass(self, time: int) -> None:
        self.partition.clock.advance(time)

    @rule(time=st.sampled_from([-HOUR, -30 * 24 * HOUR]))
    def set_the_clock_back(self, time: int) -> None:
        self.partition.clock.jump(time)

    # ------------------------------------------------------------ what goes wrong

    @rule()
    def reopen_cleanly(self) -> None:
        self.partition.reopen_cleanly()

    @rule(crash_while_opening=st.none() | st.integers(1, 8))
    def kill(self, crash_while_opening: int | None) -> None:
        self.partition.kill()
        self._reopen(crash_while_opening)

    @rule(crash_while_opening=st.none() | st.integers(1, 8))
    def power_loss(self, crash_while_opening: int | None) -> None:
        self.partition.power_loss()
        self._reopen(crash_while_opening)

    def _reopen(self, crash_at: int | None) -> None:
        self.files.crash_at(crash_at)
        while True:
            try:
                self.partition.reopen()
                self.files.crash_at(None)
                return
            except CrashPoint:
                self.files.chance.choice([self.partition.kill, self.partition.power_loss])()

    @rule(
        call=st.integers(1, 25),
        action=st.sampled_from(["append", "roll", "checkpoint", "truncate", "apply_retention", "compact", "sync"]),
        power=st.booleans(),
        crash_while_opening=st.none() | st.integers(1, 8),
    )
    def crash_in_the_middle(self, call: int, action: str, power: bool, crash_while_opening: int | None) -> None:
        self.files.crash_at(call)
        try:
            if action == "append":
                self.partition.append([50, 60], keys=[b"a", b"b"], producer=1, batches=3)
            elif action == "truncate":
                self.partition.truncate(self.partition.log.next_offset - 7)
            else:
                getattr(self.partition, action)()
        except CrashPoint:
            pass
        if power:
            self.partition.power_loss()
        else:
            self.partition.kill()
        self._reopen(crash_while_opening)

    @rule(free=st.integers(0, 800))
    def fill_the_disk(self, free: int) -> None:
        self.files.fill_up(free)
        for _ in range(3):
            try:
                self.partition.append([200], keys=[b"a"], producer=2, wait=False)
            except WriteFailed as error:
                assert error.cause.errno == errno.ENOSPC  # noqa: PT017
        self.files.fill_up(None)

    @precondition(lambda self: self.partition.config.flush != "os")
    @rule(power=st.booleans(), closed=st.booleans())
    def fail_a_sync(self, power: bool, closed: bool) -> None:
        self.partition.append([100], batches=2, wait=False)
        self.files.fail("sync", where=".seg")
        with pytest.raises(PartitionFailed):
            self.partition.sync()
        self.partition.failed()
        if closed:
            self.partition.log.close()
        if power:
            self.partition.power_loss()
        else:
            self.partition.kill()
        self.partition.reopen()

    @rule()
    def fail_to_write_a_checkpoint(self) -> None:
        self.files.fail("write", where="checkpoint")
        try:
            self.partition.compact()
        except StorageError:
            self.partition.check()
        self.files.stop_failing()


def run(max_examples: int, steps: int) -> None:
    run_state_machine_as_test(
        PartitionMachine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            database=DirectoryBasedExampleDatabase(CACHE / "hypothesis"),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_log_holds_what_the_model_holds() -> None:
    run(max_examples=300, steps=40)


@pytest.mark.soak
def test_the_log_holds_what_the_model_holds_for_hours() -> None:
    run(max_examples=20_000, steps=100)
