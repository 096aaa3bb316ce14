"""Metrics by group against counts on fingers, chi-squared and correlations."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency
from support.helpers import together

from fedsim.common.errors import InputError
from fedsim.data.federation import SiloSplit
from fedsim.data.source import Labels
from fedsim.measure.evaluator import Evaluator, odd_records
from fedsim.measure.groups import ByGroup
from fedsim.measure.metrics import Asked, values_of
from fedsim.problems.glm import HingeLoss, LinearRegression, LogisticRegression, SoftmaxRegression
from fedsim.problems.kinds import Problem
from fedsim.protocol.rows import Rows
from fedsim.scenario.metric import BY_GROUP, BY_SKLEARN, applicable, check_metric

NAMES = ("women", "men")
# women: 4 records, labels 1 1 0 0, predicted 1 0 0 0; men: 5 records, labels 1 0 0 0 0, predicted 1 1 1 0 0;
# the last has no group
GROUP = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, -1])
TARGET = np.array([1, 1, 0, 0, 1, 0, 0, 0, 0, 1])
PREDICTED = np.array([1, 0, 0, 0, 1, 1, 1, 0, 0, 1])
SCORES = torch.tensor(np.where(PREDICTED == 1, 0.7, -0.7))


def values(
    problem: Problem, scores: Any, target: Any, codes: Any, names: tuple[str, ...] = NAMES, **asked: Any
) -> dict[str, float | None]:
    tensors = (torch.as_tensor(each, dtype=torch.float64) for each in (scores, target))
    found = values_of(BY_SKLEARN, problem, *tensors, Asked(**asked), Labels(np.asarray(codes), names))
    return {name: value for name, value in found.items() if name in BY_GROUP}


def drawn(seed: int, groups: int, classes: int, n: int = 500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, targets and scores (n, classes) that depend on each other."""
    rng = np.random.default_rng(seed)
    codes, target = rng.integers(groups, size=n), rng.integers(classes, size=n)
    scores = rng.normal(size=(n, classes)) + np.eye(classes)[target] + np.eye(classes)[codes % classes] / 2
    return codes, target, scores


def test_two_groups_by_hand() -> None:
    """Rates 1/4 and 3/5, of all with a group 4/9; true positives 1/2 and 1, false ones 0 and 2/4."""
    found = values(LogisticRegression(1), SCORES, TARGET, GROUP, classes=2)
    assert found["parity_gap"] == pytest.approx(3 / 5 - 1 / 4, abs=1e-15)
    assert found["parity_linf"] == pytest.approx(4 / 9 - 1 / 4, abs=1e-15)
    assert found["opportunity_gap"] == pytest.approx(1 / 2)
    assert found["odds_gap"] == pytest.approx(1 / 2)
    later = values(LogisticRegression(1), SCORES, np.where(TARGET < 0, 0, [0, *TARGET[1:]]), GROUP, classes=2)
    assert later["opportunity_gap"] == pytest.approx(1.0)
    assert later["odds_gap"] == pytest.approx(1.0)


def test_the_odds_gap_is_that_of_false_positives_where_it_is_the_larger() -> None:
    found = values(LogisticRegression(1), SCORES, [1, 0, 0, 0, 1, 0, 0, 0, 0, 1], GROUP, classes=2)
    assert found["opportunity_gap"] == 0.0
    assert found["odds_gap"] == pytest.approx(2 / 4)


def test_a_threshold_decides_what_is_positive() -> None:
    found = values(LogisticRegression(1), SCORES, TARGET, GROUP, classes=2, threshold=0.9)
    assert (found["parity_gap"], found["odds_gap"], found["ermi_hard"]) == (0.0, 0.0, 0.0)
    assert found["ermi"] == values(LogisticRegression(1), SCORES, TARGET, GROUP, classes=2)["ermi"] != 0.0


