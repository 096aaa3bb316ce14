"""Bounds: values by hand, slopes in every variable, lower below upper, and what does not apply."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm
from support.scenarios import invoke, refusal

from fedsim.privacy.calibrate import Budget
from fedsim.scenario.load import load
from fedsim.scenario.resolve import resolve
from fedsim.theory import bound_table
from fedsim.theory import bounds as formulas
from fedsim.theory.symbols import Symbols

BREAST_CANCER = Path(__file__).parents[2] / "scenarios" / "breast_cancer.yaml"
S = Symbols(
    n=100, N=16, M=16, d=9, epsilon=2.0, delta=math.exp(-4), L=3.0, beta=8.0, mu=2.0, D=5.0, Delta=6.0,
    phi=1.5, upsilon=0.5, moment=3.0, moment_bound=4.0,
)  # fmt: skip
# Names of the bounds, in the table's order; `bounds.NAME` is a function of the symbols.
NAMES = """
convex_isrl convex_one_pass convex_isrl_lower convex_erm convex_erm_lower convex_sdp convex_one_pass_sdp
convex_central_lower strongly_convex_isrl strongly_convex_one_pass strongly_convex_isrl_lower
strongly_convex_erm strongly_convex_erm_lower strongly_convex_sdp strongly_convex_one_pass_sdp
strongly_convex_central_lower pl_isrl pl_erm pl_sdp pl_erm_sdp nonconvex_isrl nonconvex_sdp
nonconvex_isrl_lower nonconvex_central_lower
clipped_convex heavy_convex_lower clipped_strongly_convex heavy_strongly_convex_lower clipped_pl
""".split()  # noqa: SIM905
bounds = SimpleNamespace(**{name: bound.value for name, bound in zip(NAMES, bound_table.BOUNDS, strict=True)})
# By hand: sqrt(d ln(1/delta)) = 6, eps n = 200, sqrt M = 4, kappa = 4; 6 / 200 = 0.03.
LOG = math.log(9) + 4  # ln(d / delta)


def excess(mu: float) -> float:
    """The hockey-stick profile of one Gaussian release at epsilon = 2, less delta."""
    return float(norm.cdf(mu / 2 - 2 / mu) - math.exp(2) * norm.cdf(-mu / 2 - 2 / mu) - math.exp(-4))


MU = brentq(excess, 0.1, 10, xtol=1e-14)
SILOS, CENTRE = 3 / (MU * 100 * 4), 3 / (MU * 1600)  # sqrt d / (mu n sqrt N) and sqrt d / (mu n N)
VALUES = {
    "convex_isrl": 15 / 4 * (0.1 + 0.03),
    "strongly_convex_isrl": 9 / 32 * (0.01 + 0.0009),
    "convex_one_pass": 1.5 * 5 / 40 + (8**0.25 * 3 * 5**1.5 * 0.03 / 4) ** 0.8,
    "strongly_convex_one_pass": 2.25 / (2 * 1600) + 9 / 2 * 2 * 0.0009 / 16,
    "convex_erm": 15 * 0.03 / 4,
    "strongly_convex_erm": 9 / 2 * 0.0009 / 16,
    "pl_isrl": 9 / 2 * (16 * 0.0009 / 16 + 4 / 1600),
    "pl_erm": 4 * 9 * 0.0009 / (2 * 16),
    "nonconvex_isrl": (12 * 0.03 / 4) ** (4 / 3) + (3 * 0.03 / 4) ** 2,
    "convex_sdp": 15 * (1 / 40 + 0.03 / 16),
    "strongly_convex_sdp": 9 / 2 * (1 / 1600 + 0.0009 / 256),
    "convex_one_pass_sdp": 1.5 * 5 / 40 + (8**0.25 * 3 * 5**1.5 * 3 * LOG / 3200) ** 0.8,
    "strongly_convex_one_pass_sdp": 2.25 / (2 * 1600) + 9 / 2 * 2 * 9 * (LOG / 3200) ** 2,
    "pl_sdp": 9 / 2 * (16 * 9 * (LOG / 3200) ** 2 + 4 / 1600),
    "pl_erm_sdp": 4 * 9 * 0.0009 / (2 * 256),
    "nonconvex_sdp": (12 * 3 * LOG**1.5 / 3200) ** (4 / 3) + (9 * LOG**1.5 / 3200) ** 2,
    "convex_isrl_lower": 1.5 * 5 / 40 + 15 * 3 / 800,
    "strongly_convex_isrl_lower": 2.25 / 3200 + 15 * 9 / (200**2 * 16),
    "convex_erm_lower": 15 * 3 / 800,
    "strongly_convex_erm_lower": 15 * 9 / (200**2 * 16),
    "convex_central_lower": 15 * 3 / 3200,
    "strongly_convex_central_lower": 15 * 9 / 3200**2,
    "nonconvex_isrl_lower": 9 * 36 / (200**2 * 16),
    "nonconvex_central_lower": 9 * 36 / 3200**2,
    # k = 3, r = 4: 4 (k-1) / (5k-1) = 4/7, (k-1) / k = 2/3; beta D / r = 10
    "clipped_convex": 20 * (1 / 40 + max((10**0.25 * SILOS) ** (4 / 7), SILOS ** (2 / 3))),
    "heavy_convex_lower": 20 * (1 / 40 + CENTRE ** (2 / 3)),
    "clipped_strongly_convex": 8 * (1 / 1600 + (2 * SILOS) ** (4 / 3)),
    "heavy_strongly_convex_lower": 8 * (1 / 1600 + CENTRE ** (4 / 3)),
    "clipped_pl": 8 * ((4 * SILOS) ** (4 / 3) + 4 / 1600),
}


def test_every_bound_has_its_value_by_hand() -> None:
    assert set(VALUES) == set(NAMES)
    for name, expected in VALUES.items():
        assert getattr(bounds, name)(S) == pytest.approx(expected, rel=1e-12), name


def test_heavy_tails_have_their_last_term_where_it_is_larger() -> None:
    # (beta D / r)^(1/4) p to the 4/7 is below p to the 2/3 where beta D / r is small, and bounds have a 1.
    flat, few = replace(S, beta=1e-6), replace(S, epsilon=1e-3, delta=1e-9, N=1, M=1)
    assert bounds.clipped_convex(flat) == pytest.approx(20 * (1 / 40 + SILOS ** (2 / 3)))
    assert bounds.heavy_convex_lower(few) == pytest.approx(20 * (1 / 10 + 1))
    assert bounds.heavy_strongly_convex_lower(few) == pytest.approx(8 * (1 / 100 + 1))


def test_the_drawn_silos_term_of_theorem_36_is_their_error_at_the_theorems_own_rounds() -> None:
    # upsilon D sqrt(between) / sqrt(M R), R = n / K, and the theorem's
    # K = (L/(beta D))^(2/5) n^(3/5) (d ln(1/delta))^(1/5) / (eps^(2/5) M^(1/5)).
    part = replace(S, M=4, phi=1e-9)
    K = (3 / 40) ** 0.4 * 100**0.6 * 36**0.2 / (2**0.4 * 4**0.2)
    drawn = 0.5 * 5 * math.sqrt(0.8) / math.sqrt(4 * 100 / K)
    private = bounds.convex_one_pass(replace(part, upsilon=1e-12))
    assert bounds.convex_one_pass(part) - private == pytest.approx(drawn, rel=1e-6)


def test_partial_participation_adds_the_variance_of_drawn_silos() -> None:
    part = replace(S, M=4)  # (N - M) / (N - 1) = 0.8
    silos = math.sqrt(0.8) * 0.5 * 3**0.2 * 5**0.8 * 8**-0.2 * (0.03 / 4**3) ** 0.2
    private = (8**0.25 * 3 * 5**1.5 * 0.03 / 2) ** 0.8
    assert bounds.convex_one_pass(part) == pytest.approx(1.5 * 5 / 20 + private + silos)
    expected = 2.25 / 800 + 9 * 0.0009 / 4 + 0.25 * 0.8 / (2 * 2 * 4)
    assert bounds.strongly_convex_one_pass(part) == pytest.approx(expected)
    assert bounds.pl_erm(part) == pytest.approx(4 * 9 * 0.0009 / 8 + 0.8 * 0.25 / 8)
    drawn = 3 * math.sqrt(48) * 0.015 / 20 + 9 / 400
    private = (12 * 0.015) ** (4 / 3) + 0.045**2
    assert bounds.nonconvex_isrl(part) == pytest.approx(private + drawn)


SLOPES = {  # of log bound against log variable where the private term rules: eps, n, N = M, d
    "convex_isrl": (-1, -1, -1 / 2, 1 / 2),
    "strongly_convex_isrl": (-2, -2, -1, 1),
    "convex_one_pass": (-4 / 5, -4 / 5, -2 / 5, 2 / 5),
    "convex_erm": (-1, -1, -1 / 2, 1 / 2),
    "strongly_convex_erm": (-2, -2, -1, 1),
    "pl_isrl": (-2, -2, -1, 1),
    "pl_erm": (-2, -2, -1, 1),
    "nonconvex_isrl": (-4 / 3, -4 / 3, -2 / 3, 2 / 3),
    "convex_sdp": (-1, -1, -1, 1 / 2),
    "strongly_convex_sdp": (-2, -2, -2, 1),
    "pl_erm_sdp": (-2, -2, -2, 1),
    "convex_isrl_lower": (-1, -1, -1 / 2, 1 / 2),
    "convex_erm_lower": (-1, -1, -1 / 2, 1 / 2),
    "strongly_convex_erm_lower": (-2, -2, -1, 1),
    "convex_central_lower": (-1, -1, -1, 1 / 2),
    "nonconvex_isrl_lower": (-2, -2, -1, 1),
    "nonconvex_central_lower": (-2, -2, -2, 1),
    # A noisy sum gains as much by silos as by records; ln(d/delta) bends the slope against d.
    "convex_one_pass_sdp": (-4 / 5,) * 3,
    "strongly_convex_one_pass_sdp": (-2,) * 3,
    "pl_sdp": (-2,) * 3,
    "nonconvex_sdp": (-4 / 3,) * 3,
}


@pytest.mark.parametrize("name", SLOPES)
def test_slopes_are_the_theorems_where_privacy_rules(name: str) -> None:
    bound, slopes = getattr(bounds, name), SLOPES[name]
    # Small epsilon and long n: sampling error is negligible, and min(1, .) is not reached; a large Delta
    # keeps the first term of the non-convex bound ahead.
    base = replace(S, n=10**7, d=1000, epsilon=3e-5 if len(slopes) == 4 else 1e-5, phi=1e-9, Delta=1e9)
    for symbol, slope in zip(("epsilon", "n", "N", "d"), slopes, strict=False):
        factor = 4
        changed = replace(base, **{symbol: getattr(base, symbol) * factor})
        changed = replace(changed, M=changed.N)
        found = math.log(bound(changed) / bound(base)) / math.log(factor)
        assert found == pytest.approx(slope, abs=0.02), symbol


def test_drawn_silos_add_their_variance_to_sums_too() -> None:
    part = replace(S, M=4)  # (N - M) / (N - 1) = 0.8
    p = 3 * LOG / (2 * 100 * 4)  # one pass counts on no draw of silos: M, not N
    silos = math.sqrt(0.8) * 0.5 * 3**0.2 * 5**0.8 * 8**-0.2 * (p / 4**2.5) ** 0.2
    private = (8**0.25 * 3 * 5**1.5 * p) ** 0.8
    assert bounds.convex_one_pass_sdp(part) == pytest.approx(1.5 * 5 / 20 + private + silos)
    # The same at the theorem's own rounds: upsilon D sqrt(between) / sqrt(M n / K), and V D / sqrt(n / K)
    # with V = sqrt d ln(d/delta) L / (eps M K).
    K = (3 / 40) ** 0.4 * 100**0.6 * (3 * LOG / (2 * 4)) ** 0.4
    assert silos == pytest.approx(0.5 * 5 * math.sqrt(0.8) / math.sqrt(4 * 100 / K))
    assert private == pytest.approx(3 * LOG * 3 / (2 * 4 * K) * 5 / math.sqrt(100 / K))
    expected = 2.25 / 800 + 9 * p**2 + 0.25 * 0.8 / (2 * 2 * 4)
    assert bounds.strongly_convex_one_pass_sdp(part) == pytest.approx(expected)
    assert bounds.pl_erm_sdp(part) == pytest.approx(4 * 9 * 0.0009 / 512 + 0.8 * 0.25 / 8)
    p = 3 * LOG**1.5 / 3200
    drawn = 3 * math.sqrt(48) * p / 20 + 9 / 400
    assert bounds.nonconvex_sdp(part) == pytest.approx((12 * p) ** (4 / 3) + (3 * p) ** 2 + drawn)


def test_without_privacy_error_falls_with_all_records() -> None:
    free = replace(S, epsilon=1e9)
    more = replace(free, n=400)
    for bound, slope in (
        (bounds.convex_isrl, -1 / 2),
        (bounds.strongly_convex_isrl, -1),
        (bounds.pl_isrl, -1),
        (bounds.convex_sdp, -1 / 2),
        (bounds.convex_isrl_lower, -1 / 2),
    ):
        assert math.log(bound(more) / bound(free)) / math.log(4) == pytest.approx(slope, abs=0.01)


sizes = st.integers(1, 10**5)
positive = st.floats(1e-2, 1e2)


@given(n=sizes, N=st.integers(1, 10**4), d=sizes, epsilon=positive, delta=st.floats(1e-12, 0.3), L=positive,
       mu=positive, D=positive, kappa=st.floats(1, 1e3), noise=st.floats(1e-3, 1),
       k=st.floats(2, 50))  # fmt: skip
def test_lower_bounds_are_below_upper_ones(
    n: int, N: int, d: int, epsilon: float, delta: float, L: float, mu: float, D: float, kappa: float,
    noise: float, k: float,
) -> None:  # fmt: skip
    D = min(D, L / mu)  # up to a factor 2, gradients of a strongly convex function are no smaller than that
    s = Symbols(n, N, N, d, epsilon, delta, L, kappa * mu, mu, D, L * D, noise * L, noise * L, k, L)
    found = bound_table.applying(s)
    for lower, least, _ in found:
        for upper, most, _ in found:
            alike = (lower.functions, lower.risk) == (upper.functions, upper.risk)
            # Trust in a server only helps: a central lower bound holds for ISRL algorithms too.
            weaker = lower.trust in (upper.trust, "central")
            # Not optimal, and not in every regime above.
            one_pass = upper.formula is formulas.convex_one_pass
            # A bounded moment says less than a bounded norm, so that each has bounds of its own.
            alike = alike and ("moment" in lower.symbols) == ("moment" in upper.symbols)
            if alike and weaker and (lower.side, upper.side) == ("lower", "upper") and not one_pass:
                assert least is not None
                assert most is not None
                assert least <= most * (1 + 1e-9)


def test_a_sum_is_never_worse_than_isrl_and_gains_root_n_silos() -> None:
    assert bounds.convex_sdp(S) <= bounds.convex_isrl(S)
    ratio = bounds.convex_erm_lower(S) / bounds.convex_central_lower(S)
    assert ratio == pytest.approx(math.sqrt(16))


def test_what_does_not_apply_says_why() -> None:
    found = {
        (bound.functions, bound.trust, bound.risk, bound.side, bound.source): (value, reason)
        for bound, value, reason in bound_table.applying(replace(S, M=4, beta=None))
    }
    value, reason = found["convex", "ISRL", "population", "lower", "Theorem 35"]
    assert value is None
    assert reason == "stated for M = N, here 4 of 16"
    value, reason = found["proximal-PL", "ISRL", "population", "upper", "prox-SGD, Theorem 40"]
    assert value is None
    assert reason == "needs assumptions.beta"


def named(s: Symbols, source: str) -> list[tuple[bound_table.Bound, float | None, str]]:
    return [row for row in bound_table.applying(s) if row[0].source == source]


def asked(s: Symbols, source: str) -> dict[str, bool]:
    """Of the last one of that source: prox-SGD and prox-PL-SVRG have a bound for SDP below that for ISRL."""
    return {check.condition: check.holds for check in bound_table.conditions(named(s, source)[-1][0], s)}


CONDITIONS: dict[str, dict[str, tuple[dict[str, float], dict[str, float]]]] = {
    "noisy MB-SGD, Theorem 34": {"eps <= 2 ln(2/delta)": ({"epsilon": 9.38}, {"epsilon": 9.39})},
    "accelerated one-pass, Theorem 36": {"eps <= 8 ln(1/delta)": ({"epsilon": 31.9}, {"epsilon": 32.1})},
    "prox-SGD, Theorem 40": {
        "eps <= min(8 ln(1/delta), 15)": ({"epsilon": 15}, {"epsilon": 15.1}),
        "delta < 1/2": ({"delta": 0.49}, {"delta": 0.5}),
        "n >= kappa": ({"n": 4}, {"n": 3}),
        "M >= N min(eps/2, 1)": ({"epsilon": 0.5, "M": 4}, {"epsilon": 0.5, "M": 3}),
    },
    "prox-PL-SVRG, Theorem 42": {
        "eps <= min(2 ln(2/delta), 15)": ({"epsilon": 9.38}, {"epsilon": 9.39}),
        # (0.02 * 300)^(3/4) (9 LOG^3 / 48)^(3/8) / 100^(1/4) = 5.04
        "M >= min((eps n L)^(3/4) (d ln(d/delta)^3/(beta Delta))^(3/8)/n^(1/4), N)": (
            {"epsilon": 0.02, "M": 5.1},
            {"epsilon": 0.02, "M": 5},
        ),
    },
    "prox-SPIDER, Theorem 44": {
        "eps <= 2 ln(1/delta)": ({"epsilon": 8}, {"epsilon": 8.01}),
        # L / (8 sqrt(d xi Delta beta)) = 3 / (8 * 6 sqrt 48) * 4 * 100 eps = 3.608 eps
        "q >= 1": ({"epsilon": 0.278}, {"epsilon": 0.277}),
    },
    "shuffled MB-SGD, Theorem 38": {
        "eps <= ln(2/delta)": ({"epsilon": 4.69}, {"epsilon": 4.7}),
        # 16 ln(18 R M / delta), R = (100 * 400 * 0.01)^2 / 400 = 400: 16 ln(18 * 400 * 400 * e^4) = 302.0
        "M >= 16 ln(18 R M^2/(N delta))": (
            {"epsilon": 0.01, "N": 400, "M": 400},
            {"epsilon": 0.01, "N": 280, "M": 280},
        ),
    },
    "accelerated one-pass, Theorem 39": {
        "eps <= 15": ({"epsilon": 15}, {"epsilon": 15.1}),
        "delta < 1/2": ({"delta": 0.49}, {"delta": 0.5}),
    },
    "prox-SPIDER, Theorem 45": {"eps <= ln(1/delta)": ({"epsilon": 4}, {"epsilon": 4.01})},
    "Theorem 35": {
        "eps <= sqrt N": ({"epsilon": 4}, {"epsilon": 4.01}),
        "delta = o(1/(n N))": ({"delta": 0.000624}, {"delta": 0.000625}),
        # 16 ln(2 / (100 * 1e-3)) = 47.9
        "N >= 16 ln(2/(delta n))": ({"delta": 1e-3, "N": 48, "M": 48}, {"delta": 1e-3, "N": 47, "M": 47}),
    },
    # T = (beta D/r)^(3/7) (mu n sqrt N/sqrt d)^(2/7) = 10^(3/7) (4/3 mu n)^(2/7): 4.59 at n = 5, 4.3 at 4
    "clipped AC-SA, Theorem 59": {"T <= n": ({"n": 5}, {"n": 4})},
    "clipped SGD, Theorem 61": {"kappa <= n/ln n": ({"n": 9}, {"n": 8})},  # 4.1 and 3.8
    "clipped prox-SGD, Theorem 63": {"kappa <= n/ln n": ({"n": 9}, {"n": 8})},
    # rho = mu^2/2 = 9 at mu = 4.2426, where epsilon is 17.06 at this delta
    "Theorem 57": {"d >= 40": ({"d": 40}, {"d": 39}), "rho <= d": ({"epsilon": 16}, {"epsilon": 18})},
    "Theorems 123, 134": {"delta = o(1/(n N))": ({"delta": 0.000624}, {"delta": 0.000625})},
}


@pytest.mark.parametrize("source", CONDITIONS)
def test_every_condition_is_met_up_to_its_bound_and_not_beyond(source: str) -> None:
    assert set(asked(S, source)) == set(CONDITIONS[source])
    for condition, (within, beyond) in CONDITIONS[source].items():
        assert asked(replace(S, **within), source)[condition], condition
        assert not asked(replace(S, **beyond), source)[condition], condition


def test_a_condition_on_epsilon_is_asked_of_the_silo_that_is_nearest_to_it() -> None:
    silos = (Budget(100, 2.0, math.exp(-4)), Budget(100, 9.0, math.exp(-3)))
    unequal = replace(S, claims=silos, law=((16, 1.0),), differ=("eps_i", "delta_i"))
    (check,) = bound_table.conditions(named(unequal, "noisy MB-SGD, Theorem 34")[0][0], unequal)
    assert (check.value, check.holds) == (9.0, False)  # 2 ln(2 e^3) = 7.4


def test_a_draw_that_is_not_uniform_is_a_condition_that_is_not_met() -> None:
    part = replace(S, M=4, even=False)
    assert asked(part, "noisy MB-SGD, Theorem 34")["S_r uniformly random"] is False
    assert asked(replace(part, even=True), "noisy MB-SGD, Theorem 34")["S_r uniformly random"]
    assert "S_r uniformly random" not in asked(replace(S, even=False), "noisy MB-SGD, Theorem 34")


shown = partial(invoke, "bounds", BREAST_CANCER)


def test_the_command_takes_its_numbers_from_the_scenario() -> None:
    said = json.loads(shown("--json", "--set", "assumptions.D=4", "--set", "assumptions.mu=0.1"))
    assert "set to one" in said["constants"]
    setting = said["setting"]
    assert (setting["n"], setting["N"], setting["d"], setting["epsilon"], setting["L"]) == (50, 5, 31, 1, 1)
    first = said["bounds"][0]
    # Theorem 140 where all take part: the mean of ln(1/delta_i) / (n_i eps_i)^2 over 5 silos, over M = 5.
    resolved = resolve(load(BREAST_CANCER))
    silos = zip(resolved.sizes, resolved.epsilons, resolved.deltas, strict=True)
    xi = sum(math.log(1 / delta) / (n * epsilon) ** 2 for n, epsilon, delta in silos) / 25
    assert len(set(resolved.epsilons)) > 1
    assert first["value"] == pytest.approx(4 * (1 / math.sqrt(5 * 50) + math.sqrt(31 * xi)))
    for bound in said["bounds"]:
        if bound["value"] is None:
            assert "conditions" not in bound
            # Silos of 50 and 51 records are not alike, and lower bounds are proven for those that are.
            assert "assumptions." in bound["not_applicable"] or "n_i" in bound["not_applicable"]
        else:
            assert all(set(each) == {"condition", "value", "needs", "met"} for each in bound["conditions"])
    assert {bound["side"] for bound in said["bounds"] if bound["value"] is not None} == {"upper"}


def test_a_condition_that_is_not_met_is_marked_and_named() -> None:
    output = shown("--set", "assumptions.D=4", "--set", "privacy.epsilon=30", "--set", "privacy.delta=1e-6")
    assert any(line.startswith("convex") and line.rstrip().endswith("*") for line in output.splitlines())
    assert "  met: eps <= 8 ln(1/delta), here 30 and at most 110.524 (Theorem 36)" not in output  # no beta
    assert "* not met: eps <= 2 ln(2/delta), here 30 and at most 29.0173 (Theorem 34; Theorem 37)" in output


def test_the_table_says_that_constants_are_one_and_what_is_missing() -> None:
    output = shown()
    assert "is set to one" in output
    assert "Not shown, needs assumptions.D: convex (noisy MB-SGD, Theorem 34); convex" in output


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("assumptions.D=0", ["scenario.assumptions.D", "0", "greater than 0"]),
        ("privacy.mechanism=none", ["scenario.privacy.mechanism", "'none'", "gaussian"]),
        ("assumptions.Delte=1", ["scenario.assumptions.Delte", "did you mean 'Delta'"]),
    ],
)
def test_bad_input_names_field_value_and_remedy(override: str, expected: list[str]) -> None:
    output = refusal("bounds", BREAST_CANCER, "--set", override)
    assert all(text in output for text in expected)
