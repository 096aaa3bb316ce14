"""Milliseconds a round of daemons on their sockets, without Flower, and whether their memory grows.

    python benchmarks/frames.py [--silos 20] [--dimension 10000] [--rounds 200] [--records 50]

Twice: with noise in floating point, and with exact noise on a grid, which the policy chooses by dimension.
What is timed is what the server waits for: frames out, gradients, noise and two durable writes in every silo,
replies in, their signatures and numbers checked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.daemons import CLASSES, Silo, running_silos
from support.one_server import offer

from fedsim.protocol.messages import Shape
from server.federation import RemoteSilos
from server.replies import Form
from server.sockets import Sockets

SETTLED = 50
"""Rounds after which memory is looked at for the first time."""


def link(silos: dict[str, Silo], channel: Sockets, asked: argparse.Namespace) -> RemoteSilos:
    """A run that every silo has admitted."""
    remote = RemoteSilos(channel, {name: silo.identity for name, silo in silos.items()}, deadline=300.0)
    greetings = remote.hello()
    sizes = {name: greeting.n for name, greeting in greetings.items()}
    shape = Shape(sizes=sizes, num_features=asked.dimension, num_classes=CLASSES)
    weights = (1 / len(sizes),) * len(sizes)
    same = {"num_rounds": asked.rounds, "shape": shape, "weights": weights}
    runs = {name: said.run for name, said in remote.offer({s: offer(s, **same) for s in sizes}).items()}
    remote.begin(runs, Form([("g",)] * asked.rounds, asked.dimension, torch.float64))
    return remote


def measure(asked: argparse.Namespace, exact_up_to: int) -> str:
    """One line: times of a round, and the daemons' memory."""
    few = {"n": asked.records, "features": asked.dimension - 1}
    with running_silos(asked.silos, exact_noise_dimension=exact_up_to, **few) as silos:
        addresses = {name: silo.socket for name, silo in silos.items()}
        with Sockets(addresses) as channel:
            remote = link(silos, channel, asked)
            seconds, settled = [], {}
            for r in range(asked.rounds):
                if r == SETTLED:
                    settled = memory(silos)
                w = torch.full((asked.dimension,), 1e-3 * r, dtype=torch.float64)
                began = time.perf_counter()
                answered = remote.answer(r, {"w": w}, range(asked.silos))
                seconds.append(time.perf_counter() - began)
                assert len(answered.members) == asked.silos
            growth = [held / settled[name] - 1 for name, held in memory(silos).items()]
            last = memory(silos)
    middle, least, late = statistics.median(seconds), min(seconds), statistics.quantiles(seconds, n=20)[-1]
    return (
        f"{middle * 1e3:.0f} ms a round (least {least * 1e3:.0f}, 95% {late * 1e3:.0f}); memory "
        f"{max(last.values()) / 1e6:.0f} MB a silo, from round {SETTLED} on {max(growth):+.1%} at most"
    )


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
    print(
        f"{asked.silos} silos, d = {asked.dimension}, {os.cpu_count()} processors, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for name, exact_up_to in {"floating point": 0, "exact": asked.dimension}.items():
        print(f"{name:>14}: {measure(asked, exact_up_to)}", flush=True)


if __name__ == "__main__":
    main()
