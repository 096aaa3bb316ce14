"""Frames over daemons' sockets: late, lost and stray replies, restarts, and nothing left behind."""

import os
import socket
import struct
import threading
from contextlib import suppress

import psutil
import pytest
from support.daemons import Listener

from fedsim.wire.frames import receive, send
from server.sockets import Sockets


def echo(connection: socket.socket) -> None:
    """Answers every frame with itself and a mark."""
    while (frame := receive(connection, 1 << 20)) is not None:
        send(connection, frame + b"!")


@pytest.fixture
def start(folder):
    made: list[Listener] = []

    def begin(name: str, serve=echo) -> Listener:
        made.append(Listener(folder / name, serve))
        return made[-1]

    yield begin
    for server in made:
        with suppress(OSError):
            server.stop()


@pytest.fixture
def sockets(folder):
    with Sockets({name: folder / name for name in ("a", "b")}, limit=1000) as made:
        yield made


def test_each_silo_gets_its_frame(start, sockets):
    a, b = start("a"), start("b")
    for r in range(5):
        frames = {"a": b"to a %d" % r, "b": b"to b %d" % r}
        assert sockets.exchange(frames, 20) == {"a": b"to a %d!" % r, "b": b"to b %d!" % r}
    assert sockets.exchange({"b": b"alone"}, 20) == {"b": b"alone!"}
    assert (len(a.connections), len(b.connections)) == (1, 1)  # they last


def test_a_silo_that_is_not_there_holds_up_no_other_reply(start, sockets):
    start("a")
    assert sockets.exchange({"a": b"x", "b": b"x"}, 0.3) == {"a": b"x!"}


def test_a_silo_that_starts_late_is_reached_within_the_deadline(start, sockets):
    start("a")
    later = threading.Timer(0.3, lambda: start("b"))
    later.start()
    assert sockets.exchange({"a": b"x", "b": b"x"}, 30) == {"a": b"x!", "b": b"x!"}
    later.join()


def test_a_late_reply_is_never_the_next_ones(start, sockets):
    late = threading.Event()

    def slow(connection: socket.socket) -> None:
        while (frame := receive(connection, 1000)) is not None:
            if frame == b"first":
                late.wait(30)
            send(connection, frame + b"!")

    start("a", slow)
    assert sockets.exchange({"a": b"first"}, 0.2) == {}
    late.set()
    assert sockets.exchange({"a": b"second"}, 20) == {"a": b"second!"}


def test_a_reply_that_drips_ends_with_the_deadline(start, sockets):
    """Every byte is in time, and the frame would take 18 seconds."""
    done, sent = threading.Event(), bytearray()

    def drip(connection: socket.socket) -> None:
        connection.sendall(struct.pack(">Q", 900))
        while not done.wait(0.02):
            connection.sendall(b"x")
            sent.extend(b"x")

    start("a", drip)
    start("b")
    assert sockets.exchange({"a": b"x", "b": b"x"}, 0.5) == {"b": b"x!"}
    assert 0 < len(sent) < 900
    done.set()


def test_a_frame_that_is_not_taken_ends_with_the_deadline(start, sockets):
    done = threading.Event()

    def deaf(connection: socket.socket) -> None:
        done.wait(30)

    start("a", deaf)
    assert sockets.exchange({"a": b"x" * (1 << 24)}, 0.3) == {}
    done.set()


def test_a_restarted_daemon_is_asked_again(start, sockets):
    first = start("a")
    assert sockets.exchange({"a": b"1"}, 20) == {"a": b"1!"}
    first.stop()
    start("a")
    assert sockets.exchange({"a": b"2"}, 20) == {"a": b"2!"}


def test_a_daemon_that_dies_under_a_request_is_asked_again(start, sockets):
    asked: list[bytes] = []

    def dies_once(connection: socket.socket) -> None:
        frame = receive(connection, 1000) or b""
        asked.append(frame)
        if len(asked) > 1:
            send(connection, frame + b"!")
            receive(connection, 1000)

    start("a", dies_once)
    assert sockets.exchange({"a": b"x"}, 20) == {"a": b"x!"}
    assert asked == [b"x", b"x"]


def test_a_reply_that_was_not_asked_for_is_not_taken(start, sockets):
    sent = threading.Event()

    def twice(connection: socket.socket) -> None:
        while (frame := receive(connection, 1000)) is not None:
            send(connection, frame + b"!")
            if frame == b"1":
                send(connection, b"stray")
                sent.set()

    start("a", twice)
    assert sockets.exchange({"a": b"1"}, 20) == {"a": b"1!"}
    assert sent.wait(20)
    assert sockets.exchange({"a": b"2"}, 20) == {"a": b"2!"}


def test_a_reply_beyond_the_limit_is_none(start, sockets):
    start("a", lambda connection: connection.sendall(struct.pack(">Q", 1001) + b"x" * 1001))
    assert sockets.exchange({"a": b"x"}, 20) == {}


def test_a_port_is_opened_by_its_token():
    token, seen = os.urandom(32), list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                seen.append(receive(connection, 1000) or b"")
                echo(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        with Sockets({"a": (listener.getsockname()[1], token)}) as sockets:
            assert sockets.exchange({"a": b"x"}, 20) == {"a": b"x!"}
        thread.join()
    assert seen == [token]


def test_nothing_grows_over_many_rounds(start, sockets):
    start("a")
    process = psutil.Process()
    counts = []
    for _ in range(200):
        sockets.exchange({"a": b"x" * 500, "b": b"x"}, 0.01)  # b is not there
        counts.append((process.num_fds(), threading.active_count()))
    assert max(counts[50:]) <= max(counts[:50])
