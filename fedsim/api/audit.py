"""`fedsim.audit`: attacks on a scenario's transcript, and the claims that they are compared with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fedsim.api.given import ScenarioLike, changes_of, one_run, resolved_of
from fedsim.api.progress import audit_display, watching
from fedsim.api.run import Run
from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError
from fedsim.common.files import writing
from fedsim.common.process import one_thread
from fedsim.data.dataset import Dataset
from fedsim.deployment.offers import offers_of
from fedsim.protocol.contract import Algorithm
from fedsim.report.audit import FILE, AuditPart, adversaries, audit_figure, audit_table, verdict
from fedsim.report.outcome import Outcome
from fedsim.report.tables import Table, lines_html
from fedsim.testing.attacks import daemons
from fedsim.testing.attacks.audit import Observe, attack
from fedsim.testing.attacks.daemon_pair import daemons as started
from fedsim.testing.attacks.neighbours import neighbours
from fedsim.testing.attacks.setting import prepare

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LEAST, MOST = 0.001, 1000.0  # effort


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """The result of `fedsim.audit`; `fedsim audit --json` prints `tree`."""

    part: AuditPart

    @cached_property
    def tree(self) -> dict[str, Any]:
        """Plain values."""
        return self.part.tree()

    @property
    def broken(self) -> bool:
        """Whether some silo's claim does not hold."""
        return self.part.broken

    @property
    def verdict(self) -> list[str]:
        """One line, and for each silo whose claim is broken the reason."""
        return verdict(self.part)

    @property
    def silos(self) -> Table:
        """One row per audited silo: its claim, and what each adversary attained of it (lower bounds)."""
        rows = [_row(silo, adversaries(self.part)) for silo in self.tree["silos"]]
        return Table(pa.Table.from_pylist(rows))

    def plot(self) -> Figure:
        """For each silo its claim, and what each adversary attained within it."""
        return audit_figure(self.part)

    def save(self, run: str | os.PathLike[str]) -> None:
        """Put it into a run directory, and on its page; InputError if it is none, or cannot be written."""
        path = Path(run) / FILE
        with writing(path, "RUN"), atomic_file(path) as draft:
            draft.write_text(json.dumps(self.tree, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        from fedsim.report.page import write_page

        write_page(Path(run))

    def __repr__(self) -> str:
        return f"Audit({self.tree['scenario']}: {self.verdict[0]})"

    def _repr_html_(self) -> str:
        table = audit_table(self.part)
        return table.html + lines_html([table.caption, *self.verdict])


def _row(silo: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    by = {name: silo[name]["attained"] if name in silo else None for name in names}
    first = ("name", "n", "delta", "claimed", "attained", "swapped")
    then = ("sensitivity_ratio", "cross_silo_ratio", "noise_ratio", "findings")
    return {name: silo[name] for name in first} | by | {name: silo[name] for name in then}


def audit(
    scenario: ScenarioLike | Run,
    overrides: Mapping[str, Any] | None = None,
    *,
    algorithm: Algorithm | None = None,
    data: Dataset | None = None,
    person: int | None = None,
    groups: bool = False,
    effort: float = 1.0,
    progress: bool | Observe | None = None,
    **short: Any,
) -> Audit:
    """Attack a scenario's transcript through the silos' own gate; claims are compared with what that attains.

    Args:
        scenario: see `fedsim.simulate`, as for `overrides`, `algorithm`, `data` and `short`; or a run.
        person: attack by a person of so many aligned records, also where the plan protects a record; what
            is attained then is what a person loses, and no violation of the claim.
        groups: attack the group of one record alone; the claim is then `epsilon_attribute`.
        effort: share of the default work, about a minute: 0.1 for a first look, 10 for more.
        progress: see `fedsim.simulate`; a function gets what is done and which share of it.

    Raises:
        InputError: bad scenario or data; or a scenario that claims nothing.
        Refused: a silo does not accept the plan.
    """
    check_effort(effort)
    if person is not None and (person < 2 or groups):
        raise InputError("person", person, "a number of records, of at least 2, and without groups")
    changes = changes_of(overrides, short)
    if isinstance(scenario, Run):
        if changes:
            raise InputError("overrides", changes, "a run has its scenario; audit that, or another one")
        own = scenario.source
        resolved = own.resolved if isinstance(own, Outcome) else resolved_of(one_run(own / "scenario.yaml"))
    else:
        resolved = resolved_of(one_run(scenario, changes), algorithm, data, changes)
    with watching(progress, audit_display) as observe, one_thread():
        return Audit(attack(resolved, effort, observe, person, groups))


def check_effort(effort: float) -> None:
    """Refuse a share of the default work that is out of bounds."""
    if not LEAST <= effort <= MOST:
        raise InputError("effort", effort, f"must be between {LEAST:g} and {MOST:g}")


def audit_daemons(
    scenario: ScenarioLike,
    folder: Path,
    *,
    silo: str | None = None,
    effort: float = 1.0,
    progress: bool | Observe | None = None,
) -> daemons.DaemonAudit:
    """Play a malicious server against two daemons with neighbouring records of one silo.

    Args:
        scenario: see `fedsim.simulate`, as for `progress`.
        folder: where the daemons listen (world-0/silo.sock and world-1/silo.sock); if they do not, they are
            made and started there. On a Unix socket's path, so not too deep.
        silo: whose records; by default the silo with the largest claim, which takes the fewest runs.
        effort: share of the default work, a few minutes.

    Raises:
        InputError: bad scenario, folder or silo; daemons of something else, or with seeded noise.
        Refused: the daemons do not admit the run.
    """
    check_effort(effort)
    with watching(progress, audit_display) as observe, one_thread():
        observe("looking for the worst records and points", 0.0)
        setting = prepare(resolved_of(one_run(scenario)))
        names, costs = setting.resolved.names, [each.epsilon_guaranteed for each in setting.admitted]
        if silo is not None and silo not in names:
            raise InputError("--silo", silo, f"must be one of {', '.join(names)}")
        place = max(setting.audited(), key=costs.__getitem__) if silo is None else names.index(silo)
        pair = neighbours(setting, place)
        offer = offers_of(setting.resolved, token_hex(32), setting.schedule)[names[place]]
        return daemons.attack(setting, pair, offer, started(setting, pair, folder), effort, observe)
