"""The privacy statement of a run, a plan or a sweep: unit, guarantee, accountant, trust, what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from typing import Any

import torch

from fedsim.common.serialise import finite
from fedsim.privacy.registry import MECHANISMS, NONE
from fedsim.privacy.rounding import shown_down, shown_up
from fedsim.privacy.unit_words import guaranteed
from fedsim.protocol.clashes import clashes
from fedsim.protocol.plan import Admitted
from fedsim.report.conversions import persons
from fedsim.report.outcome import Outcome, measures_objective
from fedsim.report.record import Counted, grouped
from fedsim.report.silo_rows import admitted_of, admitted_rows, costliest, has_gap, samplers
from fedsim.report.summary import Deployment, Parameters, Privacy, SiloRow
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved

ATTAINABLE = (
    "epsilon_attainable is no guarantee: a lower bound, which some pair of neighbouring data sets attains; "
    "the true epsilon lies between it and epsilon_guaranteed"
)
CHOICE = "the choice of algorithm, step size, clip norm and rounds, where data was looked at"
_MOST_GROUPS, _MOST_NAMES = 5, 4  # in a line of true epsilons
SPENT = "epsilon_spent is valid if participation did not depend on answers"

EVALUATION = (
    ". No {} trains and is held out for the evaluation too, so that the larger cost of the two is "
    "guaranteed, not their sum"
)
NOT_SPENT = "no trial is complete, so what was spent is not known; the whole plan costs what is guaranteed"


def statement(outcome: Outcome) -> Privacy:
    """The statement of a run."""
    resolved, deployed, rows = outcome.resolved, outcome.deployed, costliest(outcome)
    spent = [{"epsilon_spent": finite(row.epsilon_spent), "rounds": len(row.rounds)} for row in rows]
    most = max((row.most for row in outcome.results.rows(Counted)), default=None)
    gap = resolved.mechanism.private and has_gap(resolved)
    return Privacy(
        epsilon_spent_note=SPENT if outcome.results.trials else NOT_SPENT,
        **({"epsilon_attainable_note": ATTAINABLE} if gap else {}),
        trusted=trusted(resolved),
        not_private=not_private(resolved.scenario) if deployed is None else _uncovered(deployed),
        **of_plan(resolved, admitted_of(outcome), outcome.evaluated, spent, deployed, most),
    )


def of_plan(
    resolved: Resolved,
    admitted: Sequence[Admitted],
    evaluated: Sequence[Admitted] = (),
    more: Sequence[dict[str, Any]] = (),
    deployed: Deployment | None = None,
    most: int | None = None,
) -> dict[str, Any]:
    """The fields of `Privacy` that a plan has once its silos have admitted it.

    Args:
        admitted: every silo's admission of the run.
        evaluated: the silos' of its evaluation, in the same order.
        more: further fields of each silo's row.
        deployed: of a deployed run, whose silos draw exact noise, and have notices and accountants.
        most: the most records that a person has in a silo, which only a simulation can count.
    """
    silos, parts = admitted_rows(resolved, admitted, more, evaluated), how(resolved, admitted)
    if evaluated and resolved.mechanism.private:
        parts["guarantee"] += EVALUATION.format(resolved.scenario.privacy.unit.name)
    if deployed is not None:
        silos = [row.model_copy(update={"epsilon_attribute": None}) for row in silos]
        parts["notices"] = [*deployed.notices, *parts["notices"]]
        parts["accountant"] = "; ".join(deployed.accountants)
    notices = [*true_epsilons(silos), *parts.pop("notices")]
    worth = persons(resolved, admitted, evaluated, deployed is not None, most)
    return {"notices": notices, "silos": silos, **parts, **worth}


_SHARED = {
    **dict.fromkeys(
        ("notices", "unit", "mechanism", "calibration", "sampler", "accountant", "theorem"), ", "
    ),
    **{"adjacency": "; or ", "title": " or ", "counted": " or "},
    **{"guarantee": "; ", "guarantee_colluding": "; "},
}
"""The fields of a sweep's statement, and what stands between texts that differ."""


