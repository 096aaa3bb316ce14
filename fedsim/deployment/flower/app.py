"""The ServerApp that Flower starts: a deployed run over the SuperLink's grid.

Its settings name files of the machine that it runs on: `scenario` (or the name of a shipped one),
`federation` (federation.yaml), `out` (a new run directory) and `progress` (which it adds lines to);
besides, `overrides` (a JSON list of PATH=VALUE), `resume` (true, or "again": if it began) and `give_up`. A
run that fails ends as `finished:failed` in `flwr list`, with the reason.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import TypeAdapter

from fedsim.common.errors import CAN_RESUME, InputError, Refused
from fedsim.deployment.federation_file import load_federation
from fedsim.deployment.flower.control import STOPPED
from fedsim.deployment.flower.grid import OnGrid
from fedsim.deployment.flower.submit import Line, of_step, of_words, stop_of, write
from fedsim.deployment.history import Step
from fedsim.deployment.node_keys import node_keys
from fedsim.deployment.run import deploy, give_up
from fedsim.report.resume import state_of
from fedsim.scenario.load import load
from fedsim.wire.logs import log_to

app = ServerApp()
_log = logging.getLogger("fedsim.server")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the deployment that the settings name. InputError if a setting or a file is wrong, Refused if silos
    do not admit the run, or too few answered.
    """
    settings = {name: str(value) for name, value in context.run_config.items()}
    scenario = load(_file("scenario", settings), _overrides(settings.get("overrides") or "[]"))
    federation = load_federation(_file("federation", settings))
    file = Path(settings["progress"]) if settings.get("progress") else None
    out = _file("out", settings)
    log_to(out.with_name(f"{out.name}.log"), "fedsim.server")

    def tell(line: Line) -> None:
        if file is not None:
            write(file, line)
        _log.info("%s", line.text)

    def observe(step: Step) -> None:
        """The round is in the record by now."""
        tell(of_step(step))
        if step.rounds < step.of and file is not None and stop_of(file).exists():
            raise Refused(f"{STOPPED} after round {step.rounds} of {step.of}")

    channel, resume = OnGrid(grid, node_keys(federation)), context.run_config.get("resume") is True
    if settings.get("resume") == "again":
        if (there := state_of(out)) == "ended":  # and its SuperLink did not hear it
            return
        resume = there in ("begun", "outstanding")
    known = scenario, federation, channel, out

    def say(words: str) -> None:
        tell(of_words(words))

    if context.run_config.get("give_up") is True:
        give_up(*known, say)
        return
    try:
        deploy(*known, resume, observe, say)
    except (OSError, MemoryError) as error:
        if state_of(out) != "begun":
            raise
        raise Refused(f"{type(error).__name__}: {error}; {CAN_RESUME}") from error


def _overrides(text: str) -> list[str]:
    try:
        return TypeAdapter(list[str]).validate_json(text)
    except ValueError:
        raise InputError("overrides", text, 'a JSON list of PATH=VALUE, as ["seed=7"]') from None


def _file(name: str, settings: dict[str, str]) -> Path:
    if not settings.get(name):
        raise InputError(name, "", f"a path: `flwr run . deploy --run-config '{name}=\"...\"'`")
    return Path(settings[name])
