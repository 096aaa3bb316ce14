"""What training did: its objective, what the clip took away, and the clips and h that noisy answers chose."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedsim.report.outcome import Outcome
from fedsim.report.record import grouped
from fedsim.report.section import Section
from fedsim.report.summary import FEW, NONPRIVATE, Part, Summary, value_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class OptimumNote(NamedTuple):
    """How a trial's excess risk was measured; see `fedsim.measure.objective`."""

    trial: int
    least: float | None
    eta: float
    note: str
    reason: str | None = None


class Objective(Part):
    """The measurement of excess risk in the first complete trial; see `fedsim.measure.objective`."""

    least: float | None
    eta: float
    trial: int
    note: str
    reason: str | None = None


def _objective(outcome: Outcome) -> Objective | None:
    for first in outcome.results.rows(OptimumNote):
        return Objective(**{k: v for k, v in first._asdict().items() if k != "reason" or v})
    return None


def _objective_lines(part: Objective, run: Summary) -> list[str]:
    titles = {
        "excess_risk": "excess risk F(w) - F(w*)",
        "gradient_mapping_sq": f"squared gradient mapping |G_eta(w)|^2 at eta = {part.eta:.4g}",
    }
    lines = []
    for name, title in titles.items():
        if value := value_text(run.metrics.spread(name), ".3g"):
            without = run.metrics.nonprivate.spread(name) if run.privacy.private else None
            beside = f"; {NONPRIVATE} {value_text(without, '.3g')}" if without else ""
            lines.append(f"{title}: {value}{beside} (of the training objective, not private)")
    return lines + ([f"excess risk: not measured, {part.reason}"] if part.reason else [])


OBJECTIVE = Section("objective", OptimumNote, part=Objective, summarise=_objective, lines=_objective_lines)


class ClippedRound(NamedTuple):
    """Terms of a round, the fraction that is shortened, and the median norm over the clipping norm."""

    trial: int
    round: int
    terms: int
    clipped: float
    median_norm: float


class Clipping(Part):
    """Share of clipped terms, and median norm over the clip: of the last tenth of rounds, means of trials."""

    clipped: float
    median_norm: float
    note: str


def _clipping(outcome: Outcome) -> Clipping | None:
    """Means over the last tenth of the rounds, which tell the clip's effect from the problem's."""
    late = 0.9 * len(outcome.resolved.trace.plan.rounds)
    rows = [row for row in outcome.results.rows(ClippedRound) if row.round > late]
    if not rows:
        return None
    return Clipping(
        clipped=float(np.mean([row.clipped for row in rows])),
        median_norm=float(np.mean([row.median_norm for row in rows])),
        note="made of training records without noise, in simulation only: a federation would have to query "
        "for it",
    )


def _clipping_lines(part: Clipping, _run: Summary) -> list[str]:
    if part.clipped < 0.1:  # not worth a line
        return []
    norm = f"the median norm of a term is {part.median_norm:.3g} times the clip"
    return [
        f"the clip shortens {part.clipped:.0%} of the terms in the last tenth of the rounds; {norm} "
        "(simulation only, not private)"
    ]


def _clipping_figure(rows: list[ClippedRound], _private: bool) -> Figure:
    """The share of terms that the clip shortens against rounds."""
    from fedsim.report import curves
    from fedsim.report.style import GREY, look, styled, thinned

    with styled(2.6) as (figure, axes):
        rounds, shares = curves.by_round((row.trial, row.round, row.clipped) for row in rows)
        kept = thinned(len(rounds))
        band = np.percentile(shares[:, kept], [5, 95], axis=0) if len(shares) >= FEW else None
        curves.curve(axes, rounds[kept], shares[:, kept].mean(0), look(0), "share clipped", band)
        norms = curves.by_round((row.trial, row.round, row.median_norm) for row in rows)[1][:, kept].mean(0)
        curves.curve(axes, rounds[kept], norms, look(1), "median norm / clip")
        axes.axhline(1.0, color=GREY, linewidth=0.9, linestyle=":", label="the clip; all terms")
        axes.set(xlabel="rounds", ylabel="share, or multiple of the clip")
        if norms.max() > 3:  # the shares would not be seen on a linear axis
            axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(0, 1.08 * max(1.0, norms.max()))
        return figure


CLIPPING = Section(
    "clipping",
    ClippedRound,
    "made of training records; a federation would have to query for it",
    Clipping,
    _clipping,
    _clipping_lines,
    stem="clipping-over-rounds",
    caption="What the clip takes away: the share of terms that it shortens, and the median norm of them all "
    "over the clip. Simulation only, not private: an honest federation must query for it.",
    draw=_clipping_figure,
)


class ChosenClip(NamedTuple):
    """The clip of a round, made of noisy answers: public."""

    trial: int
    round: int
    clip: float


class ChosenH(NamedTuple):
    """h, made of a noisy histogram of records per unit: public."""

    trial: int
    h: int


def _clips(outcome: Outcome) -> list[float]:
    """By round, means of trials, until they stay as they are."""
    rule = outcome.resolved.scenario.algorithm.private_clip
    rows = [row for row in outcome.results.rows(ChosenClip) if rule and row.round <= rule.rounds + 1]
    by_round = grouped(rows, lambda row: row.round)
    return [fmean(row.clip for row in own) for _, own in sorted(by_round.items())]


def _clip_lines(clips: list[float], _run: Summary) -> list[str]:
    first = [f"{clip:.3g}" for clip in clips[:20]]
    rest = [f"... {clips[-1]:.3g}"] * (len(clips) > len(first))
    return [f"clip by round, chosen privately: {', '.join([*first, *rest])}; it stays at the last"]


CLIPS = Section("chosen_clips", ChosenClip, part=list[float], summarise=_clips, lines=_clip_lines)
H = Section(
    "chosen_h",
    ChosenH,
    part=list[int],
    summarise=lambda outcome: [row.h for row in outcome.results.rows(ChosenH)],
    lines=lambda hs, _run: [f"chosen privately, by trial: h = {', '.join(map(str, hs))}"],
)
