"""One behaviour for every file system the engine may run on: the real one, the one in memory and the faulty one."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dq.engine.files import FileSystem, OsFiles, read_file, replace_file
from dq.engine.memory_files import MemoryFiles
from tests.faulty_files import CrashPoint, FaultyFiles


@pytest.fixture(params=["os", "memory", "faulty"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    if request.param == "os":
        return OsFiles()
    return MemoryFiles() if request.param == "memory" else FaultyFiles()


@pytest.fixture
def root(files: FileSystem, tmp_path: Path) -> str:
    path = str(tmp_path / "root") if isinstance(files, OsFiles) else "/some/root"
    files.make_directory(path)
    return path


def store(files: FileSystem, path: str, data: bytes) -> None:
    file = files.open(path, write=True, create=True)
    file.truncate(0)
    file.write([data], 0)
    file.close()


def test_what_is_written_is_read_back(files: FileSystem, root: str) -> None:
    file = files.open(f"{root}/f", write=True, create=True)
    assert file.write([b"ab", bytearray(b"cd"), memoryview(b"ef"), b""], 0) == 6
    assert file.write([b"gh"], 6) == 2
    assert file.write([b"XY", b"Z"], 3) == 3
    assert (file.size(), file.pread(100, 0), file.pread(2, 5)) == (8, b"abcXYZgh", b"Zg")
    assert (file.pread(5, 8), file.pread(5, 100), file.pread(0, 0)) == (b"", b"", b"")
    assert isinstance(file.pread(4, 0), bytes)
    file.sync()
    file.close()
    file.close()


def test_a_write_beyond_the_end_leaves_zeros_between(files: FileSystem, root: str) -> None:
    file = files.open(f"{root}/f", write=True, create=True)
    file.write([b"a"], 0)
    assert file.write([b"b"], 4) == 1
    assert file.pread(10, 0) == b"a\0\0\0b"
    file.write([b"0123456789"], 2)
    assert file.pread(20, 0) == b"a\x00" + b"0123456789"
    file.close()


def test_a_file_can_be_cut_and_lengthened(files: FileSystem, root: str) -> None:
    file = files.open(f"{root}/f", write=True, create=True)
    file.write([b"abcdef"], 0)
    file.truncate(2)
    assert file.pread(10, 0) == b"ab"
    file.truncate(4)
    assert file.pread(10, 0) == b"ab\0\0"
    file.close()


def test_what_is_not_there_is_not_found(files: FileSystem, root: str) -> None:
    assert not files.exists(f"{root}/f")
    assert files.list(f"{root}/nowhere") == []
    assert read_file(files, f"{root}/f") is None
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/f")
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/nowhere/f", write=True, create=True)
    with pytest.raises(FileNotFoundError):
        files.remove(f"{root}/f")
    with pytest.raises(FileNotFoundError):
        files.rename(f"{root}/f", f"{root}/g")
    with pytest.raises(FileNotFoundError):
        files.remove_tree(f"{root}/nowhere")
    with pytest.raises(FileNotFoundError):
        files.counter(f"{root}/c", write=False)
    with pytest.raises(FileNotFoundError):
        files.sync_directory(f"{root}/nowhere")


def test_files_and_directories_are_not_mistaken_for_each_other(files: FileSystem, root: str) -> None:
    store(files, f"{root}/f", b"")
    files.make_directory(f"{root}/d")
    with pytest.raises(NotADirectoryError):
        files.list(f"{root}/f")
    with pytest.raises(NotADirectoryError):
        files.open(f"{root}/f/x", write=True, create=True)
    with pytest.raises(IsADirectoryError):
        files.open(f"{root}/d", write=True)
    with pytest.raises(OSError):
        files.remove(f"{root}/d")
    with pytest.raises(NotADirectoryError):
        files.remove_tree(f"{root}/f")


def test_a_file_that_is_open_for_reading_cannot_be_written(files: FileSystem, root: str) -> None:
    store(files, f"{root}/f", b"abc")
    file = files.open(f"{root}/f")
    for write in (lambda: file.write([b"x"], 0), lambda: file.truncate(0)):
        with pytest.raises(OSError):
            write()
    assert file.pread(3, 0) == b"abc"
    file.close()
    for call in (lambda: file.pread(1, 0), file.size, file.sync):
        with pytest.raises((OSError, ValueError)):
            call()


def test_an_open_file_survives_its_removal_and_its_renaming(files: FileSystem, root: str) -> None:
    store(files, f"{root}/f", b"abc")
    file = files.open(f"{root}/f", write=True)
    files.rename(f"{root}/f", f"{root}/g")
    file.write([b"d"], 3)
    assert read_file(files, f"{root}/g") == b"abcd"
    files.remove(f"{root}/g")
    file.write([b"e"], 4)
    assert file.pread(10, 0) == b"abcde"
    store(files, f"{root}/g", b"another")
    assert file.pread(10, 0) == b"abcde"
    file.close()


def test_a_rename_replaces_its_target_and_leaves_those_who_read_it_alone(files: FileSystem, root: str) -> None:
    store(files, f"{root}/old", b"old")
    store(files, f"{root}/new", b"new")
    reader = files.open(f"{root}/old")
    files.rename(f"{root}/new", f"{root}/old")
    assert (read_file(files, f"{root}/old"), reader.pread(9, 0)) == (b"new", b"old")
    assert files.list(root) == ["old"]
    files.rename(f"{root}/old", f"{root}/old")
    assert files.list(root) == ["old"]
    reader.close()


def test_a_file_is_replaced_in_one_step(files: FileSystem, root: str) -> None:
    for sync in (True, False):
        replace_file(files, f"{root}/f", b"a longer one", sync=sync)
        replace_file(files, f"{root}/f", b"short", sync=sync)
        assert read_file(files, f"{root}/f") == b"short"
    assert files.list(root) == ["f"]


def test_directories_are_made_listed_renamed_and_removed_with_what_is_in_them(files: FileSystem, root: str) -> None:
    files.make_directory(f"{root}/a/b/c")
    files.make_directory(f"{root}/a/b")
    store(files, f"{root}/a/b/f", b"1")
    store(files, f"{root}/a/g", b"2")
    assert sorted(files.list(f"{root}/a")) == ["b", "g"]
    assert files.exists(f"{root}/a/b/c")
    files.rename(f"{root}/a", f"{root}/z")
    assert not files.exists(f"{root}/a/b/f")
    assert read_file(files, f"{root}/z/b/f") == b"1"
    assert sorted(files.list(f"{root}/z/b")) == ["c", "f"]
    files.make_directory(f"{root}/full")
    store(files, f"{root}/full/f", b"")
    with pytest.raises(OSError):
        files.rename(f"{root}/z", f"{root}/full")
    files.remove_tree(f"{root}/z")
    assert not files.exists(f"{root}/z/b/f")
    assert files.list(root) == ["full"]


def test_a_path_may_be_spelled_in_several_ways(files: FileSystem, root: str) -> None:
    store(files, f"{root}/f", b"abc")
    files.make_directory(f"{root}/d/")
    assert read_file(files, f"{root}/./d/..//f") == b"abc"


def test_a_counter_is_seen_by_all_who_have_it_open(files: FileSystem, root: str) -> None:
    writer = files.counter(f"{root}/c", write=True)
    reader = files.counter(f"{root}/c", write=False)
    assert (writer.get(), reader.get()) == (0, 0)
    writer.set(1 << 40)
    assert (writer.get(), reader.get()) == (1 << 40, 1 << 40)
    writer.close()
    assert reader.get() == 1 << 40
    again = files.counter(f"{root}/c", write=True)
    assert again.get() == 1 << 40
    again.set(-1)
    assert reader.get() == -1
    with pytest.raises(TypeError):
        reader.set(1)
    again.close()
    reader.close()


def test_a_lock_is_held_by_one(files: FileSystem, root: str) -> None:
    lock = files.lock(f"{root}/lock")
    with pytest.raises(BlockingIOError, match="process"):
        files.lock(f"{root}/lock")
    lock.release()
    lock.release()
    files.lock(f"{root}/lock").release()


def test_reads_during_appends_see_whole_prefixes(files: FileSystem, root: str) -> None:
    file = files.open(f"{root}/f", write=True, create=True)
    block = bytes(range(256))
    done = threading.Event()

    def read() -> None:
        reader = files.open(f"{root}/f")
        while not done.is_set():
            data = reader.pread(1 << 20, 0)
            assert data == (block * 500)[: len(data)]
        reader.close()

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        position = 0
        for _ in range(400):
            position += file.write([block[:100], block[100:]], position)
        done.set()
        for reader in readers:
            reader.result(20)
    file.close()


def test_a_boot_id_belongs_to_one_file_system() -> None:
    assert MemoryFiles().boot_id != MemoryFiles().boot_id
    assert OsFiles().boot_id == OsFiles().boot_id


# ---------------------------------------------------------------- the faulty one


def test_a_kill_keeps_what_was_written_and_a_power_loss_only_what_was_synced() -> None:
    outcomes = set()
    for seed in range(40):
        files = FaultyFiles(seed)
        files.make_directory("/d")
        file = files.open("/d/f", write=True, create=True)
        file.write([b"synced"], 0)
        file.sync()
        files.sync_directory("/d")
        file.write([b"!"], 6)
        boot_id = files.boot_id
        files.kill()
        assert (read_file(files, "/d/f"), files.boot_id) == (b"synced!", boot_id)
        with pytest.raises(CrashPoint):
            file.pread(1, 0)
        files.power_loss()
        outcomes.add(read_file(files, "/d/f"))
        assert files.boot_id != boot_id
    assert outcomes == {b"synced", b"synced!", b"synced\0"}


def test_a_name_is_kept_for_sure_only_once_its_directory_is_synced() -> None:
    outcomes = set()
    for seed in range(60):
        files = FaultyFiles(seed)
        files.make_directory("/d")
        store(files, "/d/kept", b"")
        files.sync_directory("/d")
        for name in ("created", "renamed.tmp"):
            file = files.open(f"/d/{name}", write=True, create=True)
            file.write([b"x"], 0)
            file.sync()
        files.rename("/d/renamed.tmp", "/d/renamed")
        files.remove("/d/kept")
        files.power_loss()
        outcomes.add(tuple(files.list("/d")))
    assert {("kept",), ("created", "renamed"), ("created", "kept"), ("renamed",)} <= outcomes
    assert not any("renamed" in names and "renamed.tmp" in names for names in outcomes)


def test_pages_are_lost_independently_of_each_other() -> None:
    outcomes = set()
    for seed in range(60):
        files = FaultyFiles(seed, page=4)
        files.make_directory("/")
        file = files.open("/f", write=True, create=True)
        file.write([b"aaaabbbbcccc"], 0)
        file.sync()
        files.sync_directory("/")
        file.write([b"AAAABBBBCCCC"], 0)
        files.power_loss()
        outcomes.add(read_file(files, "/f"))
    assert len(outcomes) == 8


def test_after_a_failed_sync_reads_and_syncs_lie_until_the_pages_are_written_again() -> None:
    lost = 0
    for seed in range(40):
        for again in (False, True):
            files = FaultyFiles(seed, page=4)
            file = files.open("/f", write=True, create=True)
            files.sync_directory("/")
            file.write([b"aaaabbbb"], 0)
            files.fail("sync")
            with pytest.raises(OSError):
                file.sync()
            assert file.pread(8, 0) == b"aaaabbbb"
            if again:
                file.write([b"aaaabbbb"], 0)
            file.sync()
            files.power_loss()
            complete = read_file(files, "/f") == b"aaaabbbb"
            assert complete or not again
            lost += not complete
    assert lost > 10


def test_a_full_disk_takes_what_fits_and_more_once_there_is_space() -> None:
    files = FaultyFiles()
    file = files.open("/f", write=True, create=True)
    files.fill_up(5)
    file.write([b"abc"], 0)
    with pytest.raises(OSError, match="No space left"):
        file.write([b"defg"], 3)
    assert file.pread(10, 0) == b"abcde"
    file.write([b"xyz"], 0)  # what is there already can be overwritten
    file.truncate(2)
    assert file.write([b"123"], 2) == 3


def test_everything_is_dead_from_the_armed_call_on_and_the_same_seed_dies_the_same_way() -> None:
    def life(seed: int) -> list[bytes | None]:
        ends = []
        for call in range(1, 8):
            files = FaultyFiles(seed, page=4)
            files.crash_at(call)
            with pytest.raises(CrashPoint):
                for _ in range(10):
                    replace_file(files, "/f", b"0123456789", sync=True)
            with pytest.raises(CrashPoint):
                files.exists("/f")
            files.crash()
            ends.append(read_file(files, "/f"))
        return ends

    seed = random.Random(3).getrandbits(32)
    assert life(seed) == life(seed)
    assert {None, b"0123456789"} == {end for seed in range(10) for end in life(seed)}
