"""Whoever is not a member gets nothing executed, no memory worth speaking of, and disturbs nobody."""

from __future__ import annotations

import os
import pickle
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from dq.engine.errors import InvalidConfig
from dq.engine.raft.transport import Security
from dq.engine.raft.wire import MAX_HANDSHAKE, FrameReader, FrameWriter, Handshake, Refused
from tests.raft.cluster import SECRET, Cluster
from tests.raft.test_leader_kill import Load


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def talk(port: int, data: bytes, seconds: float = 5.0) -> bytes:
    """Sends bytes and returns what comes back until the connection is closed by the other side."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        received = b""
        try:
            connection.sendall(data)
            while chunk := connection.recv(65536):
                received += chunk
        except ConnectionError:
            pass
        return received


def test_pickles_are_not_loaded_and_nobody_is_disturbed(cluster: Cluster, tmp_path: Path) -> None:
    leader, term = cluster.leader(), cluster.leader().call("status")[2]
    target = str(tmp_path / "executed")
    bomb = pickle.dumps(Bomb(target))
    forged = {"type": "append_entries", "term": 1000, "commit_index": 1, "entries": [], "prevLogIdx": 1}
    attacks = [
        bomb,
        frame(bomb),
        frame(msgpack.packb(bomb)),
        frame(msgpack.packb(["hello", 1, "dq", "a", "b", bomb])),
        frame(pickle.dumps(forged)),
        frame(msgpack.packb(forged)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 5000,
        (MAX_HANDSHAKE + 1).to_bytes(4, "little"),
        (1 << 31).to_bytes(4, "little") + bytes(100_000),
        frame(b"\x91" * 900),
        random.Random(1).randbytes(20_000),
    ]
    with Load(cluster, 1) as load:
        for attack in attacks:
            for port in cluster.ports.values():
                assert talk(port, attack) == b""
        load.wait_for_more(20)
    assert not os.path.exists(target)
    assert cluster.leader() is leader
    assert leader.call("status")[2] == term
    cluster.converge()


def test_a_stranger_who_says_nothing_is_sent_away(cluster: Cluster) -> None:
    assert talk(cluster.ports["a"], b"", seconds=6.0) == b""


def test_one_who_knows_the_names_but_not_the_secret_is_sent_away(cluster: Cluster) -> None:
    shake = Handshake("dq", "b", b"some other secret, also 32 bytes")
    writer, reader = FrameWriter(), FrameReader()
    with socket.create_connection(("127.0.0.1", cluster.ports["a"]), timeout=5) as connection:
        connection.sendall(b"".join(writer.pack(shake.hello("a"))))
        (welcome,) = reader.feed(connection.recv(4096))
        with pytest.raises(Refused):
            shake.answer_welcome(welcome)
        connection.sendall(b"".join(writer.pack(["proof", os.urandom(32)])))
        try:
            assert connection.recv(100) == b""
        except ConnectionError:
            pass


def test_a_recorded_conversation_means_nothing_the_second_time(cluster: Cluster) -> None:
    """Also from one who knows the secret: the listener's nonce is new each time."""
    shake = Handshake("dq", "b", SECRET)
    first = b"".join(FrameWriter().pack(shake.hello("a")))
    with socket.create_connection(("127.0.0.1", cluster.ports["a"]), timeout=5) as connection:
        connection.sendall(first)
        (welcome,) = FrameReader().feed(connection.recv(4096))
        proof = b"".join(FrameWriter().pack(shake.answer_welcome(welcome)))
    with socket.create_connection(("127.0.0.1", cluster.ports["a"]), timeout=5) as connection:
        connection.sendall(first)
        connection.recv(4096)
        connection.sendall(proof)
        try:
            assert connection.recv(100) == b""
        except ConnectionError:
            pass


def test_many_silent_strangers_do_not_keep_members_out(cluster: Cluster) -> None:
    crowd = [socket.create_connection(("127.0.0.1", cluster.ports["a"]), timeout=5) for _ in range(200)]
    try:
        with Load(cluster, 9) as load:
            load.wait_for_more(20)
    finally:
        for connection in crowd:
            connection.close()
    cluster.converge()


def test_frames_are_bound_to_their_place_in_the_session() -> None:
    writer, reader = FrameWriter(), FrameReader()
    writer.key = reader.key = bytes(32)
    one, two = (b"".join(writer.pack({"n": number})) for number in range(2))
    with pytest.raises(Refused):
        list(reader.feed(two))
    reader = FrameReader()
    reader.key = bytes(32)
    assert list(reader.feed(one + two[:-1])) == [{"n": 0}]
    with pytest.raises(Refused):
        list(reader.feed(bytes([two[-1] ^ 1])))


def test_there_is_no_way_to_run_without_proof_of_identity() -> None:
    with pytest.raises(InvalidConfig):
        Security()
    with pytest.raises(InvalidConfig):
        Security(b"short")


def _certificates(folder: Path, names: str) -> dict[str, list[str]]:
    """One authority, and a certificate for each name."""

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    made = {}
    for name in names:
        run("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "san").write_text(f"subjectAltName=DNS:{name}")
        signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "san"]
        run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
        made[name] = [str(folder / f"{name}.pem"), str(folder / f"{name}.key"), str(folder / "ca.pem")]
    return made


def test_with_tls_a_node_is_who_its_certificate_says(tmp_path: Path) -> None:
    certificates = _certificates(tmp_path, "abcx")
    cluster = Cluster(tmp_path, secret=None)
    for name, node in cluster.nodes.items():
        node.config["tls"] = certificates[name]
    with cluster:
        with Load(cluster, 1) as load:
            load.wait_for_more(20)
        cluster.converge()
        victim = next(node for node in cluster.nodes.values() if node is not cluster.leader())
        victim.close()
        victim.config["tls"] = certificates["x"]  # signed by the same authority, but of another name
        victim.start()
        victim.wait_ready()
        with Load(cluster, 2) as more:
            more.wait_for_more(20)
        assert cluster.status_of(victim)[1] is None  # type: ignore[index]
        victim.close()
        victim.config["tls"] = certificates[victim.name]
        victim.start()
        victim.wait_ready()
        cluster.converge()
