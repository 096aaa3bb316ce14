"""What a run says beside its test error, one line each: excess risk, who took part, how silos differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Lines about excess risk, partial participation and heterogeneity, as far as there is any."""
    return (
        objective(summary)
        + _participation(summary.get("participation") or {})
        + _heterogeneity(summary.get("heterogeneity") or {})
    )


def objective(summary: Mapping[str, Any]) -> list[str]:
    """Lines about the excess risk and the gradient mapping; none where they were not asked for."""
    found = summary.get("objective") or {}
    if not found:
        return []
    metrics, alone = summary["metrics"], summary["privacy"]["mechanism"] == "none"
    named = {
        "excess_risk": "excess risk F(w) - F(w*)",
        "gradient_mapping_sq": f"squared gradient mapping |G_eta(w)|^2 at eta = {found['eta']:.4g}",
    }
    lines = [
        f"{said}: {_value(metrics, name)}{'' if alone else _twin(metrics, name)} "
        "(of the training objective, not private)"
        for name, said in named.items()
        if metrics.get(name) is not None
    ]
    return lines + ([f"excess risk: not measured, {found['reason']}"] if "reason" in found else [])


def _value(metrics: Mapping[str, Any], name: str) -> str:
    low, high = metrics[f"{name}_interval90"]
    return f"{metrics[name]:.3g}" + (f" [{low:.3g}, {high:.3g}]" if low < high else "")


def _twin(metrics: Mapping[str, Any], name: str) -> str:
    twin = f"{name}_nonprivate"
    return f", non-private {_value(metrics, twin)}" if twin in metrics else ""


def _participation(found: Mapping[str, Any]) -> list[str]:
    if found.get("name", "all") == "all":
        return []
    said = f"participation: M = {found['effective_m']:.4g} of {found['num_silos']} silos a round"
    observed = found["observed_mean_inverse_m"]
    seen = f", observed E[1/M_r] = {observed:.4g}" if observed is not None else ""
    lines = [f"{said} (1/M = E[1/M_r] = {found['expected_inverse_m']:.4g}{seen})"]
    low, high = found["pull"]
    if high > low:
        lines.append(
            f"silos that are there more often weigh more in the model: {low:.3g} to {high:.3g} times their "
            "silo_weights on average, where sets that are uniform given their size have 1"
        )
    return lines


def _heterogeneity(found: Mapping[str, Any]) -> list[str]:
    if not found:
        return []
    if found.get("upsilon_star_sq") is None:
        return [f"heterogeneity: not measured, {found.get('reason', 'no reason is known')}"]
    values = f"upsilon_*^2 = {found['upsilon_star_sq']:.4g}, phi^2 = {found['phi_sq_at_optimum']:.4g}"
    return [f"heterogeneity at the optimum: {values} (not private)"]
