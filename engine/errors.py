"""Every error that DQ raises on purpose: one small tree, each error carrying the facts it speaks of.

`code` is the stable word for a kind of error, used wherever an error leaves Python (JSON, exit messages).
"""

from __future__ import annotations

from typing import ClassVar


class DQError(Exception):
    """The root: `except dq.DQError` catches everything that DQ raises on purpose."""

    code: ClassVar[str] = "error"


# ---------------------------------------------------------------- what the caller asked for is not possible


class InvalidInput(DQError, ValueError):
    """An argument is not acceptable; the message says what is."""

    code = "invalid_input"


class InvalidName(InvalidInput):
    code = "invalid_name"

    def __init__(self, name: object, why: str) -> None:
        super().__init__(f"invalid name {name!r}: {why}")
        self.name = name


class InvalidConfig(InvalidInput):
    code = "invalid_config"

    def __init__(self, setting: str, value: object, allowed: str) -> None:
        super().__init__(f"invalid {setting} {value!r}: allowed is {allowed}")
        self.setting = setting
        self.value = value
        self.allowed = allowed


class InvalidRecord(InvalidInput):
    code = "invalid_record"


class BatchTooLarge(InvalidInput):
    code = "batch_too_large"

    def __init__(self, size: int, limit: int, what: str = "batch", unit: str = "bytes") -> None:
        super().__init__(f"a {what} of {size:,} {unit} is larger than the limit of {limit:,} {unit}")
        self.size = size
        self.limit = limit


class UnknownTopic(DQError, LookupError):
    code = "unknown_topic"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no topic {name!r}")
        self.name = name


class UnknownPartition(DQError, LookupError):
    code = "unknown_partition"

    def __init__(self, topic: str, partition: object, count: int) -> None:
        super().__init__(f"topic {topic!r} has no partition {partition!r}: it has partitions 0 to {count - 1}")
        self.topic = topic
        self.partition = partition
        self.count = count


class UnknownConsumer(DQError, LookupError):
    code = "unknown_consumer"

    def __init__(self, topic: str, name: str) -> None:
        super().__init__(f"topic {topic!r} has no consumer {name!r}")
        self.topic = topic
        self.name = name


class TopicExists(DQError):
    code = "topic_exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"topic {name!r} already exists")
        self.name = name


class OffsetOutOfRange(DQError, LookupError):
    """The offset is not in the log (any more, or yet). Positions are never reset silently."""

    code = "offset_out_of_range"

    def __init__(self, offset: int, earliest: int, latest: int) -> None:
        super().__init__(
            f"offset {offset} is out of range: the log holds offsets {earliest} up to {latest} (exclusive)"
        )
        self.offset = offset
        self.earliest = earliest
        self.latest = latest


class OffsetMismatch(DQError):
    """A conditional append found the log at another offset than the writer expected."""

    code = "offset_mismatch"

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"expected the next offset to be {expected}, but it is {actual}")
        self.expected = expected
        self.actual = actual


class ProducerFenced(DQError):
    code = "producer_fenced"

    def __init__(self, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id} with epoch {epoch} was replaced by one with epoch {current}")
        self.producer_id = producer_id
        self.epoch = epoch
        self.current = current


class SequenceError(DQError):
    """A batch of an idempotent producer that does not follow its last one and is not a retry either."""

    code = "sequence_error"

    def __init__(self, producer_id: int, expected: int, sequence: int) -> None:
        super().__init__(f"producer {producer_id} sent sequence {sequence}, expected {expected}")
        self.producer_id = producer_id
        self.expected = expected
        self.sequence = sequence


class StaleEpoch(DQError):
    code = "stale_epoch"

    def __init__(self, epoch: int, current: int) -> None:
        super().__init__(f"leader epoch {epoch} is older than {current}, which the log already holds")
        self.epoch = epoch
        self.current = current


class Closed(DQError):
    code = "closed"


class ReadOnly(DQError):
    code = "read_only"


# ---------------------------------------------------------------- something is wrong with the storage


class StorageError(DQError):
    code = "storage_error"


class Corruption(StorageError):
    """Stored bytes are damaged. Nothing is cut and nothing is guessed.

    `offset` is the first offset that cannot be read, `resume_offset` the next one that can (None when
    nothing readable follows): reading again from there skips exactly the damage.
    """

    code = "corruption"

    def __init__(
        self, file: str, position: int, reason: str, *, offset: int | None = None, resume_offset: int | None = None
    ) -> None:
        where = f"{file} at byte {position}" + ("" if offset is None else f" (offset {offset})")
        super().__init__(f"damaged data in {where}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason
        self.offset = offset
        self.resume_offset = resume_offset


class DamagedBatch(StorageError):
    """Bytes that are not a whole and intact batch; the codec knows why, but not where they came from."""

    code = "damaged_batch"


class FormatTooNew(StorageError):
    code = "format_too_new"

    def __init__(self, what: str, version: int, supported: int) -> None:
        super().__init__(f"{what} has format version {version}; this release reads up to {supported}: upgrade DQ")
        self.what = what
        self.version = version
        self.supported = supported


class CodecUnavailable(StorageError):
    code = "codec_unavailable"

    def __init__(self, codec: str) -> None:
        super().__init__(f"compression {codec!r} needs a package: pip install 'dqsegments[compression]'")
        self.codec = codec


class NotADataDirectory(StorageError):
    code = "not_a_data_directory"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is not a DQ data directory: {why}")
        self.path = path


class DirectoryLocked(StorageError):
    code = "directory_locked"

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"{path} is open for writing in another place ({holder}): close that first, or open with read_only=True"
        )
        self.path = path
        self.holder = holder


class WriteFailed(StorageError):
    """A write did not happen. What was stored before is untouched, and the partition takes writes again."""

    code = "write_failed"

    def __init__(self, file: str, cause: OSError) -> None:
        super().__init__(f"cannot write to {file}: {cause.strerror or cause}")
        self.file = file
        self.cause = cause


class DiskFull(WriteFailed):
    code = "disk_full"


class PartitionFailed(StorageError):
    """A sync failed, so nobody knows what the disk holds: the partition takes no writes until it is opened anew."""

    code = "partition_failed"

    def __init__(self, file: str, cause: BaseException) -> None:
        super().__init__(f"{file} is closed for writing after a failed sync: {cause}")
        self.file = file
        self.cause = cause
