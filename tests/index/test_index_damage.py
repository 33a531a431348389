"""Whatever is done to the index's files while nobody has them mapped, the log gives the same answers afterwards and
no process dies of it. Everything that maps damaged files runs in a process of its own."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dq.engine.index.salvage import salvage
from dq.engine.index.state import State, Verdict, inspect, read_state, write_state
from tests.index.index_tools import (
    BOOT,
    OTHER_TOPIC,
    TOPIC,
    append,
    assert_answers,
    assert_never_wrong,
    entry_of,
    environment,
    fill,
    in_child,
    in_killed_child,
    open_log,
)

BATCHES = 40
END = 4 * BATCHES
OTHERS = 600  # entries of another topic


def write(data: Path, *, close: bool) -> None:
    """Fills a data directory: a log, and an index of a dozen pages that also knows another topic."""
    env = environment(data)
    log = open_log(data, env.partition(TOPIC, 3))
    append(log, BATCHES)
    for partition in range(3):
        fill(env.partition(OTHER_TOPIC, partition), 0, OTHERS // 3)
    env.flush()
    if close:
        log.close()
        env.close()


def read_as_others_do(data: Path) -> None:
    reader = environment(data, read_only=True)
    for partition in range(3):
        assert_never_wrong(reader.partition(OTHER_TOPIC, partition), OTHERS // 3)
    reader.close()


def go_on(data: Path) -> None:
    """The next writer: it finds everything, writes and closes."""
    env = environment(data)
    log = open_log(data, env.partition(TOPIC, 3))
    assert_answers(log, END)
    for partition in range(3):
        assert_never_wrong(env.partition(OTHER_TOPIC, partition), OTHERS // 3)
        fill(env.partition(OTHER_TOPIC, partition), 0, OTHERS // 3)
    append(log, BATCHES)
    assert_answers(log, 2 * END)
    log.close()
    env.close()


def go_on_once_more(data: Path) -> None:
    """The one after it: the index is sound again."""
    env = environment(data)
    log = open_log(data, env.partition(TOPIC, 3))
    assert_answers(log, 2 * END)
    for partition in range(3):
        assert assert_never_wrong(env.partition(OTHER_TOPIC, partition), OTHERS // 3) == OTHERS // 3
    log.close()
    env.close()


# ---------------------------------------------------------------- kinds of damage

Damage = Callable[[random.Random, Path], None]


def remove(_: random.Random, path: Path) -> None:
    path.unlink()


def truncate(chance: random.Random, path: Path) -> None:
    os.truncate(path, chance.choice([0, 1, 4096, 8192, chance.randrange(path.stat().st_size)]))


def extend(chance: random.Random, path: Path) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.choice([1, 4096, 100_000])))


def randomise(chance: random.Random, path: Path) -> None:
    path.write_bytes(chance.randbytes(path.stat().st_size))


def overwrite_a_part(chance: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    first = chance.randrange(len(data))
    part = data[first : first + chance.choice([1, 16, 4096, 20_000])]
    data[first : first + len(part)] = chance.choice([chance.randbytes(len(part)), bytes(len(part))])
    path.write_bytes(data)


def flip_bits(chance: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 1, 8, 64])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def flip_bits_in_page_headers(chance: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 4])):
        page = chance.randrange(-(-len(data) // 4096))
        data[min(page * 4096 + chance.randrange(64), len(data) - 1)] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def exchange_pages(chance: random.Random, path: Path) -> None:
    data = path.read_bytes()
    pages = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    chance.shuffle(pages)
    path.write_bytes(b"".join(pages))


DAMAGES: list[Damage] = [
    remove,
    truncate,
    extend,
    randomise,
    overwrite_a_part,
    flip_bits,
    flip_bits_in_page_headers,
    exchange_pages,
]


def damage(seed: int, data: Path) -> None:
    chance = random.Random(seed)
    do = DAMAGES[seed % len(DAMAGES)]
    name = chance.choice(["data.mdb", "data.mdb", "data.mdb", "state", "lock.mdb"])
    print(f"seed {seed}: {do.__name__} {name}")
    path = data / "index" / name
    if path.exists() and path.stat().st_size:
        do(chance, path)


def damage_after_a_clean_close(data: Path, seed: int) -> None:
    in_child(lambda: write(data, close=True))
    damage(seed, data)


def damage_after_a_kill(data: Path, seed: int) -> None:
    in_killed_child(lambda: write(data, close=False))
    damage(seed, data)


def damage_and_kills_in_turn(data: Path, seed: int) -> None:
    in_child(lambda: write(data, close=True))
    chance = random.Random(seed)
    for turn in range(3):
        if chance.random() < 0.5:
            in_killed_child(lambda: fill(environment(data).partition(OTHER_TOPIC, 0), 0, OTHERS // 3))
        if chance.random() < 0.7:
            damage(100 * seed + turn, data)
        in_child(lambda: read_as_others_do(data))


def check_story(story: Callable[[Path, int], None], data: Path, seed: int) -> None:
    story(data, seed)
    in_child(lambda: read_as_others_do(data))
    in_child(lambda: go_on(data))
    in_child(lambda: go_on_once_more(data))
    shutil.rmtree(data)  # some megabytes each


STORIES = [damage_after_a_clean_close, damage_after_a_kill, damage_and_kills_in_turn]


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("seed", range(len(DAMAGES)))
def test_the_log_answers_as_before(tmp_path: Path, story: Callable[[Path, int], None], seed: int) -> None:
    check_story(story, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("seed", range(100, 500))
def test_the_log_answers_as_before_many_times(tmp_path: Path, story: Callable[[Path, int], None], seed: int) -> None:
    check_story(story, tmp_path, seed)


# ---------------------------------------------------------------- undamaged


def entries_in(data: Path, *, boot: str = BOOT, read_only: bool = False) -> int:
    env = environment(data, boot=boot, read_only=read_only)
    try:
        return env.statistics().entries
    finally:
        env.close()


def test_after_a_kill_everything_that_was_flushed_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    in_killed_child(lambda: write(tmp_path, close=False))
    found = entries_in(tmp_path, read_only=True)
    assert found > OTHERS
    assert inspect(f"{tmp_path}/index", BOOT) is Verdict.UNCLOSED
    assert entries_in(tmp_path) == found
    assert inspect(f"{tmp_path}/index", BOOT) is Verdict.SOUND
    assert caplog.messages == []


@pytest.mark.parametrize("boot", ["boot-2", ""])
def test_after_a_power_loss_the_index_starts_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture, boot: str) -> None:
    in_killed_child(lambda: write(tmp_path, close=False))
    assert entries_in(tmp_path, boot=boot, read_only=True) == 0
    assert entries_in(tmp_path, boot=boot) == 0
    assert len(caplog.messages) == 2  # one of the reader, one of the writer
    assert all("machine went down" in message for message in caplog.messages)


def test_after_a_clean_close_a_reboot_does_no_harm(tmp_path: Path) -> None:
    in_child(lambda: write(tmp_path, close=True))
    assert entries_in(tmp_path, boot="boot-2") > OTHERS


@pytest.mark.parametrize("transfer", [shutil.copytree, shutil.move])
@pytest.mark.parametrize("close", [True, False])
def test_an_index_of_another_directory_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, transfer: Callable[[Path, Path], object], close: bool
) -> None:
    """The same partition, but a log that went another way: its entries would be wrong here."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    in_child(lambda: write(here, close=True))
    shutil.rmtree(here / "index")

    def write_there() -> None:
        env = environment(there)
        for number in range(300):
            env.partition(TOPIC, 3).add(entry_of(number * 4)._replace(segment=0, max_timestamp=0))
        env.flush()
        if close:
            env.close()

    (in_child if close else in_killed_child)(write_there)
    transfer(there / "index", here / "index")
    assert entries_in(here, read_only=True) == 0
    go_on(here)
    assert any("another directory" in message for message in caplog.messages)


def test_an_index_moves_with_its_data_directory(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    in_child(lambda: write(tmp_path / "old", close=True))
    (tmp_path / "old").rename(tmp_path / "new")
    assert entries_in(tmp_path / "new") > OTHERS


def test_a_state_of_an_unknown_version_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State("boot", 1, 2, True, 3, 4)
    write_state(str(tmp_path), state, sync=False)
    assert read_state(str(tmp_path)) == state
    monkeypatch.setattr("dq.engine.index.state._VERSION", 2)
    assert read_state(str(tmp_path)) is None


def test_where_no_process_can_be_started_the_index_starts_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_killed_child(lambda: write(tmp_path, close=False))
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    assert not salvage(f"{tmp_path}/index/data.mdb", f"{tmp_path}/copy.mdb")
    assert entries_in(tmp_path) == 0
    assert len(caplog.messages) == 1
