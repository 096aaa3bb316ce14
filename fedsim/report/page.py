"""A run's page: one self-contained HTML file, the result first and then what it cost, and its figures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from fedsim.common.files import atomic_directory, atomic_files, writing
from fedsim.report import html, plots, texts
from fedsim.report.curves import MEASURED_FIGURES
from fedsim.report.html import PAGE, Headline, PageFigure, saved, saved_wide
from fedsim.report.outcome import Outcome
from fedsim.report.record import SiloSpend
from fedsim.report.released import read_released
from fedsim.report.run_directory import RunData, data_of, ended, run_of, scenario_of, write
from fedsim.report.sections.registry import SECTIONS
from fedsim.report.summary import FEW, NONPRIVATE, Privacy, SiloRow, Spread, Summary, spans
from fedsim.report.tables import capital
from fedsim.scenario.metric import METRICS

FIGURES = "figures"
_MOST_SILOS = 60


def save(outcome: Outcome, directory: Path) -> list[str]:
    """Write a run directory, with its page; returns what is in it.

    A new one is whole or not there. In one that has the run's record every file is, and the record says last
    that the run has ended. OSError if it cannot be written.
    """
    run, kept = data_of(outcome, directory), outcome.results.folder == directory
    with atomic_files(directory) if kept else atomic_directory(directory) as draft:
        write(outcome, run, draft, directory)
        (draft / PAGE).write_text(render(run, draft), encoding="utf-8")
    if kept:
        outcome.results.end(ended(run))
    return listing(directory)


def listing(directory: Path) -> list[str]:
    """The names of what is in a directory, folders last."""
    entries = sorted(directory.iterdir(), key=lambda file: (file.is_dir(), file.name))
    return [f"{file.name}/" if file.is_dir() else file.name for file in entries]


def write_page(directory: Path) -> Path:
    """Write the page of a run or sweep and its figures anew, once all is ready; InputError if it cannot."""
    from fedsim.report.sweep_summary import SweepSummary, read_summary

    summary = read_summary(directory)
    if isinstance(summary, SweepSummary):
        from fedsim.report import sweep_page  # a run does without

        page = partial(sweep_page.render, summary, *scenario_of(directory / "scenario.yaml"))
    else:
        page = partial(render, run_of(summary, directory))
    with writing(directory, "RUN"), atomic_files(directory) as draft:
        (draft / PAGE).write_text(page(draft), encoding="utf-8")
    return directory / PAGE


def render(run: RunData, folder: Path) -> str:
    """The page's text; the figures' files go to a new folder in `folder`."""
    summary, privacy, figures = run.summary, run.summary.privacy, folder / FIGURES
    figures.mkdir()
    return html.render(
        PAGE,
        title=summary.scenario,
        notices=privacy.notices,
        not_private=privacy.not_private,
        run=summary,
        privacy=privacy,
        description=run.description,
        released=read_released(run.directory),
        numbers=_headline(summary),
        statement=_statement(privacy),
        mechanism=texts.how(privacy),
        silos=texts.silo_table(privacy, _MOST_SILOS),
        audit=_audit(run.directory, figures),
        metrics=texts.metrics_table(summary),
        tables=texts.section_tables(summary),
        methods=texts.methods(summary.baselines),
        spans=spans(summary.trials.finished),
        remarks=texts.remarks(summary),
        drawn=_figures(run, figures),
        effects=_effects(run, figures),
        environment=[
            ("Wall time", f"{summary.wall_seconds:,.2f} s, runtime {summary.runtime}"),
            ("Versions", ", ".join(f"{name} {version}" for name, version in summary.versions.items())),
            *((name.capitalize(), str(value)) for name, value in summary.environment.items()),
        ],
        scenario=run.scenario,
    )


def _headline(summary: Summary) -> list[Headline]:
    """The chosen metric of the run and of its non-private baseline, and the guaranteed epsilon."""
    metrics, silos = summary.metrics, summary.privacy.silos
    name = METRICS[metrics.metric].title
    numbers = [headline(name, metrics.chosen, f"not measured: {summary.unmeasured}")]
    if summary.privacy.private:
        if (baseline := metrics.nonprivate.spread(metrics.metric)) is not None:
            numbers.append(headline(f"{name} {NONPRIVATE}", baseline))
        if silos:
            numbers.append(("guaranteed epsilon", texts.epsilon_range(silos), _budgets(silos)))
    return numbers


def headline(name: str, value: Spread | None, without: str = "") -> Headline:
    """The mean of a metric, and its interval where trials differ; or why there is none."""
    if value is None:
        return name, "-", without
    interval = f"{value.low:.4f} to {value.high:.4f}" if value.low < value.high else ""
    return name, f"{value.mean:.4f}", interval


def _statement(privacy: Privacy) -> list[tuple[str, str]]:
    silos = privacy.silos if privacy.private else []
    claims = _kept(silos, lambda silo: silo.epsilon_claimed, "at most what is claimed", "above the claim")
    costs = "; ".join(filter(None, [_budgets(silos), claims]))
    worth = map(capital, texts.worth_lines(privacy))
    return [
        *texts.terms(privacy),
        *([("Epsilon", ". ".join([f"{texts.epsilon_range(silos)}: {costs}", *worth]))] if silos else []),
        ("Trusted", ". ".join(map(capital, privacy.trusted))),
    ]


def _budgets(silos: list[SiloRow]) -> str:
    unlimited = f"no budget in all {len(silos):,} silos, so that nothing bounds what the run costs"
    return (
        _kept(silos, lambda silo: silo.epsilon_budget, "within its budget", "above its budget") or unlimited
    )


def _kept(silos: list[SiloRow], limit: Callable[[SiloRow], float | None], good: str, bad: str) -> str:
    """Whether what is guaranteed, where None is infinite, keeps to a limit; empty where no silo has one."""
    limits = [(silo, most) for silo in silos if (most := limit(silo)) is not None]
    costs = [(silo.name, silo.epsilon_guaranteed, most) for silo, most in limits]
    failed = [name for name, cost, most in costs if cost is None or cost > most]
    if not failed:
        return f"{good} in all {len(costs):,} silos" * bool(costs)
    more = f" and {len(failed) - 5:,} more" if len(failed) > 5 else ""
    return f"{bad} in {len(failed):,} of {len(costs):,} silos: {', '.join(failed[:5])}{more}"


def _figures(run: RunData, folder: Path) -> list[PageFigure]:
    """The figures that have something to show, those of the chosen metric first."""
    priced, silos = len({row.silo for row in run.rows(SiloSpend)}), len(run.summary.privacy.silos)
    some = f" ({priced} of {silos:,} silos, evenly in order of budget)" if priced < silos else ""
    drawn = {
        **_measured(run),
        **{one.stem: (plots.of_section(run, one), one.caption) for one in SECTIONS if one.draw},
        "round-times": (
            plots.round_times(run),
            "What each round took, as the server saw it: from its question to the aggregate.",
        ),
        "spend-over-rounds": (
            plots.spend(run),
            f"Epsilon spent by the rounds gone by, dotted: budgets{some}. Equal curves are drawn "
            "once; each silo in the trial that cost it most, as in the table.",
        ),
    }
    return [saved(figure, folder, stem, caption) for stem, (figure, caption) in drawn.items() if figure]


def _measured(run: RunData) -> dict[str, tuple[Figure | None, str]]:
    """Metrics against rounds and by silo, each with its caption."""
    metric, trials, objective = run.summary.metrics.metric, run.summary.trials.finished, run.summary.objective
    spread = f" of {trials} trials; points: each; bars: {spans(trials)}" if trials > 1 else ""
    if trials >= FEW:
        spread = "; bands and bars hold 90 % of the trials"
    eta = f", eta = {objective.eta:.4g}" if objective else ""  # known once a trial is complete
    captions = {
        "excess_risk": "Excess risk of the training objective, its public part included, against rounds",
        "gradient_mapping_sq": "Squared gradient mapping |G_eta(w)|^2 of the training objective against "
        f"rounds{eta}",
    }
    markers = (
        "Filled markers: the run; hollow: the same algorithm without noise and clipping; levels: baselines, "
        "which are not private."
    )
    if run.summary.deployment is not None:
        markers = "On public test records of the server's own."
    return {
        f"{MEASURED_FIGURES[metric][0]}-against-rounds": (
            plots.against_rounds(run, metric),
            f"{capital(METRICS[metric].title)} against rounds: mean{spread}. {markers}",
        ),
        f"{MEASURED_FIGURES[metric][0]}-by-silo": (
            plots.silo_values(run),
            f"Final {METRICS[metric].title} on each silo's own test records{spread}. Simulation only.",
        ),
        **{
            f"{MEASURED_FIGURES[column][0]}-against-rounds": (
                plots.against_rounds(run, column),
                f"{caption}: mean{spread}. Simulation only, not private.",
            )
            for column, caption in captions.items()
        },
    }


def _effects(run: RunData, folder: Path) -> dict[str, object] | None:
    """Each column's effect on what the model says, where that is known."""
    if (effects := plots.effects(run)) is None:
        return None
    from fedsim.report import effects_figure
    from fedsim.report.column_effects import table_of

    caption = (
        f"Each column's effect on the {effects.of}, by its values: how far they move it from the mean over "
    )
    caption += f"the declared range, or over the categories. {'. '.join(effects.said)}."
    figure = saved_wide(partial(effects_figure.draw, effects), folder, "column-effects", caption)
    return {"figure": figure, "table": table_of(effects)}


def _audit(directory: Path | None, folder: Path) -> dict[str, object] | None:
    if directory is None or not (directory / "audit.json").exists():
        return None
    from fedsim.report.audit import audit_figure, audit_table, read_audit, verdict

    audit = read_audit(directory)
    caption = "Epsilon claimed for each silo (dotted), and what attacks attained of it: lower bounds."
    figure = saved(audit_figure(audit), folder, "audit", caption)
    return {"found": audit, "verdict": verdict(audit), "table": audit_table(audit), "figure": figure}
