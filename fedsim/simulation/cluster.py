"""A Ray of ours: how it starts and ends, what travels to it, and on which of its nodes an actor has room."""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from fedsim.common.beside import module_file
from fedsim.common.errors import InputError
from fedsim.common.process import check_reachable
from fedsim.simulation.failures import WorkerLost

# Before Ray is imported: otherwise it listens on every interface and reports usage.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise it warns at every start
import ray as ray  # others have it from here
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_INSTALLED = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
_OBJECT_STORE = 100 * 2**20  # messages are small and passed inline
_NOTICED = 60.0  # seconds within which Ray knows that a machine is gone; by default it takes 15 to 30
_LAST = 1.0  # seconds by which a dying machine's processes may survive one another
_CONNECT = 1.0


def stop(actors: Sequence[Any], others: set[psutil.Process]) -> None:
    """Shut down, and end what an interrupt in the middle of Ray's start-up would leave behind."""
    for actor in actors:  # on a cluster that stays, their processes must not
        ray.kill(actor)
    ours = set(psutil.Process().children(recursive=True)) - others
    ray.shutdown()
    _, alive = psutil.wait_procs(ours, timeout=0.5)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def check_place() -> None:
    """Refuse a process that runs a Ray already: ours ends with a run, and a caller's must not. InputError if
    the caller has started one.
    """
    if ray.is_initialized():
        hint = "this process has a Ray of its own: call ray.shutdown() first, or take runtime inprocess"
        raise InputError("scenario.runtime", "ray", hint)


def start(address: str | None) -> None:
    """Start a Ray that listens here alone, or join the one at `address`; InputError if none answers there."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        check_reachable(address, "scenario.runtime.address")
        try:
            with _untold():
                ray.init(address=address, **quiet)
        except ConnectionError as error:
            hint = f"no Ray cluster answers there ({error})"
            raise InputError("scenario.runtime.address", address, hint) from None
        return
    with _untold():
        ray.init(
            address="local",
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            object_store_memory=_OBJECT_STORE,
            **quiet,
        )


def _untold() -> AbstractContextManager[object]:
    """A Ray that starts inside does not print, on standard output, what befalls its nodes."""
    return patch("ray._private.worker.listen_error_messages", lambda *_: None)


@contextmanager
def by_value(given: bool) -> Iterator[None]:
    """Inside, the class of an algorithm that was given as an object travels whole, and the modules it uses.

    Ray sends a class of a script or a notebook so, and of a module only its name, which other processes may
    not find where no installation has it.
    """
    modules = [each for name, each in list(sys.modules.items()) if given and _lies_elsewhere(name)]
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            ray.cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _lies_elsewhere(name: str) -> bool:
    """Whether a module's file is of no installation, ours included."""
    file = module_file(name)
    if not file or name == "__main__" or name.partition(".")[0] in ("fedsim", "silos", "server", "shuffler"):
        return False
    return not any(Path(file).is_relative_to(place) for place in _INSTALLED)


def living() -> dict[str, int]:
    """The CPUs of every node that lives, by its id, once Ray knows of each death that shows already: until
    then it would place new actors on a node that is gone.
    """
    until = time.monotonic() + _NOTICED
    while True:
        found: list[Any] = ray.nodes()  # type: ignore[no-untyped-call]
        nodes = [node for node in found if node["Alive"]]
        there = [node for node in nodes if _listens(node)]
        told = there or nodes  # from outside a cluster (ray://) nothing of it is to be reached
        if len(told) == len(nodes) or time.monotonic() > until:
            return {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in told}
        time.sleep(0.5)


def after_loss() -> dict[str, int]:
    """As `living`, after an actor was lost, perhaps with its node."""
    time.sleep(_LAST)
    return living()


def places(nodes: Mapping[str, int], most: int | None = None) -> list[str]:
    """A node's id for every CPU, at most so many, spread over the nodes. WorkerLost if there is none."""
    rows = zip_longest(*([node] * cpus for node, cpus in nodes.items()))
    found = [node for node in chain(*rows) if node is not None][:most]
    if not found:
        raise WorkerLost("no node of the Ray cluster that could run a worker is there")
    return found


def on(node: str) -> dict[str, Any]:
    """Options of an actor that runs on this node or fails, in place of waiting for one that never comes."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def _listens(node: Mapping[str, Any]) -> bool:
    try:
        place = node["NodeManagerAddress"], node["NodeManagerPort"]
        with closing(socket.create_connection(place, timeout=_CONNECT)):
            return True
    except OSError:
        return False
