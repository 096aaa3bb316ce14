"""Follow a run in TensorBoard: event files in `runs/tensorboard/`, read by `tensorboard --logdir`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from fedsim.report.trackers import installed


class TensorBoard:
    """A tracker (`fedsim.report.trackers`); needs the extra `tensorboard`."""

    def __init__(self, simulation: bool) -> None:
        self._writer_class = installed("torch.utils.tensorboard", "tensorboard").SummaryWriter

    def start(self, run: Mapping[str, Any]) -> None:
        """Open a new folder, and write the scenario there."""
        name = "".join(c if c.isalnum() else "-" for c in run["name"])
        folder = Path("runs") / "tensorboard" / f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}"
        self._writer = self._writer_class(str(folder))
        self._writer.add_text("scenario", f"```\n{yaml.safe_dump(run['scenario'], sort_keys=False)}```")

    def log(self, round_index: int, values: Mapping[str, float]) -> None:
        """Write each number as a scalar."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round_index)

    def finish(self) -> None:
        """Close the file."""
        self._writer.close()
