"""The daemon's sockets, in this process: what clients can and cannot do to each other."""

import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from support.breaking import around
from support.flower import until
from support.refusals import ANY, refused

from fedsim.common.errors import InputError
from fedsim.wire import daemon as daemon_module
from fedsim.wire.connections import at_port, at_socket
from fedsim.wire.daemon import Bounds, Daemon, _Client
from fedsim.wire.dial import LOOPBACK, dial, listens, read_token
from fedsim.wire.frames import Frame, encode, framed, receive, sealed, send

PATIENCE = 30.0
NEVER = 1e6  # seconds
BOUNDS = Bounds(frame_bytes=1000, connections=6)


def frame(kind: str = "greeting") -> bytes:
    return sealed(encode(Frame(kind, {"reason": "no"} if kind == "refusal" else {})))


class Stub:
    """Answers every frame alike; holds requests of `b"wait"` until it is let go."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.entered, self.go = threading.Semaphore(0), threading.Event()
        self.tended, self.usable = threading.Semaphore(0), True

    def tend(self) -> bool:
        self.tended.release()
        return self.usable

    def answer(self, data: bytes) -> bytes:
        self.asked.append(data)
        if data == b"break":
            raise KeyError(data.decode() * 2)
        if data == b"wait":
            self.entered.release()
            assert self.go.wait(PATIENCE)
        return frame()


@contextmanager
def serving(
    path: Path | None, bounds: Bounds = BOUNDS, stub: Stub | None = None, token: bytes | None = None
) -> Iterator[tuple[Stub, Daemon]]:
    """A daemon at a path, or at some port."""
    stub = stub or Stub()
    with at_port(0) if path is None else at_socket(path) as listener:
        daemon = Daemon(stub, listener, bounds, token)
        daemon.port = None if path else listener.getsockname()[1]
        thread = threading.Thread(target=daemon.run)
        thread.start()
        try:
            yield stub, daemon
        finally:
            stub.go.set()
            daemon.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()


def ask(connection: socket.socket, data: bytes = b"hello") -> bytes | None:
    send(connection, data)
    return receive(connection, 10_000)


def ended(connection: socket.socket) -> bool:
    """Whether the daemon has hung up, which it may do with bytes of ours unread."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def has_ended(connection: socket.socket) -> bool:
    """The same, without waiting for it."""
    connection.setblocking(False)
    with suppress(BlockingIOError):
        return ended(connection)
    return False


def sends(clients: ExitStack, path: Path, data: bytes) -> socket.socket:
    """A new client that has sent this and no more."""
    client = clients.enter_context(dial(path, PATIENCE))
    client.sendall(data)
    return client


def test_several_requests_on_several_connections(folder):
    with serving(folder / "s") as (stub, _):
        clients = [dial(folder / "s", PATIENCE) for _ in range(3)]
        for _ in range(5):
            assert [ask(client) for client in clients] == [frame()] * 3
        for client in clients:
            client.close()
    assert len(stub.asked) == 15


def test_a_socket_is_for_owner_and_group_and_goes_with_the_daemon(folder):
    with at_socket(folder / "s"):
        assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o660
    assert not (folder / "s").exists()


def test_a_dead_daemons_socket_is_replaced(folder):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "s"))
        dead.listen()
    with serving(folder / "s"), dial(folder / "s", PATIENCE) as client:
        assert ask(client) == frame()


def test_a_living_daemons_socket_is_left_alone(folder):
    with serving(folder / "s"), dial(folder / "s", PATIENCE) as client:
        with refused("listen.socket", ANY, "no other daemon"), at_socket(folder / "s"):
            pass
        assert ask(client) == frame()
        with dial(folder / "s", PATIENCE) as another:
            assert ask(another) == frame()


def test_what_is_no_socket_is_left_alone(folder):
    (folder / "s").write_text("mine")
    (folder / "link").symlink_to(folder / "s")
    for name in ("s", "link"):
        with refused("listen.socket"), at_socket(folder / name):
            pass
    assert (folder / "s").read_text() == "mine"


