"""A ServerApp for tests: sends frames through a channel, and writes down what came."""

import json
import os
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsim.deployment.flower.grid import OnGrid
from fedsim.deployment.node_keys import node_key

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    credentials = Path(str(config["credentials"]))
    silos = str(config["silos"]).split(",")
    channel = OnGrid(grid, {name: node_key(credentials / name / "node.pub") for name in silos})
    rounds, out = [], Path(str(config["out"]))
    sizes = [int(size) for size in str(config["sizes"]).split(",")]
    for number, size in enumerate(sizes):
        frames = {name: f"{number} {name} ".encode() + bytes(size) for name in silos}
        begin = time.monotonic()
        replies = channel.exchange(frames, float(config["deadline"]))
        seconds = time.monotonic() - begin
        good = sorted(name for name, reply in replies.items() if reply == frames[name][::-1])
        rounds.append({"seconds": seconds, "good": good, "all": sorted(replies), "pid": os.getpid()})
        draft = out.with_suffix(".part")
        draft.write_text(json.dumps(rounds))
        draft.replace(out)
