"""Frames through a real SuperLink over TLS, carried by nodes that are processes."""

import json
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

import pytest
from support.flower import ROOT, Federation, Node, echo, federation, short_folder, until

from fedsim.deployment import certs
from fedsim.deployment.flower.control import Status
from fedsim.deployment.node_keys import node_key
from silos.shim.fleet import FLWR_VERSION

SILOS = ("silo-1", "silo-2", "silo-3")


@pytest.fixture(scope="module")
def flower():
    """A SuperLink and three nodes; nothing listens where their daemons would be."""
    with short_folder() as folder, federation(folder, SILOS) as made:
        made.wait_online()
        yield made


@pytest.fixture
def daemons(flower):
    """Daemons that answer a frame by its bytes in reverse, for all silos."""
    with ExitStack() as stack:
        for name in SILOS:
            stack.enter_context(echo(flower.socket(name)))
        yield stack


class Run:
    """A run of `support.flower_app`."""

    def __init__(
        self,
        flower: Federation,
        name: str,
        sizes: Sequence[int],
        deadline: float,
        silos: Sequence[str] = SILOS,
    ) -> None:
        self._flower, self._out = flower, flower.folder / f"{name}.json"
        settings = {
            "credentials": str(flower.credentials),
            "silos": ",".join(silos),
            "out": str(self._out),
            "sizes": ",".join(map(str, sizes)),
            "deadline": deadline,
        }
        with flower.control() as control:
            self._run = control.start(settings, "support.flower_app:app")

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return json.loads(self._out.read_text()) if self._out.exists() else []

    @property
    def status(self) -> Status:
        with self._flower.control() as control:
            return control.status(self._run)

    def end(self) -> list[dict[str, Any]]:
        until(lambda: self.status.over, 120)
        assert self.status == Status("completed", ""), self._flower.superlink.log.read_text()
        return self.rounds


def test_the_installed_flower_is_the_one_whose_internals_are_used():
    assert version("flwr") == FLWR_VERSION
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"flwr=={FLWR_VERSION}" in project["dependencies"]


def stranger(flower: Federation, name: str) -> tuple[Node, bytes]:
    """A node of another authority's making, with the daemon of silo-1's name that turns nothing round."""
    certs.make(flower.folder / name, ["silo-1"])
    credentials = flower.folder / name / "silo-1"
    (credentials / "ca.crt").unlink()
    (credentials / "ca.crt").write_bytes((flower.credentials / "silo-1" / "ca.crt").read_bytes())
    node = Node(flower.superlink.address, credentials, flower.socket(name), flower.folder / f"{name}.log")
    return node, node_key(credentials / "node.pub")


def test_frames_travel_and_no_code_is_fetched(flower, daemons):
    """Short frames in one piece, longer ones in several; a node that bears silo-1's name is not silo-1."""
    node, key = stranger(flower, "forged")
    with echo(flower.socket("forged"), lambda frame: b"forged"), flower.control() as control:
        try:
            control.register(key, "silo-1")
            until(lambda: control.nodes().get(key) == "online")
            rounds = Run(flower, "travel", [1000, 6_000_000], 60.0).end()
        finally:
            node.kill()
    assert [round["good"] for round in rounds] == [list(SILOS)] * 2
    asked = flower.superlink.log.read_text()
    assert "/v1/fleet/activate-node" in asked  # it would say so
    assert "/v1/fleet/get-fab" not in asked
    assert "/v1/fleet/get-run" not in asked


@pytest.mark.slow
def test_models_of_20_megabytes_pass(flower, daemons):
    rounds = Run(flower, "large", [20_000_000] * 3, 120.0).end()
    assert [round["good"] for round in rounds] == [list(SILOS)] * 3


def test_a_key_that_is_not_registered_is_not_let_in(flower):
    node, key = stranger(flower, "unknown")
    try:
        until(lambda: "not let in" in node.log.read_text())
        with flower.control() as control:
            assert key not in control.nodes()
        assert node.process.poll() is None  # it waits to be registered
    finally:
        node.kill()


@pytest.mark.slow
def test_absent_daemons_and_killed_nodes_are_tried_again(flower):
    """silo-3's daemon starts late; silo-2's node dies with a frame in hand, and comes back."""
    held: list[bytes] = []

    def hold(frame: bytes) -> bytes:
        held.append(frame)
        if len(held) == 1:
            flower.nodes["silo-2"].kill()
        return frame[::-1]

    with ExitStack() as stack:
        stack.enter_context(echo(flower.socket("silo-1")))
        stack.enter_context(echo(flower.socket("silo-2"), hold))
        run = Run(flower, "again", [10], 100.0)
        until(lambda: "no daemon" in flower.nodes["silo-3"].log.read_text())
        stack.enter_context(echo(flower.socket("silo-3")))
        until(lambda: bool(held))
        flower.nodes["silo-2"].process.wait()
        flower.nodes["silo-2"].start()
        (only,) = run.end()
    assert only["good"] == list(SILOS)
    assert len(held) == 2
    assert held[0] == held[1]


def test_silos_that_do_not_answer_are_absent(flower):
    """Only silo-1 has a daemon, silo-2 has no node; what is left answers in time."""
    flower.nodes["silo-2"].kill()
    try:
        with echo(flower.socket("silo-1")):
            (only,) = Run(flower, "absent", [10], 10.0).end()
    finally:
        flower.nodes["silo-2"].start()
    assert only["all"] == ["silo-1"]
    flower.wait_online()


def test_a_node_that_is_told_to_end_goes_offline(flower):
    assert flower.nodes["silo-1"].stop() == 0
    with flower.control() as control:
        assert control.nodes()[flower.keys["silo-1"]] == "offline"
    flower.nodes["silo-1"].start()
    flower.wait_online()


def test_two_processes_are_not_one_node(flower):
    second = Node(
        flower.superlink.address,
        flower.credentials / "silo-1",
        flower.socket("silo-1"),
        flower.folder / "second.log",
    )
    assert second.process.wait(30) == 2
    assert "no other process" in second.log.read_text()
    assert flower.nodes["silo-1"].process.poll() is None


def test_a_node_outlives_its_superlink(flower):
    """A SuperLink that starts anew knows no node; nodes come back as soon as they are registered."""
    child = flower.superlink._child
    child.process.kill()
    child.process.wait()
    flower.superlink.__enter__()
    flower.register()
    flower.wait_online()
    assert all(node.process.poll() is None for node in flower.nodes.values())