def test_a_folder_that_anyone_may_write_to_is_refused(folder):
    folder.chmod(0o777)
    with refused("listen.socket", ANY, "others may not write"), at_socket(folder / "s"):
        pass
    with refused("listen.socket", ANY, "a folder that is there"), at_socket(folder / "none" / "s"):
        pass
    with refused("listen.socket", ANY, "at most 107 bytes"), at_socket(folder / ("s" * 108)):
        pass


def test_another_daemons_new_socket_is_not_removed(folder):
    with at_socket(folder / "s"):
        (folder / "s").rename(folder / "old")
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(folder / "s"))
    assert (folder / "s").exists()


@pytest.mark.parametrize("first", [struct.pack(">Q", 1001), struct.pack(">Q", 2**63) + bytes(10)])
def test_a_frame_over_the_limit_ends_its_connection_only(folder, first):
    with serving(folder / "s") as (stub, _), dial(folder / "s", PATIENCE) as good:
        with dial(folder / "s", PATIENCE) as bad:
            bad.sendall(first)
            assert ended(bad)
        assert ask(good, bytes(1000)) == frame()
    assert len(stub.asked) == 1


def test_a_client_that_breaks_off_harms_no_other(folder):
    with serving(folder / "s"), dial(folder / "s", PATIENCE) as good:
        for sent in (b"", bytes(3), struct.pack(">Q", 10) + bytes(5)):
            with dial(folder / "s", PATIENCE) as bad:
                bad.sendall(sent)
        with dial(folder / "s", PATIENCE) as bad:
            send(bad, b"hello")  # and never takes the answer
        assert ask(good) == frame()


def test_a_defect_ends_one_connection_and_its_text_stays_out_of_the_log(folder, caplog):
    with serving(folder / "s"), dial(folder / "s", PATIENCE) as good:
        with dial(folder / "s", PATIENCE) as bad:
            send(bad, b"break")
            assert ended(bad)
        assert ask(good) == frame()
    assert "KeyError" in caplog.text
    assert "breakbreak" not in caplog.text


LENGTH = struct.pack(">Q", 500)
SLOW = [b"", b"\0", bytes(7), LENGTH, LENGTH + b"x"]


@pytest.mark.parametrize("sent", SLOW)
def test_fifty_slow_clients_keep_no_other_waiting(folder, sent):
    """None of them is waited for, and none has to go: a bound on time would fail the test."""
    with serving(folder / "s", Bounds(1000, requests=1, begin=NEVER, transfer=NEVER)), ExitStack() as slow:
        with dial(folder / "s", PATIENCE) as client:
            assert ask(client) == frame()
            silent = [sends(slow, folder / "s", sent) for _ in range(50)]
            assert ask(client) == frame()
        for _ in range(3):
            with dial(folder / "s", PATIENCE) as client:
                assert ask(client) == frame()
        assert not any(has_ended(each) for each in silent)


@pytest.mark.parametrize("sent", SLOW)
def test_of_too_many_the_slow_go_first_and_the_slowest_before_them(folder, sent):
    bounds = Bounds(1000, connections=6, begin=NEVER, transfer=NEVER)
    with serving(folder / "s", bounds), ExitStack() as slow, dial(folder / "s", PATIENCE) as idle:
        assert ask(idle) == frame()
        silent = [sends(slow, folder / "s", sent) for _ in range(20)]
        with dial(folder / "s", PATIENCE) as client:
            assert ask(client) == frame()
            assert [has_ended(each) for each in silent] == [True] * 16 + [False] * 4
        assert ask(idle) == frame()


