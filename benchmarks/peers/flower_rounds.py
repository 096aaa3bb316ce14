"""Flower's simulation engine on the workload of `round_cost.py`; writes JSON.

The clients hold a silo's records in memory and answer with a clipped, noisy mean gradient; the
server averages and takes the step. Runs in an environment that has flwr, not fedsim.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from workload import CLIP, FEATURES, RECORDS, SIGMA, SILOS, STEP, make_silo

ROUNDS = 20
STARTED = time.perf_counter()

client = ClientApp()
server = ServerApp()
_held: dict[int, tuple[np.ndarray, np.ndarray]] = {}


@client.train()
def train(message: Message, context: Context) -> Message:
    """One silo's noisy mean gradient."""
    index = int(context.node_config["partition-id"])
    if index not in _held:
        _held[index] = make_silo(index)
    x, y = _held[index]
    w = message.content["w"]["w"].numpy()
    coefficient = 1 / (1 + np.exp(-(x @ w))) - y
    bound = CLIP / np.linalg.norm(x, axis=1)
    mean = np.clip(coefficient, -bound, bound) @ x / RECORDS
    noisy = mean + SIGMA * np.random.default_rng().standard_normal(FEATURES)
    return Message(RecordDict({"g": ArrayRecord({"g": Array(noisy)})}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """ROUNDS rounds after a first one that starts the workers."""
    while len(nodes := list(grid.get_node_ids())) < SILOS:
        time.sleep(0.1)
    w = np.zeros(FEATURES)
    for r in range(ROUNDS + 1):
        if r == 1:
            startup, start = time.perf_counter() - STARTED, time.perf_counter()
        content = RecordDict({"w": ArrayRecord({"w": Array(w)}), "config": ConfigRecord({"round": r})})
        replies = grid.send_and_receive(
            [Message(content, dst_node_id=node, message_type="train") for node in nodes]
        )
        w = w - STEP * np.mean([reply.content["g"]["g"].numpy() for reply in replies], axis=0)
    milliseconds = (time.perf_counter() - start) / ROUNDS * 1e3
    with open(sys.argv[1], "w") as file:
        json.dump({"milliseconds": milliseconds, "startup": startup}, file)


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=SILOS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
