"""What a silo's Flower side takes from a SuperLink, without one: the bytes of one frame, and no more."""

import json
import tracemalloc
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from support.daemons import short_folder
from support.flower import echo, free_port
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.common.errors import InputError
from fedsim.deployment import certs
from fedsim.wire import flower as carried
from fedsim.wire.connections import MetricsAt
from fedsim.wire.flower import record_of
from fedsim.wire.metrics import exposed
from silos.shim import __main__ as shim
from silos.shim import fleet
from silos.shim.__main__ import Caller, DaemonAway, NodeFile, dialler
from silos.shim.fleet import Unreadable, frame_of


def objects_of(content: RecordDict) -> dict[str, bytes]:
    return {i: each.deflate() for i, each in get_all_nested_objects(content).items()}


@pytest.mark.parametrize("size", [0, 1, carried.ONE_PIECE, carried.ONE_PIECE + 1, 11_000_000])
def test_a_frame_arrives_as_it_was(size):
    frame = bytes(range(251)) * (size // 251 + 1)
    record = record_of(frame[:size])
    assert isinstance(record, ConfigRecord) == (size <= carried.ONE_PIECE)
    assert frame_of(objects_of(RecordDict({carried.RECORD: record}))) == frame[:size]


def test_equal_pieces_travel_once_and_arrive_often():
    frame = bytes(3 * 5 * 2**20)
    objects = objects_of(RecordDict({carried.RECORD: record_of(frame)}))
    assert sum(map(len, objects.values())) < 6 * 2**20
    assert frame_of(objects) == frame


def test_a_piece_named_often_does_not_fill_the_memory():
    record = ArrayRecord({carried.RECORD: Array("uint8", (2**20,), carried.STYPE, bytes(2**20))})
    objects = objects_of(RecordDict({carried.RECORD: record}))
    (i,) = (i for i, data in objects.items() if data.startswith(b"Array "))
    head, body = objects[i].split(b"\x00", 1)
    told = json.loads(body) | {"arraychunk_ids": [0] * 100_000}
    objects[i] = head + b"\x00" + json.dumps(told).encode()
    with pytest.raises(Unreadable, match="too long"):
        frame_of(objects)


def test_a_child_named_often_is_held_once():
    record = ArrayRecord({carried.RECORD: Array("uint8", (2**20,), carried.STYPE, bytes(2**20))})
    objects = objects_of(RecordDict({carried.RECORD: record}))
    (i,) = (i for i, data in objects.items() if data.startswith(b"Array "))
    (chunk,) = (i.encode() for i, data in objects.items() if data.startswith(b"ArrayChunk "))
    objects[i] = objects[i].replace(chunk, b",".join([chunk] * 300))
    tracemalloc.start()
    try:
        assert len(frame_of(objects)) == 2**20
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({carried.RECORD: ConfigRecord({"other": b"1"})}),
        RecordDict({carried.RECORD: ConfigRecord({carried.RECORD: "text"})}),
        RecordDict({"a": ConfigRecord({carried.RECORD: b"1"}), "b": ConfigRecord({carried.RECORD: b"2"})}),
    ],
)
def test_what_is_no_frame(content):
    with pytest.raises(Unreadable):
        frame_of(objects_of(content))


@pytest.mark.parametrize(
    "data", [b"", b"Array", b"Array a,b 3\x00[}", b"ConfigRecord  1\x00\xff", b"\xff\x00"]
)
def test_damaged_objects_are_no_frame(data):
    with pytest.raises(Unreadable):
        frame_of({"0" * 64: data})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-length": str(fleet.MAX_RESPONSE + 1)},
        {"content-length": "-1"},
        {"content-length": "10", "content-encoding": "gzip"},
    ],
)
def test_answers_without_bounds_are_not_read(headers):
    response = httpx.Response(200, headers=headers, stream=httpx.ByteStream(b"0123456789"))
    response.headers = httpx.Headers(headers)
    with pytest.raises(Unreadable):
        fleet._check_size(response)
    assert response.is_closed


def test_a_daemon_that_comes_back_is_asked_again():
    with short_folder() as folder:
        place = folder / "silo.sock"
        caller = Caller(dialler(place, None, None), 100)
        with pytest.raises(DaemonAway):
            caller.ask(b"1")
        for word in (b"first", b"second"):
            with echo(place, lambda frame, word=word: word + frame):
                assert caller.ask(b"2") == word + b"2"
                assert caller.ask(b"3") == word + b"3"
        caller.close()


class Delivered:
    """A message that holds this, or cannot be read."""

    def __init__(self, frame: bytes | None) -> None:
        self._frame = frame

    def frame(self) -> bytes:
        if self._frame is None:
            raise Unreadable("no frame")
        return self._frame

    def answer(self, reply: bytes) -> None:
        assert reply == b"echo"

    def refuse(self, reason: str) -> None:
        assert reason


