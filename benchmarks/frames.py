"""Milliseconds a round of daemons on their sockets, without Flower, and whether their memory grows.

    python benchmarks/frames.py [--silos 20] [--dimension 10000] [--rounds 200] [--records 50]

With noise in floating point, then (a tenth of the rounds) with exact noise on a grid; the policy chooses by
dimension. What is timed is what the server waits for: frames out, gradients, noise and two durable writes in
every silo, replies in, their signatures and numbers checked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.daemons import CLASSES, Silo, running_silos
from support.one_server import offer

from fedsim.wire.messages import Shape
from server.federation import RemoteSilos
from server.replies import Form
from server.sockets import Sockets

SETTLED = 50
"""Rounds after which memory is looked at for the first time."""


def link(silos: dict[str, Silo], channel: Sockets, asked: argparse.Namespace) -> RemoteSilos:
    """A run that every silo has admitted."""
    remote = RemoteSilos(channel, {name: silo.identity for name, silo in silos.items()}, deadline=300.0)
    greetings, _ = remote.hello()
    sizes = {name: greeting.n for name, greeting in greetings.items()}
    shape = Shape(sizes=sizes, num_features=asked.dimension, num_classes=CLASSES)
    weights = (1 / len(sizes),) * len(sizes)
    same = {"num_rounds": asked.rounds, "shape": shape, "weights": weights}
    admissions, _ = remote.offer({s: offer(s, **same) for s in sizes})
    runs = {name: said.run for name, said in admissions.items()}
    remote.begin(runs, Form([(("g", asked.dimension),)] * asked.rounds, torch.float64))
    return remote


def measure(asked: argparse.Namespace, rounds: int, exact_up_to: int) -> str:
    """Times of a round, and the daemons' memory."""
    few = {"n": asked.records, "features": asked.dimension - 1}
    with ExitStack() as stack:
        silos = stack.enter_context(running_silos(asked.silos, exact_noise_dimension=exact_up_to, **few))
        channel = stack.enter_context(Sockets({name: silo.socket for name, silo in silos.items()}))
        remote = link(silos, channel, asked)
        seconds, settled, work = [], memory(silos), processor(silos)
        for r in range(rounds):
            if r == SETTLED:
                settled = memory(silos)
            w = torch.full((asked.dimension,), 1e-3 * r, dtype=torch.float64)
            began = time.perf_counter()
            answered = remote.answer(r, {"w": w}, range(asked.silos))
            seconds.append(time.perf_counter() - began)
            if len(answered.members) < asked.silos:
                raise SystemExit(f"round {r}: {answered.left_out}")
        work, last = processor(silos) - work, memory(silos)
    middle, late = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    said = f"{middle * 1e3:.0f} ms a round (least {min(seconds) * 1e3:.0f}, 95% {late * 1e3:.0f}); "
    said += f"{work / rounds * 1e3:.0f} ms of all processors' time; {max(last.values()) / 1e6:.0f} MB a silo"
    if rounds > SETTLED:
        growth = max(held / settled[name] - 1 for name, held in last.items())
        said += f", from round {SETTLED} on {growth:+.1%} at most"
    return said


def processor(silos: dict[str, Silo]) -> float:
    """Seconds that the daemons and this process have worked."""
    processes = [psutil.Process(silo.pid) for silo in silos.values()] + [psutil.Process()]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def memory(silos: dict[str, Silo]) -> dict[str, int]:
    """Resident memory of each daemon."""
    return {name: psutil.Process(silo.pid).memory_info().rss for name, silo in silos.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--silos", type=int, default=20)
    parser.add_argument("--dimension", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--records", type=int, default=50)
    asked = parser.parse_args()
    here = f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    print(f"{asked.silos} silos, d = {asked.dimension}, {asked.records} records each; {here}")
    print(f"floating point: {measure(asked, asked.rounds, 0)}", flush=True)
    print(f"exact: {measure(asked, max(2, asked.rounds // 10), asked.dimension)}")


if __name__ == "__main__":
    main()