def test_bytes_of_requests_are_bounded_and_the_slowest_makes_room(folder, monkeypatch):
    """Room for two frames, and five clients that send nine tenths of one."""
    held: list[int] = []
    monkeypatch.setattr(_Client, "read", _Client.read)
    around(_Client, "read", after=lambda *_: held.append(sum(len(each.come) for each in daemon._sending)))
    bounds = Bounds(1000, requests=2, begin=NEVER, transfer=NEVER)
    with serving(folder / "s", bounds) as (_, daemon), ExitStack() as slow:
        most = [sends(slow, folder / "s", struct.pack(">Q", 1000) + bytes(900)) for _ in range(5)]
        with dial(folder / "s", PATIENCE) as client:
            assert ask(client, bytes(1000)) == frame()
        assert [has_ended(each) for each in most] == [True] * 4 + [False]
    assert 1800 <= max(held) <= 2000


def test_while_all_places_are_taken_no_request_is_read(folder):
    with serving(folder / "s", Bounds(1000, requests=1)) as (stub, daemon), ExitStack() as clients:
        first, second = sends(clients, folder / "s", framed(b"wait")), sends(clients, folder / "s", b"")
        assert stub.entered.acquire(timeout=PATIENCE)
        send(second, bytes(1000))
        with dial(folder / "s", PATIENCE) as third:  # it is let in after what the second has sent is there
            until(lambda: len(daemon._sending) == 2)
            assert not any(each.begun for each in daemon._sending)
            stub.go.set()
            assert ask(third) == receive(first, 10_000) == receive(second, 10_000) == frame()


def test_half_a_length_is_waited_for_a_bounded_time(folder):
    bounds = Bounds(frame_bytes=1000, begin=0.2, transfer=NEVER)
    with serving(folder / "s", bounds), dial(folder / "s", PATIENCE) as slow:
        slow.sendall(b"\0")
        assert ended(slow)


def test_a_frame_that_trickles_in_does_not_get_more_time_by_it(folder):
    with serving(folder / "s", Bounds(1000, transfer=0.2)), dial(folder / "s", PATIENCE) as slow:
        slow.sendall(struct.pack(">Q", 1000))
        with suppress(ConnectionError):
            for _ in range(1000):
                slow.sendall(b"x")
                time.sleep(0.02)
            pytest.fail("it was waited for as long as something came")


def test_an_answer_that_is_not_taken_holds_a_place_for_a_bounded_time(folder):
    class Long(Stub):
        def answer(self, data):
            return frame() + bytes(8 << 20) if data == b"much" else frame()

    bounds = Bounds(frame_bytes=1000, requests=1, begin=0.5, transfer=NEVER)
    with serving(folder / "s", bounds, Long()), dial(folder / "s", PATIENCE) as deaf:
        send(deaf, b"much")
        with dial(folder / "s", PATIENCE) as client:
            assert ask(client) == frame()


def test_an_idle_client_is_let_go(folder):
    short = Bounds(frame_bytes=1000, idle=0.1)
    with serving(folder / "s", short), dial(folder / "s", PATIENCE) as client:
        assert ended(client)


def test_stopping_finishes_what_is_in_hand(folder):
    with serving(folder / "s") as (stub, daemon), dial(folder / "s", PATIENCE) as busy:
        send(busy, b"wait")
        assert stub.entered.acquire(timeout=PATIENCE)
        send(busy, b"after")  # it has not been begun
        with dial(folder / "s", PATIENCE) as idle:
            assert ask(idle) == frame()
            daemon.stop()
            assert ended(idle)
        stub.go.set()
        assert receive(busy, 10_000) == frame()
        assert ended(busy)
    assert stub.asked == [b"wait", b"hello"]


def test_a_party_that_has_failed_is_ended_once_what_is_in_hand_has_its_answer(folder):
    with serving(folder / "s") as (stub, daemon), dial(folder / "s", PATIENCE) as busy:
        send(busy, b"wait")
        assert stub.entered.acquire(timeout=PATIENCE)
        stub.usable = False
        with dial(folder / "s", PATIENCE) as client:
            assert ask(client) == frame()
            assert ended(client)
        until(lambda: not listens(folder / "s", PATIENCE), PATIENCE)  # it lets clients go, then closes
        stub.go.set()
        assert receive(busy, 10_000) == frame()
        assert ended(busy)
        assert daemon.failed


