"""docs/format.md says what the code does: its tables, its example, and that a reader can be written from it."""

from __future__ import annotations

import ast
import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

import dq
from dq.engine.embedded.topic import partition_of_key
from dq.engine.files import OsFiles
from dq.engine.segments import batch, segment
from dq.engine.segments.batch import KNOWN_FLAGS, BatchHeader, encode
from dq.engine.segments.compaction import compact
from dq.engine.segments.compression import NAMES
from dq.engine.segments.config import LogConfig
from dq.engine.segments.crc import crc32c
from dq.engine.segments.log import Identity, PartitionLog
from dq.engine.segments.positions import MemoryIndex
from dq.engine.segments.segment import Segment, SegmentHeader, file_name
from tests.clocks import ManualClock
from tests.segments import independent_reader
from tests.segments.batches import CODECS

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = (REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """What stands between a heading of the document and the next."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found, f"docs/format.md has no section {heading!r}"
    return found[1]


def table(text: str, first_column: str) -> list[list[str]]:
    """The rows of the first table whose first column has this title, without markup."""
    lines = iter(text.splitlines())
    assert any(line.startswith(f"| {first_column} |") for line in lines), f"no table of {first_column!r}"
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return rows


# ---------------------------------------------------------------- the headers


def layout(fields: struct.Struct, crc: struct.Struct) -> list[tuple[int, int, str]]:
    """Position, size and type of each field as the code packs them: the fields, and then their checksum."""
    items = [*re.findall(r"\d*[a-zA-Z]", fields.format.lstrip("<")), crc.format.lstrip("<")]
    places = []
    position = 0
    for item in items:
        size = struct.calcsize(f"<{item}")
        kind = "bytes" if item.endswith("s") else "unsigned" if item.isupper() else "signed"
        places.append((position, size, kind))
        position += size
    return places


HEADERS = {
    "Segment files": (segment._FIELDS, segment._CRC, SegmentHeader, segment.SEGMENT_HEADER_SIZE),
    "Batches": (batch._FIELDS, batch._CRC, BatchHeader, batch.HEADER_SIZE),
}


@pytest.mark.parametrize("heading", HEADERS)
def test_the_header_tables_of_the_document_are_the_layout_of_the_code(heading: str) -> None:
    fields, crc, header, size = HEADERS[heading]
    documented = [(int(at), int(width), kind, name) for at, width, kind, name, _ in table(section(heading), "at")]
    names = ["magic", "version", *header._fields, "reserved", "header_crc"]
    packed = layout(fields, crc)
    assert documented == [(*place, name) for place, name in zip(packed, names, strict=True)]
    assert sum(width for _, width, _ in packed) == size
    assert f"a header of {size} bytes" in section(heading)
    assert f"CRC-32C of the bytes 0 to {size - 5}" in section(heading)


BATCH_WORDS = [
    'magic "DQRB"', "format version (1)", "codec of the body", "flags:", "body size as stored", "record count",
    "base offset", "offset span", "leader epoch", "first timestamp", "last timestamp", "producer id",
    "base sequence", "producer epoch", "body size before compression", "CRC-32C of the body", "reserved",
    "CRC-32C of the bytes 0 to 91",
]  # fmt: skip
SEGMENT_WORDS = [
    'magic "DQSEGMNT"', "format version (1)", "flags:", "partition", "topic id", "base offset", "created",
    "the greatest timestamp of all earlier segments", "reserved", "CRC-32C of the bytes 0 to 59",
]  # fmt: skip


@pytest.mark.parametrize("module, words", [(batch, BATCH_WORDS), (segment, SEGMENT_WORDS)], ids=["batch", "segment"])
def test_the_tables_in_the_code_are_the_layout_of_the_code(module: Any, words: list[str]) -> None:
    rows = re.findall(r"^ +(\d+) +(\d+)  (\S.*)$", module.__doc__, re.MULTILINE)
    packed = [(at, size) for at, size, _ in layout(module._FIELDS, module._CRC)]
    assert [(int(at), int(size)) for at, size, _ in rows] == packed
    for (_, _, text), start in zip(rows, words, strict=True):
        assert text.startswith(start)


def test_the_magics_and_versions_are_those_of_the_document() -> None:
    for heading, magic, version in (
        ("Segment files", segment.SEGMENT_MAGIC, segment.SEGMENT_VERSION),
        ("Batches", batch.MAGIC, batch.VERSION),
    ):
        rows = {row[3]: row[4] for row in table(section(heading), "at")}
        assert rows["magic"] == f"{magic.decode()} in ASCII"
        assert rows["version"] == str(version)


def test_the_flags_and_codecs_are_those_of_the_document() -> None:
    flags = {name: 1 << int(bit.removeprefix("bit ")) for bit, name, _ in table(section("Batches"), "flag")}
    assert flags == {"control": batch.CONTROL, "sparse": batch.SPARSE, "after-sync": batch.AFTER_SYNC}
    assert sum(flags.values()) == KNOWN_FLAGS
    codecs = {name: int(number) for number, name, _ in table(section("Compression"), "codec")}
    assert codecs == NAMES


def test_the_limits_are_those_of_the_document() -> None:
    assert f"{batch.MAX_RECORDS:,}" in section("Batches")
    assert f"{batch.MAX_BODY_BYTES:,}" in section("Batches")
    limits = dict(table(section("Limits"), "what"))
    assert limits["records in a batch"] == f"{batch.MAX_RECORDS:,}"
    assert limits["body of a batch, as stored and before compression"] == f"{batch.MAX_BODY_BYTES >> 30} GiB each"
    [accepted] = [limit for what, limit in limits.items() if what.startswith("batch that a writer accepts")]
    assert accepted.startswith(f"{LogConfig().max_batch_bytes >> 20} MiB,")
    assert f"{LogConfig().segment_bytes >> 20} MiB" in limits["segment file"]


def test_the_checksum_is_the_one_of_the_document() -> None:
    parameters = dict(table(section("Checksums"), "parameter"))
    check = int(parameters["check: of the 9 ASCII characters 123456789"], 16)
    assert crc32c(b"123456789") == independent_reader.crc32c(b"123456789") == check
    assert crc32c(b"") == int(parameters["of no bytes at all"], 16)


def test_keys_go_to_the_partitions_that_the_document_names() -> None:
    rows = table(section("Which partition a key belongs to"), "key (UTF-8)")
    assert rows
    for key, checksum, of_four, of_twelve in rows:
        assert crc32c(key.encode()) == int(checksum, 16)
        assert partition_of_key(key.encode(), 4) == int(of_four)
        assert partition_of_key(key.encode(), 12) == int(of_twelve)


# ---------------------------------------------------------------- the example


def example_bytes() -> bytes:
    """The bytes of the hex dump; every line must say rightly where it stands."""
    dump = re.search(r"^```hexdump\n(.*?)^```", section("An example, byte for byte"), re.MULTILINE | re.DOTALL)
    assert dump
    data = b""
    for line in filter(None, dump[1].splitlines()):
        parts = re.match(r"([0-9a-f]{4})  ([0-9a-f]{2}(?: [0-9a-f]{2})*)(?:  |$)", line)
        assert parts, line
        assert int(parts[1], 16) == len(data), line
        data += bytes.fromhex(parts[2])
    return data


def described_rows() -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for offset, timestamp, key, value, headers in table(section("An example, byte for byte"), "offset"):
        name, _, text = headers.partition(": ")
        described = None if headers == "none" else {name: text.encode()}
        rows.append((int(offset), int(timestamp), key.encode(), value.encode(), described))
    return rows


def write_example(directory: Path) -> Path:
    """What the document says of the example, given to the engine."""
    text = section("An example, byte for byte")
    topic_id = re.search(r"with the id `([0-9a-f]{32})`", text)
    partition = re.search(r"of partition (\d+)", text)
    created = re.search(r"begun at\s+([\d,]+)", text)
    assert topic_id
    assert partition
    assert created
    _, timestamps, keys, values, headers = zip(*described_rows(), strict=True)
    log = PartitionLog(
        OsFiles(),
        ManualClock(int(created[1].replace(",", ""))),
        str(directory),
        Identity(bytes.fromhex(topic_id[1]), int(partition[1])),
        LogConfig(),
        MemoryIndex(),
    )
    log.append([encode(values, keys, timestamps=timestamps, headers=headers)])
    log.close()
    return directory / "00000000000000000000.seg"


def test_the_example_is_what_the_code_writes(tmp_path: Path) -> None:
    written = write_example(tmp_path).read_bytes()
    assert example_bytes() == written
    text = section("An example, byte for byte")
    assert f"has {len(written)} bytes" in text
    for checksum in (written[0x3C:0x40], written[0x88:0x8C], written[0x9C:0xA0]):
        assert f"0x{int.from_bytes(checksum, 'little'):08x}" in text


def test_the_example_is_read_as_described(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.seg").write_bytes(example_bytes())
    opened = Segment.open(OsFiles(), str(tmp_path), 0)
    try:
        [placed] = opened.batches()
        header = opened.read_header()
    finally:
        opened.close()
    assert [record[:5] for record in batch.decode(placed.header, placed.body)] == described_rows()
    assert (header.partition, header.topic_id.hex()) == (3, "0123456789abcdef" * 2)
    (tmp_path / "visible").write_bytes((2).to_bytes(8, sys.byteorder))
    assert list(independent_reader.read(str(tmp_path))) == described_rows()


# ---------------------------------------------------------------- a reader written from the document


def test_the_independent_reader_shares_nothing_with_the_engine() -> None:
    tree = ast.parse(Path(independent_reader.__file__).read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert not [name for name in imported if name.split(".")[0] in ("dq", "engine", "tests")]


def open_log(directory: Path, clock: ManualClock) -> PartitionLog:
    settings = LogConfig(segment_bytes=4000, tombstone_age=0)
    return PartitionLog(OsFiles(), clock, str(directory), Identity(bytes(range(16)), 0), settings, MemoryIndex())


def fill(log: PartitionLog) -> None:
    """Batches of every kind: codecs, columns present and absent, numbers wide and narrow, values short and long."""
    for round_ in range(4):
        for codec in CODECS:
            count = 1 + 7 * round_
            values = [b"value %d " % number * number for number in range(count)]
            keys = [b"key %d" % (number % 5) for number in range(count)]
            headers = [{"név": b"%d" % number, "": b""} if number % 2 else None for number in range(count)]
            log.append(
                [
                    encode(values, timestamp=-1, codec=codec),
                    encode([*values, None], [*keys, b"key 1"], timestamp=1, codec=codec),
                    encode(values, keys, timestamps=[5 * number for number in range(count)], codec=codec),
                    encode(values, timestamps=[number << 40 for number in range(count)], headers=headers, codec=codec),
                    encode([b"x" * 70_000], [None], codec=codec, producer=(5, 0, round_ * 3 + codec)),
                ]
            )
    log.sync()


def engine_rows(log: PartitionLog, start: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    cursor = log.cursor(start)
    try:
        while batches := cursor.read():
            for raw in batches:
                rows += [tuple(record[:5]) for record in raw.decode().starting_at(start)]
    finally:
        cursor.close()
    return rows


def test_a_reader_written_from_the_document_reads_what_the_engine_writes(tmp_path: Path) -> None:
    log = open_log(tmp_path, ManualClock())
    fill(log)
    rows = engine_rows(log, 0)
    assert len(log.segments()) > 5
    assert list(independent_reader.read(str(tmp_path))) == rows
    for start in (0, 1, len(rows) // 2, len(rows) - 1, len(rows)):
        assert list(independent_reader.read(str(tmp_path), start)) == rows[start:]
    log.close()
    assert list(independent_reader.read(str(tmp_path))) == rows


def test_it_reads_what_compaction_leaves_as_well(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock)
    fill(log)
    before = engine_rows(log, 0)
    log.roll()
    compact(log, clock)
    rows = engine_rows(log, 0)
    assert len(rows) < len(before)
    assert list(independent_reader.read(str(tmp_path))) == rows
    middle = before[len(before) // 2][0]
    assert list(independent_reader.read(str(tmp_path), middle)) == [row for row in rows if row[0] >= middle]
    log.close()


def test_it_stops_at_what_is_not_visible(tmp_path: Path) -> None:
    log = open_log(tmp_path, ManualClock())
    log.append([encode([b"seen"])])
    log.sync()
    log.append([encode([b"written, but not durable"])])
    assert [row[3] for row in independent_reader.read(str(tmp_path))] == [b"seen"]
    log.close()
    assert len(list(independent_reader.read(str(tmp_path)))) == 2


def test_it_notices_every_changed_byte(tmp_path: Path) -> None:
    path = write_example(tmp_path)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(independent_reader.Unreadable):
            list(independent_reader.read(str(tmp_path)))


def test_a_data_directory_looks_as_the_document_says(tmp_path: Path) -> None:
    with dq.open(tmp_path / "data") as log:
        orders = log.create_topic("my-orders", partitions=2)
        for number in range(20):
            orders.append(b"value %d" % number, key=b"key %d" % number)
        expected = {
            partition: [tuple(record[:5]) for record in orders.read(partition=partition)] for partition in range(2)
        }
    root = tmp_path / "data"
    marker = json.loads((root / "dq.json").read_text())
    assert marker["format"] == 1
    assert re.fullmatch(r"[0-9a-f]{32}", marker["id"])
    assert isinstance(marker["created"], int)
    assert (
        {"dq.json", "lock", "topics"}
        <= {path.name for path in root.iterdir()}
        <= {"dq.json", "lock", "topics", "index"}
    )
    topics = {path.name.rpartition("-")[0]: path for path in (root / "topics").iterdir()}
    assert set(topics) == {"my-orders", "__metadata"}
    assert topics["__metadata"].name == "__metadata-00000000"
    for partition, rows in expected.items():
        directory = topics["my-orders"] / str(partition)
        assert list(independent_reader.read(str(directory))) == rows
        topic_id = independent_reader.SEGMENT_HEADER.unpack_from((directory / file_name(0)).read_bytes())[4]
        assert topics["my-orders"].name == f"my-orders-{topic_id.hex()[:8]}"
    assert list(independent_reader.read(str(topics["__metadata"] / "0")))