@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (5, 2), (2, 3), (4, 5)])
def test_ermi_is_chi_squared_of_the_table_over_n(groups: int, classes: int) -> None:
    codes, target, scores = drawn(groups + classes, groups, classes)
    names = tuple(map(str, range(groups)))
    found = values(SoftmaxRegression(1, classes), scores, target, codes, names, classes=classes)
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    hard, soft = np.zeros((groups, classes)), np.zeros((groups, classes))
    np.add.at(hard, (codes, p.argmax(1)), 1)
    np.add.at(soft, codes, p)
    n = len(target)
    assert found["ermi_hard"] == pytest.approx(chi2_contingency(hard, correction=False)[0] / n, rel=1e-10)
    assert found["ermi"] == pytest.approx(chi2_contingency(soft, correction=False)[0] / n, rel=1e-10)
    joint = soft / n
    stated = (joint**2 / np.outer(joint.sum(1), joint.sum(0))).sum() - 1
    assert found["ermi"] == pytest.approx(stated, abs=1e-12)


def test_of_two_classes_and_groups_it_is_the_squared_correlation() -> None:
    codes, target, scores = drawn(3, 2, 2)
    margin = scores[:, 1] - scores[:, 0]
    found = values(LogisticRegression(1), margin, target, codes, classes=2)
    assert found["ermi_hard"] == pytest.approx(np.corrcoef(codes, margin > 0)[0, 1] ** 2, rel=1e-10)


def test_of_several_classes_a_gap_is_the_largest_over_the_classes() -> None:
    codes, target, scores = drawn(8, 3, 4)
    predicted = scores.argmax(1)
    found = values(SoftmaxRegression(1, 4), scores, target, codes, tuple("abc"), classes=4)

    def gap(of: np.ndarray, among: np.ndarray) -> float:
        return float(np.ptp([of[among & (codes == r)].mean() for r in range(3)]))

    everyone = np.ones(len(target), dtype=bool)
    hits = [gap(predicted == k, target == k) for k in range(4)]
    alarms = [gap(predicted == k, target != k) for k in range(4)]
    assert found["parity_gap"] == pytest.approx(max(gap(predicted == k, everyone) for k in range(4)))
    assert found["opportunity_gap"] == pytest.approx(max(hits))
    assert found["odds_gap"] == pytest.approx(max(*hits, *alarms))
    far = [
        abs((predicted[codes == r] == k).mean() - (predicted == k).mean()) for r in range(3) for k in range(4)
    ]
    assert found["parity_linf"] == pytest.approx(max(far))


def test_a_group_without_records_makes_every_gap_unknown_and_never_zero() -> None:
    for codes in (GROUP, np.zeros(10, dtype=int), np.full(10, -1)):
        found = values(LogisticRegression(1), SCORES, TARGET, codes, ("women", "men", "others"), classes=2)
        assert set(found) == set(BY_GROUP)
        assert set(found.values()) == {None}


def test_a_group_without_the_label_that_a_rate_needs_makes_that_gap_alone_unknown() -> None:
    no_men = np.where(GROUP == 1, 0, TARGET)
    found = values(LogisticRegression(1), SCORES, no_men, GROUP, classes=2)
    assert (found["opportunity_gap"], found["odds_gap"]) == (None, None)
    assert found["parity_gap"] == pytest.approx(3 / 5 - 1 / 4)
    all_men = np.where(GROUP == 1, 1, TARGET)
    found = values(LogisticRegression(1), SCORES, all_men, GROUP, classes=2)
    assert (found["odds_gap"], found["opportunity_gap"]) == (None, pytest.approx(3 / 5 - 1 / 2))


def test_a_class_that_is_never_predicted_is_independent_of_the_group() -> None:
    found = values(LogisticRegression(1), np.full(10, -3.0), TARGET, GROUP, classes=2)
    assert (found["ermi_hard"], found["parity_gap"]) == (0.0, 0.0)
    assert found["ermi"] == pytest.approx(0.0, abs=1e-30)


def test_a_hinge_loss_has_gaps_and_no_ermi_of_probabilities() -> None:
    found = values(HingeLoss(1), SCORES, TARGET, GROUP, classes=2)
    assert found["ermi"] is None
    assert found["parity_gap"] == pytest.approx(3 / 5 - 1 / 4)