def test_an_idle_party_is_tended_and_a_stop_is_no_failure(folder, monkeypatch):
    monkeypatch.setattr(daemon_module, "_TEND", 0.01)
    with serving(folder / "s") as (stub, daemon):
        for _ in range(20):
            assert stub.tended.acquire(timeout=PATIENCE)
        assert not daemon.failed
        daemon.stop()
        stub.usable = False
    assert not daemon.failed


def test_answers_under_way_are_bounded(folder):
    with serving(folder / "s", Bounds(frame_bytes=1000, answers=1)) as (stub, _):
        first, second = dial(folder / "s", PATIENCE), dial(folder / "s", PATIENCE)
        with first, second:
            send(first, b"wait")
            assert stub.entered.acquire(timeout=PATIENCE)
            send(second, b"wait")
            assert not stub.entered.acquire(timeout=0.2)
            stub.go.set()
            assert receive(first, 10_000) == receive(second, 10_000) == frame()


def test_stopping_does_not_wait_for_ever(folder):
    stub = Stub()
    with at_socket(folder / "s") as listener:
        daemon = Daemon(stub, listener, Bounds(frame_bytes=1000, drain=0.1))
        ended_well: list[bool] = []
        thread = threading.Thread(target=lambda: ended_well.append(daemon.run()))
        thread.start()
        with dial(folder / "s", PATIENCE) as client:
            send(client, b"wait")
            assert stub.entered.acquire(timeout=PATIENCE)
            daemon.stop()
            thread.join(PATIENCE)
            assert ended_well == [False]
            assert ended(client)  # it may ask again, whoever listens then
            stub.go.set()


@pytest.fixture
def port():
    token = bytes(range(32))
    with serving(None, token=token) as (stub, daemon):
        yield daemon.port, token, stub


def test_a_port_is_of_the_loopback_interface_and_asks_for_the_token(port):
    number, token, stub = port
    with dial((number, token), PATIENCE) as client:
        assert client.getpeername()[0] == LOOPBACK == "127.0.0.1"
        assert ask(client) == frame()
    for wrong in (bytes(32), token[:-1], token + b"x", b""):
        with dial((number, wrong), PATIENCE) as client:
            assert ended(client)
    with socket.create_connection((LOOPBACK, number), PATIENCE) as client:
        send(client, frame("hello"))  # no token, but a request at once
        assert ended(client)
    assert len(stub.asked) == 1


def test_a_taken_port_is_named(port):
    with refused("listen.port"), at_port(port[0]):
        pass


def test_clients_without_a_token_keep_no_other_out(port):
    number, token, _ = port
    silent = [socket.create_connection((LOOPBACK, number), PATIENCE) for _ in range(10)]
    with dial((number, token), PATIENCE) as client:
        assert ask(client) == frame()
        assert ask(client) == frame()
    for each in silent:
        each.close()


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o601])
def test_a_token_that_others_may_read_or_write_is_refused(folder, mode):
    (folder / "t").write_text("ab" * 32 + "\n")
    (folder / "t").chmod(0o640)
    assert read_token(folder / "t") == b"\xab" * 32
    (folder / "t").chmod(mode)
    with refused("token", ANY, "mode 600 or 640"):
        read_token(folder / "t")


@pytest.mark.parametrize("text", ["", "ab" * 31, "AB" * 32, "xy" * 32, "ab" * 33, "ab" * 32 + "\nab"])
def test_a_token_of_another_form_is_refused_and_not_shown(folder, text):
    (folder / "t").write_text(text)
    (folder / "t").chmod(0o600)
    with pytest.raises(InputError, match="64 hexadecimal digits") as caught:
        read_token(folder / "t")
    assert not text or text not in str(caught.value)