def together(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The statement of several runs, from `how` of each: each different text, or line, once."""
    if len({part["mechanism"] for part in parts}) > 1:
        parts = [part | {"guarantee": f"{part['mechanism']}: {part['guarantee']}"} for part in parts]
    joined = dict[str, Any]()
    for field, between in _SHARED.items():
        own = [part[field] for part in parts if field in part]
        if own and isinstance(own[0], str):
            joined[field] = between.join(dict.fromkeys(own))
        elif own:
            joined[field] = list(dict.fromkeys(chain.from_iterable(own)))
    return joined


def _uncovered(deployed: Deployment) -> list[str]:
    metrics = "metrics: they are computed from the server's own test records, which count as public"
    return [
        *[metrics] * deployed.measured,
        "how each silo prepares its records: by what its own operator declares",
        "sizes, budgets, noise levels and who took part in which round: they are public",
        CHOICE,
    ]


def how(resolved: Resolved, admitted: Sequence[Admitted] = ()) -> dict[str, Any]:
    """Guarantee, mechanism, sampler, accountant of a plan, and the theorem that set the noise, if one did."""
    mechanism, prescribed = resolved.mechanism, resolved.prescribed
    claimed, said = dict[str, Any](), resolved.words
    kinds = {release.kind for release, _ in resolved.trace.plan.census()}
    unit, rule = resolved.scenario.privacy.unit, resolved.scenario.algorithm.private_clip
    spent = {stage.name: stage.share for stage in resolved.stages}
    spent |= {} if rule is None else {"clip_norm": rule.share}
    shares = "".join(f" {name} {share:g}," for name, share in spent.items())
    silo = "silo that is not public" if any(resolved.public_silos) else "silo"
    if unit.bound:
        claimed |= {"bound": unit.bound, "h": unit.h if isinstance(unit.h, int) else None}
    if resolved.sums is not None:
        claimed["guarantee_colluding"] = resolved.sums.mechanism.guarantee_colluding
    if prescribed is not None and prescribed.theorem is not None:
        claimed |= {"theorem": prescribed.theorem, "violations": list(prescribed.violations)}
    return {
        "notices": _notices(resolved, admitted),
        "adjacency": said.adjacency,
        "title": said.title,
        "counted": said.counted,
        "unit": said.one if mechanism.private else NONE.name,
        "guarantee": guaranteed(mechanism.guarantee, said, silo),
        "mechanism": mechanism.name,
        "calibration": resolved.scenario.privacy.calibration,
        "sampler": samplers(resolved),
        "spent": spent,
        "accountant": mechanism.accountant(kinds) + (shares and f"; of mu^2{shares} training the rest"),
        **claimed,
    }


def _notices(resolved: Resolved, admitted: Sequence[Admitted]) -> list[str]:
    """Notices that stand before any number; empty for a run within a budget."""
    privacy, prescribed = resolved.scenario.privacy, resolved.prescribed
    lines = [*resolved.mechanism.notices, *resolved.scenario.data.notices, *resolved.of_unit]
    public, records = resolved.scenario.public, resolved.weighed(admitted).composite.records
    if public is not None and records is not None:
        source = f"{public.name}, SHA-256 {records.digest}"
        lines += [f"{len(records):,} public records ({source}) are not protected", *records.notes]
    pairs = zip(resolved.names, resolved.public_silos, strict=True)
    if names := [name for name, its in pairs if its and resolved.mechanism.private]:
        lines.append(f"public, without clip, noise or guarantee: {_named(names)}")
    if resolved.scenario.problem.silo_weights == "precision":
        from fedsim.scenario.precision import weights_line

        lines.append(weights_line(resolved.names, resolved.weights))
    if resolved.protects == "label":
        lines.append("Labels alone are protected: what is released may reveal features")
    if resolved.scenario.runtime.noise == "aggregate":
        lines.append("noise of the sum, drawn at once: no deployed silo has this transcript")
    if resolved.mechanism.private and privacy.epsilon == "unlimited":
        why = "no budget bounds what this run costs, which only a simulation allows"
        lines.append(f"epsilon is unlimited: {why}")
    if resolved.mechanism.private:
        lines += _inexact(resolved)
    if prescribed is not None and prescribed.violations:
        lines.append(f"outside the conditions of {prescribed.theorem}, so that its claim does not apply:")
        lines += [f"  {violation}" for violation in prescribed.violations]
    return lines


def _inexact(resolved: Resolved) -> Iterator[str]:
    """Notices of terms that rounding makes depend on more than their own unit, and of what silos refuse."""
    if resolved.scenario.runtime.device != "cpu":
        yield "cuda: no term is exact, in float64 neither; deployed silos compute on their CPUs"
    if resolved.dtype == torch.float32:
        yield "float32: terms are not exact; in float64 they are"
    yield from (f"a silo refuses this run: {words}" for _, words in clashes(resolved.facts, "offer"))


def parameters(resolved: Resolved) -> dict[str, Parameters]:
    """{"parameters": the numbers that a theorem or `auto` chose}; {} where all are given."""
    derived = resolved.derived
    if derived is None:
        return {}
    known = {"not_applied": derived.notes, "predicted": derived.predicted, "reasons": derived.reasons}
    given = {key: value for key, value in known.items() if value}
    return {"parameters": Parameters(theorem=derived.theorem, values=derived.values, **given)}


def not_private(scenario: Scenario) -> list[str]:
    """Releases that the guarantee does not cover, the most important first."""
    private = MECHANISMS[scenario.privacy.mechanism].private
    trains = scenario.algorithm.name != "release"
    notes = {
        "everything: mechanism none neither clips nor adds noise": not private,
        **dict.fromkeys([*scenario.data.not_private, *scenario.partition.not_private], True),
        "metrics: they are computed from test records, which only a simulation can do": trains,
        "heterogeneity: it is computed from all silos' training records, which only a simulation can do": (
            scenario.report.heterogeneity
        ),
        "baselines, and warnings about records: they are made of records without noise, which only a "
        "simulation can do": trains,
        "the share of terms that is clipped, and their norms: they are computed from training records, which "
        "only a simulation can do": private and scenario.report.clipping,
        "excess risk and gradient mapping: they are computed from training records of all silos, which only "
        "a simulation can do": measures_objective(scenario),
        "the noise against an adversary with the seed (scenario.yaml has it): it is reproducible, and drawn "
        "in floating point": private,
        "the non-private baseline of the run, shown for comparison": private
        and scenario.report.nonprivate_baseline,
        "trials together: they repeat the run to measure its spread; the guarantee is that of one trial": (
            private and scenario.trials > 1
        ),
        CHOICE: trains,
        "the choice of what was asked, where data was looked at": not trains,
    }
    return [note for note, applies in notes.items() if applies]


OWN = "code of the silo's own installation, with its records: nothing keeps it from a file or the network"


def trusted(resolved: Resolved) -> list[str]:
    """The code that a silo trusts with its records, and the parts of others that ran in it."""
    others = plug_ins(resolved)
    if not others:
        return [OWN]
    ran = f"code of others that ran: {', '.join(others)}"
    return [OWN, f"{ran}; of modules and losses only graphs of one record's operations met records"]


def plug_ins(resolved: Resolved) -> list[str]:
    """Algorithm, problem, network and data set that are not fedsim's, as `kind package.module:name`."""
    problem = resolved.problem
    parts = {"algorithm": resolved.algorithm, "problem": problem, "data set": resolved.scenario.data}
    result = [
        f"{kind} {type(part).__module__}:{type(part).__qualname__}"
        for kind, part in parts.items()
        if not type(part).__module__.startswith("fedsim.")
    ]
    model = resolved.scenario.problem.model_dump()["model"] or {}
    if model.get("name") == "module":
        result.append(f"module {model['path']}")
    return result


def true_epsilons(silos: Sequence[SiloRow]) -> list[str]:
    """One line for each claimed epsilon; none where nothing is claimed."""
    claims = grouped(silos, lambda silo: silo.epsilon_claimed).items()
    return [f"claimed epsilon {each:g}, true epsilon {_of(own)}" for each, own in claims if each is not None]


def true_epsilon(least: float | None, most: float | None) -> str:
    """The bounds on a true epsilon, the lower rounded down and the upper rounded up.

    >>> true_epsilon(None, 12.9123), true_epsilon(33.07, 47.274), true_epsilon(None, None)
    ('12.92', 'between 33.07 and 47.28', 'without bound')
    """
    if most is None:
        return "without bound"
    return shown_up(most) if least is None else f"between {shown_down(least)} and {shown_up(most)}"


def _of(silos: Sequence[SiloRow]) -> str:
    groups = grouped(silos, lambda silo: (silo.epsilon_attainable, silo.epsilon_guaranteed))
    if len(groups) > _MOST_GROUPS:
        most = max(inf if silo.epsilon_guaranteed is None else silo.epsilon_guaranteed for silo in silos)
        return f"up to {shown_up(most)} in {len(silos)} silos"
    named = {bounds: _named([silo.name for silo in own]) for bounds, own in groups.items()}
    return "; ".join(f"{true_epsilon(*bounds)} ({names})" for bounds, names in named.items())


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"
