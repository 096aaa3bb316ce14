"""Attack running daemons by a scenario's plan: what `fedsim audit --daemons` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from pathlib import Path
from secrets import token_hex
from typing import Any

from fedsim.api.audit import check_effort
from fedsim.api.given import ScenarioLike, changes_of, one_run, resolved_of
from fedsim.api.progress import audit_display, watching
from fedsim.attacks import daemons
from fedsim.attacks.neighbours import neighbours
from fedsim.attacks.run import Observe
from fedsim.attacks.setting import Setting, prepare
from fedsim.attacks.started import daemons as started
from fedsim.common.errors import InputError
from fedsim.common.process import one_thread
from fedsim.deployment.offers import offers_of
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.results.silo_table import Table
from fedsim.wire.messages import Offer


@dataclass(frozen=True)
class DaemonAudit:
    """What was found; `tree` is what `fedsim audit --daemons DIR --json` prints."""

    tree: dict[str, Any]

    @property
    def broken(self) -> bool:
        """Whether the daemons' claim does not hold."""
        return bool(self.tree["broken"])

    @property
    def verdict(self) -> list[str]:
        """In a line, and where the claim is broken why."""
        if not self.broken:
            return ["the claim is not broken by what was tried"]
        return ["BROKEN: the daemons' claim does not hold", *self.tree["findings"]]

    @property
    def table(self) -> Table:
        """A table of one row: what is claimed of the silo, and what was attained of it."""
        found = self.tree
        share = f" ({floor(100 * found['attained_share'])} %)" if found["attained_share"] is not None else ""
        columns = [
            "silo",
            "n",
            "delta",
            "claimed epsilon",
            "attained by worst server",
            "runs a world",
            "noise",
        ]
        row = [
            found["silo"],
            f"{found['n']}",
            shown_up(found["delta"], 4),
            shown_up(found["claimed"], 3),
            f"{shown_down(found['attained'], 3)}{share}",
            f"{min(found['runs']):,}",
            f"{found['noise_ratio']:.3f}",
        ]
        short = ["silo", "n", "delta", "claimed", "worst\nserver", "runs a\nworld", "noise"]
        return Table("Lower bound on epsilon.", columns, [row], short=short)


def audit_daemons(
    scenario: ScenarioLike,
    folder: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    silo: str | None = None,
    effort: float = 1.0,
    progress: bool | Observe | None = None,
) -> DaemonAudit:
    """Play the worst server against two daemons that hold neighbouring records of one silo.

    Args:
        scenario: see `fedsim.simulate`, as for `overrides` and `progress`.
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
        setting = prepare(resolved_of(one_run(scenario, changes_of(overrides, {}))))
        found = neighbours(setting, _position(setting, silo))
        openings, offer = started(setting, found, folder), offer_to(setting, found.silo)
        attacked = daemons.attack(setting, found, offer, openings, effort, observe)
        return DaemonAudit(daemons.as_json(attacked))


def offer_to(setting: Setting, silo: int) -> Offer:
    """What a deployed server would offer to the silo."""
    resolved = setting.resolved
    return offers_of(resolved, token_hex(32), setting.schedule)[resolved.names[silo]]


def _position(setting: Setting, silo: str | None) -> int:
    names, admitted = setting.resolved.names, setting.admitted
    if silo is None:
        return max(setting.audited(), key=lambda i: admitted[i].epsilon_guaranteed)
    if silo not in names:
        raise InputError("--silo", silo, f"must be one of {', '.join(names)}")
    return names.index(silo)
