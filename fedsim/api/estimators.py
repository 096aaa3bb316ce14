"""scikit-learn estimators over `fedsim.simulate`: the silo of a record is a column of X.

Every fit is a run with a budget of its own. `epsilon_` is that of one fit; fits on the same records compose,
and k-fold cross-validation is k of them. Scores on held-out records, and any choice by them, are not private.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import inf
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from fedsim.algorithms.section import AUTO
from fedsim.api.run import Run
from fedsim.api.simulate import simulate
from fedsim.common.errors import InputError, suggest
from fedsim.data.frame import Frame
from fedsim.protocol.contract import Algorithm
from fedsim.scenario.load import apply, parse

_TARGET = "target"
_QUIET = {"baselines": False, "nonprivate_baseline": False, "clipping": False, "evaluate_every": 1_000_000}


class _Federated(BaseEstimator):  # type: ignore[misc]
    _problems: tuple[str, str]  # of at most two classes or a number, and of more classes

    def __init__(
        self,
        silo: str | int = "silo",
        *,
        epsilon: float = 1.0,
        schema: Mapping[str, Any] | None = None,
        algorithm: Algorithm | None = None,
        overrides: Mapping[str, Any] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.silo, self.epsilon, self.schema, self.algorithm = silo, epsilon, schema, algorithm
        self.overrides, self.random_state = overrides, random_state

    def _fit(self, X: Any, target: Any, entry: Mapping[str, Any] | None, classes: int) -> Self:
        """Train on the records; `entry` is the target's in a schema that is given, None where that has it."""
        table = self._table(X)
        self.feature_names_in_ = np.array(list(table.columns), dtype=object)
        self.n_features_in_ = len(table.columns)
        if _TARGET in table.columns:
            raise InputError("X", _TARGET, "is the name that y gets beside the columns of X; rename this one")
        schema = None if self.schema is None else {**self.schema, **({_TARGET: entry} if entry else {})}
        silo = self.silo if isinstance(self.silo, str) else f"x{self.silo}"
        if silo not in table.columns:
            raise InputError("silo", self.silo, f"X has no such column; {suggest(silo, table.columns)}")
        if len(target) != len(table):
            raise InputError("y", len(target), f"needs a value for each of the {len(table)} records of X")
        few = 1 / max(2, int(table[silo].value_counts().max()))  # a simulation tests on some record
        data = Frame(table.assign(**{_TARGET: target}), _TARGET, silo, schema, test_fraction=few)
        tree: dict[str, Any] = {
            "name": type(self).__name__,
            "problem": {"name": self._problems[classes > 2], "silo_weights": "size"},
            "partition": {"name": "natural_id"},
            "algorithm": AUTO,
            "privacy": {"epsilon": self.epsilon},
            "runtime": {"name": "inprocess"},
            "report": _QUIET,
        }
        if self.random_state is not None:
            tree["seed"] = self.random_state
        scenario = parse({**apply(tree, self.overrides or {}), "data": data})
        self.run_: Run = simulate(scenario, algorithm=self.algorithm, progress=False)
        for notice in self.run_.summary.privacy.notices:
            warnings.warn(notice, stacklevel=3)
        claims = [silo.epsilon_guaranteed for silo in self.run_.summary.privacy.silos]
        self.epsilon_ = max(inf if claim is None else claim for claim in claims)
        return self

    def _table(self, X: Any) -> Any:
        """X as a pandas.DataFrame; the columns of an array are x0, x1, ..."""
        import pandas as pd

        table = X.to_pandas() if hasattr(X, "to_pandas") else X
        if not isinstance(table, pd.DataFrame):
            values = np.asarray(table)
            table = pd.DataFrame(values, columns=[f"x{j}" for j in range(values.shape[1])]).infer_objects()
        return table

    def _predicted(self, X: Any) -> Any:
        check_is_fitted(self)
        return self.run_.predict(self._table(X))


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A private linear classifier, trained across silos in simulation: logistic or softmax regression.

    `epsilon_` is of one fit. Fits on the same records compose: k-fold cross-validation, or a search over
    parameters, costs the sum over its fits of each record. Scores are not private, nor is a choice by them.

    Args:
        silo: the column of X that names each record's silo; of an array its number. Predictions do without.
        epsilon: each silo's budget for one fit.
        schema: ranges and categories of the other columns, as of `fedsim.Frame`; None drafts them from the
            records, which epsilon does not cover. The classes are those of y, and count as public.
        algorithm: an algorithm object; None: `auto`, as public numbers choose it and its numbers.
        overrides: {dotted field: value} of the scenario, as `fedsim.simulate` takes them.
        random_state: the seed; None draws one.

    Attributes:
        run_: the run, a `fedsim.Run`.
        epsilon_: the largest of the silos' epsilons, of this fit.
        classes_: the classes of y, sorted.
    """

    _problems = ("logistic_regression", "softmax_regression")

    def fit(self, X: Any, y: Any) -> Self:
        """Train on the records; InputError names what is wrong. At most one record of a silo is left out."""
        self.classes_, codes = np.unique(np.asarray(y), return_inverse=True)
        names = [f"class {k:03}" for k in range(len(self.classes_))]
        if len(names) < 2:
            raise InputError("y", self.classes_.tolist(), "must have at least two classes")
        entry = {"kind": "category", "categories": names}
        return self._fit(X, np.array(names)[codes], entry, len(names))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, classes), in the order of `classes_`."""
        return np.asarray(self._predicted(X).filter(like="probability").to_numpy())

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each record."""
        places = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[places])


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A private linear regression, trained across silos in simulation.

    `epsilon_` is of one fit, as in `FederatedClassifier`, where the arguments are described. A schema that is
    given has an entry for y by the name `target`.
    """

    _problems = ("linear_regression", "linear_regression")

    def fit(self, X: Any, y: Any) -> Self:
        """Train on the records; InputError names what is wrong. At most one record of a silo is left out."""
        return self._fit(X, np.asarray(y, dtype=np.float64), None, 0)

    def predict(self, X: Any) -> np.ndarray:
        """The predicted number of each record, in the units of y."""
        return self._predicted(X)["prediction"].to_numpy()  # type: ignore[no-any-return]
