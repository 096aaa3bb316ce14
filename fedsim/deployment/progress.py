"""How far a run in another process is: lines that it adds to a file, and that whoever started it reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsim.deployment.history import Step
from fedsim.results.outcome import said


@dataclass(frozen=True)
class Line:
    """What a person is told: after a round, or at any time in words.

    Args:
        rounds: that have ended.
        of: all rounds; 0 before they are known.
        text: what to show beside them.
        words: whether it is to be shown as a line of its own.
    """

    rounds: int
    of: int
    text: str
    words: bool


def of_step(step: Step) -> Line:
    """A round in one line: its silos, who was left out, and the metric where it was measured."""
    told = f"round {step.rounds} of {step.of}: {step.answered} silos"
    if step.left_out:
        told += f" (without {', '.join(sorted(step.left_out))})"
    if step.measurement is not None:
        told += f", {said(step.measurement, step.metric)}"
    return Line(step.rounds, step.of, told, words=False)


def of_words(words: str) -> Line:
    """A line in words."""
    return Line(0, 0, words, words=True)


class Writer:
    """Adds to the file; without a path it adds nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, line: Line) -> None:
        """Add a line."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(line)) + "\n")


class Reader:
    """Reads on where it stopped."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def new(self) -> list[Line]:
        """Whole lines added since the last call; none while the file is not there."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [Line(**json.loads(each)) for each in whole.splitlines()]
