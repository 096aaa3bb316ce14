"""Cells on real Ray workers: the same results, a death survived, an interruption that loses nothing."""

import copy
import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from support.scenarios import BASE, grown

from fedsim.report.record import CellResult, CellSource, Record
from fedsim.scenario.load import parse
from fedsim.simulation.failures import Failure, WorkerLost
from fedsim.simulation.sweeps.cell import Cell, cell_of, records_key
from fedsim.simulation.sweeps.pool import Workers, _Place
from fedsim.simulation.sweeps.run_cells import run_batch


def cell(rounds: int, epsilon: float) -> Cell:
    tree = copy.deepcopy(BASE) | {"privacy": {"epsilon": epsilon}}
    tree["algorithm"]["num_rounds"] = rounds
    return cell_of(parse(tree), 0, True)


def busy_workers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "ray::CellWorker.run" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def kill_twice() -> None:
    killed = set[int]()
    until = time.monotonic() + 300
    while len(killed) < 2 and time.monotonic() < until:
        for worker in busy_workers():
            if worker.pid not in killed:
                killed.add(worker.pid)
                time.sleep(0.5)
                worker.kill()
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_worker_costs_its_cell_alone_and_the_rest_is_as_in_one_process() -> None:
    endless, quick = cell(1_000_000, 1.0), [cell(4, epsilon) for epsilon in (1.0, 2.0, 4.0)]
    killer = threading.Thread(target=kill_twice)
    before = set(psutil.Process().children(recursive=True))  # another test's fork server lives on
    with Workers(1, None) as workers:
        killer.start()
        found = list(workers.run([[endless, quick[0]], [quick[1]], [quick[2]]]))
        killer.join()
    assert len(found) == 4
    outcomes = {str(done.scenario): outcome for done, outcome in found}
    failure = outcomes[str(endless.scenario)]
    assert isinstance(failure, Failure)
    assert failure.kind == "worker died"
    for one, here in zip(quick, run_batch(quick), strict=True):
        there = outcomes[str(one.scenario)]
        assert isinstance(there, CellResult)
        assert isinstance(here, CellResult)
        assert there._replace(seconds=0.0) == here._replace(seconds=0.0)
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.slow
def test_the_end_of_ray_itself_is_not_waited_out() -> None:
    def kill() -> None:
        while not busy_workers():
            time.sleep(0.05)
        for child in psutil.Process().children(recursive=True):
            if child.name() == "raylet":
                child.kill()

    killer = threading.Thread(target=kill)
    with Workers(1, None) as workers:
        killer.start()
        with pytest.raises(WorkerLost, match="ended from outside"):
            list(workers.run([[cell(1_000_000, 1.0)], [cell(1_000_000, 2.0)]]))
        killer.join()


@pytest.mark.slow
def test_ctrl_c_keeps_finished_cells_and_leaves_no_process(tmp_path: Path) -> None:
    tree: dict[str, Any] = copy.deepcopy(BASE)
    tree |= {"runtime": "ray", "trials": 300, "sweep": {"grid": {"privacy.epsilon": [1, 2]}}}
    tree["algorithm"]["num_rounds"] = 300
    scenario, out = tmp_path / "scenario.yaml", tmp_path / "out"
    scenario.write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "fedsim.cli.main", "sweep", str(scenario), "--out", str(out)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not grown(out):
        assert process.poll() is None
        time.sleep(0.05)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    with Record.open(out / "record.sqlite", pytest.fail) as record:
        kept = [row.trial for row in record.rows(CellSource)]
    assert f"{len(kept)} finished cells are kept" in output
    _, alive = psutil.wait_procs(below, timeout=300)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    again = [*command, "--workers", "0", "--set", f"trials={max(kept) + 1}"]
    assert subprocess.run(again, check=False).returncode == 0
    runs = json.loads((out / "summary.json").read_text())["runs"]
    assert runs["from_cache"] == len(kept)


# Records are prepared once where it can be helped: a worker goes on with those that it has.


class Actor:
    """Takes down what it is given; stands for a Ray actor, which does no more with it."""

    def __init__(self) -> None:
        self.trials: list[int] = []
        self.run = self

    def remote(self, work: Any, cells: list[Cell]) -> object:
        self.trials.append(cells[0].trial)
        return object()


def test_no_two_workers_read_the_same_records_until_one_would_be_idle() -> None:
    cells = [cell_of(parse(copy.deepcopy(BASE)), trial, False) for trial in (0, 0, 1, 1, 1, 1, 2)]
    first, second = Actor(), Actor()
    workers: Any = Workers(2, None)
    workers._places = [_Place("node", actor) for actor in (first, second)]
    workers._waiting = deque((records_key(cell.scenario, cell.trial), [cell]) for cell in cells)
    for _ in range(4):
        workers._hand_out()
        for place in workers._places:
            if place.given:
                place.given.popleft()
    assert first.trials[:3] == [0, 0, 2]
    assert second.trials == [1, 1, 1]
    assert first.trials[3:] == [1]  # nothing else is left
    assert sorted(workers._places.index(home) for home in workers._homes.values()) == [0, 0, 1]
