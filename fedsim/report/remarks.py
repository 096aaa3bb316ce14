"""What a run says about its silos beside the error, one line each: who took part, and how they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Lines about partial participation and measured heterogeneity; none where there is neither."""
    return _participation(summary.get("participation") or {}) + _heterogeneity(
        summary.get("heterogeneity") or {}
    )


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