def test_metrics_count_what_became_of_messages(monkeypatch):
    monkeypatch.setattr(shim, "_carried", Counter())
    port = free_port()
    with short_folder() as folder, exposed(MetricsAt(port=port), "--metrics", shim._metrics):
        place = folder / "silo.sock"
        caller = Caller(dialler(place, None, None), 100)
        shim._answer(Delivered(b"1"), caller)
        with echo(place, lambda frame: b"echo"):
            for frame in (b"2", b"3", None):
                shim._answer(Delivered(frame), caller)
        caller.close()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
            shown = response.read().decode()
    counts = {"answered": 2, "no_daemon": 1, "no_frame": 1}
    for outcome, count in counts.items():
        assert f'fedsim_messages_total{{outcome="{outcome}"}} {count}.0' in shown
    assert "fedsim_online 0.0" in shown


def test_too_long_a_reply_is_not_read():
    with short_folder() as folder, echo(folder / "silo.sock", lambda frame: frame * 100):
        caller = Caller(dialler(folder / "silo.sock", None, None), 100)
        with pytest.raises(DaemonAway):
            caller.ask(b"12")
        assert len(caller.ask(b"1")) == 100  # on a connection of its own
        caller.close()


@pytest.mark.parametrize(
    "way",
    [
        (None, None, None),
        (Path("a"), 1, None),
        (None, 1, None),
        (None, None, Path("t")),
        (Path("a"), None, Path("t")),
    ],
)
def test_one_way_to_the_daemon(way):
    with pytest.raises(InputError):
        dialler(*way)


def test_one_process_is_a_node(tmp_path):
    first = NodeFile(tmp_path / "node")
    assert first.read() is None
    first.write(18_446_744_073_709_551_615)
    first.write(17)
    assert first.read() == 17
    with pytest.raises(InputError, match="no other process"):
        NodeFile(tmp_path / "node")
    (tmp_path / "other").write_text("not a number")
    assert NodeFile(tmp_path / "other").read() is None


def test_a_folder_that_cannot_be_written_remembers_nothing(tmp_path):
    file = NodeFile(tmp_path / "absent" / "node")
    file.write(3)
    assert file.read() is None


def test_bad_arguments_are_named(tmp_path):
    certs.make(tmp_path, ["silo-1"])
    credentials = tmp_path / "silo-1"
    good = ["--superlink", "127.0.0.1:1", "--root-certificates", str(credentials / "ca.crt")]
    for bad, word in (
        (["--key", str(credentials / "node.pub"), "--socket", "s"], "--key"),
        (["--key", str(credentials / "absent"), "--socket", "s"], "--key"),
        (["--key", str(credentials / "node.key")], "--socket"),
        (["--key", str(credentials / "node.key"), "--socket", "s", "--metrics", "0"], "--metrics"),
    ):
        shown = CliRunner().invoke(app, ["node", *good, *bad])
        assert shown.exit_code == 2
        assert word in shown.output


@pytest.mark.parametrize(("took", "waits"), [(0.001, 0.2), (0.03, 0.6), (5.0, 1.0)])
def test_a_superlink_that_answers_slowly_is_asked_less_often(monkeypatch, took, waits):
    clock, slept = iter([0.0, took, 9.0]), []

    class Slow:
        def deliveries(self, node):
            if slept:
                raise fleet.Rejected
            return []

    monkeypatch.setattr(shim, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=slept.append))
    shim._carry(Slow(), 1, Caller)
    assert slept == [pytest.approx(waits)]


@pytest.fixture
def hour(monkeypatch):
    """A clock that sleeping moves, by an hour at most."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds
        if now[0] > 3600:
            raise KeyboardInterrupt

    monkeypatch.setattr(fleet, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


@pytest.mark.parametrize("status", [412, 503, None])
def test_what_a_node_waits_for_is_said_once_a_minute(hour, status, tmp_path, caplog):
    """Its registration, or the SuperLink: it tries every 5 s."""
    tries = []

    def activate():
        def call(request):
            tries.append(hour[0])
            if status is None:
                raise httpx.ConnectError("refused")
            request = httpx.Request("POST", "https://h:1")
            raise httpx.HTTPStatusError(
                "no", request=request, response=httpx.Response(status, request=request)
            )

        return fleet.retried(call, None)

    with pytest.raises(KeyboardInterrupt):
        shim._activate(SimpleNamespace(activate=activate), NodeFile(tmp_path / "node"))
    assert 59 <= len(caplog.messages) <= 61
    assert ("not let in" if status == 412 else "SuperLink") in caplog.messages[-1]
    assert 700 < len(tries) < 730


def test_a_node_that_is_put_out_again_and_again_does_not_spin(hour, monkeypatch, caplog):
    class Fickle:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def activate(self):
            return 1

        def deactivate(self, node):
            pass

        def deliveries(self, node):
            raise fleet.Rejected

    monkeypatch.setattr(shim, "Fleet", lambda endpoint: Fickle())
    memory = SimpleNamespace(read=lambda: None, write=lambda node: None)
    with pytest.raises(KeyboardInterrupt):
        shim.serve(SimpleNamespace(superlink="h:1"), None, memory)
    assert sum("does not know this node" in line for line in caplog.messages) <= 61
    assert sum("is online" in line for line in caplog.messages) < 730
