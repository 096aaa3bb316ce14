"""Seconds of an honest request beside clients that announce a frame and send no more.

    python benchmarks/slow_clients.py [--silent 50] [--requests 150]

Of a silo's daemon, whose requests are rounds of one run, and of a shuffler, whose requests are one release
(noted once, then sent again). An honest client keeps its connection, or dials for each request; the silent
ones, in a process of their own, dial again when they are hung up on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import yaml
from support.daemons import PATIENCE, Silo, running_silos, short_folder
from support.one_server import OneServer, broadcast, frame, offer
from support.rosters import Parties
from support.shuffler_process import shuffler_process
from support.shufflers import Round

from fedsim.secagg.shuffling import greeting
from fedsim.wire.dial import dial
from fedsim.wire.frames import receive, sealed, send
from fedsim.wire.messages import Ask, Hello
from shuffler.config import load_config
from shuffler.keys import Keys
from shuffler.service import enrol


def be_silent(path: Path, count: int) -> None:
    """Keep so many connections, on each of which a length has come."""
    held: dict[int, socket.socket] = {}
    ends = select.poll()
    while True:
        while len(held) < count:
            try:
                made = dial(path, 0.05)
                made.sendall(struct.pack(">Q", 1000))
            except OSError:
                break
            held[made.fileno()] = made
            ends.register(made, select.POLLIN | select.POLLHUP)
        for number, _ in ends.poll(10):
            ends.unregister(number)
            held.pop(number).close()


@contextmanager
def silent(path: Path, count: int) -> Iterator[None]:
    """`be_silent` in another process, while the block lasts."""
    process = multiprocessing.get_context("fork").Process(target=be_silent, args=(path, count))
    process.start()
    time.sleep(1)
    try:
        yield
    finally:
        process.kill()
        process.join()


def asked(path: Path, request: bytes, kept: list[socket.socket]) -> bytes:
    """The answer; asked for again on a new connection where the daemon hung up."""
    while True:
        with suppress(ConnectionError, BlockingIOError):
            if not kept:
                kept.append(dial(path, PATIENCE))
            send(kept[0], request)
            if (answer := receive(kept[0], 1 << 30)) is not None:
                return answer
        if kept:
            kept.pop().close()


def seconds_of(path: Path, requests: list[bytes], keep: bool) -> list[float]:
    """Of each request."""
    took, kept = [], list[socket.socket]()
    for request in requests:
        began = time.perf_counter()
        asked(path, request, kept)
        took.append(time.perf_counter() - began)
        if not keep:
            kept.pop().close()
    return took


def show(title: str, path: Path, requests: list[bytes], counts: list[int]) -> None:
    """A line for each number of silent clients and way to ask."""
    parts = iter(np.array_split(np.arange(len(requests)), 2 * len(counts)))
    for count in counts:
        with silent(path, count):
            for keep in (True, False):
                took = seconds_of(path, [requests[i] for i in next(parts)], keep)
                p50, p90 = (1000 * np.quantile(took, at) for at in (0.5, 0.9))
                way = "one connection" if keep else "one a request"
                print(f"{title}, {count} silent, {way}: p50 {p50:.1f} ms, p90 {p90:.1f} ms", flush=True)


def silo(counts: list[int], each: int) -> None:
    """Rounds of one run."""
    rounds = 2 * each * len(counts)
    with running_silos(1, max_rounds=rounds) as made:
        daemon: Silo = made["silo-1"]
        with OneServer(daemon.socket, daemon.identity) as server:
            server.offer(offer(num_rounds=rounds))
            run = server.run
        requests = [frame(Ask(run=run, round=r, head=""), broadcast(r)) for r in range(rounds)]
        show("silo", daemon.socket, requests, counts)


def shuffler(counts: list[int], each: int) -> None:
    """One release, again and again."""
    with short_folder() as folder:
        file = folder / "shuffler.yaml"
        told = {"state": "state", "listen": {"socket": "s.sock"}, "rosters": ["roster.yaml"]}
        file.write_text(yaml.safe_dump(told))
        enrol(load_config(file))
        keys, parties = Keys.load(folder / "state"), Parties()
        parties.shuffler, parties.shuffler_identity = keys.envelopes, keys.identity
        parties.roster = parties.made()
        (folder / "roster.yaml").write_text(yaml.safe_dump(parties.roster.model_dump(mode="json")))
        with shuffler_process(file) as daemon:
            hello = sealed(Hello().body())
            mark = greeting(asked(daemon.socket, hello, []), bytes.fromhex(keys.identity.public))
            made = Round(parties)
            made.context = replace(made.context, start=mark.start)
            reports = enumerate(made.numbers)
            made.reports = [parties.report(i, row, made.context) for i, row in reports]
            request = sealed(made.request().body())
            show("shuffler", daemon.socket, [request] * (2 * each * len(counts)), counts)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--silent", type=int, default=50)
    parser.add_argument("--requests", type=int, default=150)
    given = parser.parse_args()
    counts = [0, given.silent]
    silo(counts, given.requests)
    shuffler(counts, given.requests)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