def test_without_groups_nothing_is_measured() -> None:
    found = values_of(BY_SKLEARN, LogisticRegression(1), SCORES, torch.as_tensor(TARGET), Asked(2))
    assert not set(found) & set(BY_GROUP)
    assert values(LinearRegression(1), SCORES, TARGET, GROUP, classes=0) == {}


def silo(name: str, rows: slice) -> SiloSplit:
    x, y = np.asarray(SCORES)[rows, None], TARGET[rows]
    return SiloSplit(name, Rows(x, y), Rows(x, y, GROUP[rows]))


def test_silos_have_their_own_values_and_rows() -> None:
    silos = [silo("a", slice(0, 5)), silo("b", slice(5, 10)), silo("c", slice(10, 10))]
    evaluate = Evaluator(LogisticRegression(1), silos, torch.float64, Asked(2, "parity_gap", groups=NAMES))
    w = torch.ones(1).double()
    assert evaluate(w)[2] == {"parity_gap": pytest.approx(3 / 5 - 1 / 4)}
    assert evaluate(w, last=True)[2]["odds_gap"] == pytest.approx(1 / 2)
    a, b, c = evaluate.by_silo("private", w)
    assert a.more["parity_gap"] == pytest.approx(1 - 1 / 4)  # four women and a man
    assert {a.more["odds_gap"], b.more["parity_gap"], c.more["parity_gap"]} == {None}
    rows = {row[2:4]: row[4:] for row in evaluate.by_group("private", w)}  # class, records, rate, error
    assert len(rows) == 8
    assert rows[None, "women"] == (1, 4, 0.25, 0.25)
    assert rows[None, "men"] == (1, 5, pytest.approx(0.6), pytest.approx(0.4))
    assert rows["b", "men"] == (1, 4, pytest.approx(2 / 4), pytest.approx(2 / 4))
    assert rows["b", "women"] == rows["c", "men"] == (1, 0, None, None)
    own = evaluate.on_own({"a": w, "b": -w})
    assert own["a"][2]["parity_gap"] == pytest.approx(1 - 1 / 4)
    assert own[None][2]["parity_gap"] == pytest.approx(abs(1 / 4 - 3 / 5))


def test_a_group_that_cannot_be_judged_is_named() -> None:
    test = SimpleNamespace(
        silos=together([silo("a", slice(0, 4))]),
        groups=NAMES,
        num_classes=2,
        shared_persons=0,
        odd_ranges=(),
        empty_groups=[],
    )
    assert odd_records(test) == [  # type: ignore[arg-type]
        f"group 'men' has no test record of class {k}: gaps in its rates are not known" for k in (0, 1)
    ]


def test_a_metric_of_groups_needs_an_attribute() -> None:
    problem = LogisticRegression(1)
    with pytest.raises(InputError, match=r"scenario\.report\.metric: .*data\.attribute"):
        check_metric("parity_gap", 0.5, problem, 2)
    check_metric("parity_gap", 0.5, problem, 2, NAMES)
    assert set(applicable(problem, 2, NAMES)) - set(applicable(problem, 2)) == set(BY_GROUP)
    assert applicable(LinearRegression(1), 0, NAMES) == applicable(LinearRegression(1), 0)
    with pytest.raises(InputError, match="the target is a number"):
        check_metric("odds_gap", 0.5, LinearRegression(1), 0, NAMES)
    with pytest.raises(InputError, match="HingeLoss gives no probabilities"):
        check_metric("ermi", 0.5, HingeLoss(1), 2, NAMES)


def test_every_metric_of_sixteen_thousand_records_is_finite() -> None:
    codes, target, scores = drawn(1, 2, 2, 16_281)
    found = ByGroup.of((codes, target, scores.argmax(1)), np.exp(scores), (2, 2), None)
    assert all(math.isfinite(getattr(found, name)) for name in BY_GROUP)
