"""A trained linear model as scikit-learn's: raw columns in, the predictions of `Predictor.predict` out.

scikit-learn has no way to make a fitted model from coefficients. So its model is fitted to records of zeros,
which gives it all its attributes, and is then given ours.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC

from fedsim.common.errors import InputError
from fedsim.data.fitted import Components, Standard
from fedsim.data.recipe import Fitted, Recipe
from fedsim.data.schema import NumberColumn
from fedsim.data.source import Floats
from fedsim.problems import glm
from fedsim.problems.kinds import Problem

_CLASSIFIERS: dict[type, Any] = {
    glm.LogisticRegression: LogisticRegression,
    glm.SoftmaxRegression: LogisticRegression,
    glm.HingeLoss: LinearSVC,
}
_OF_NUMBERS = (glm.LinearRegression, glm.AbsoluteError)


def pipeline_of(problem: Problem, weights: Floats, bias: Floats, fitted: Fitted) -> Pipeline:
    """Steps `prepare`, which takes a DataFrame's raw columns, and `model`.

    Logistic and softmax regression become a LogisticRegression, hinge loss a LinearSVC, squared and absolute
    error a LinearRegression, in a TransformedTargetRegressor where the target has a log scale.

    Args:
        problem: what was minimised, a linear model; InputError if it is another one.
        weights: of the features without the constant one, (outputs, d).
        bias: (outputs,), 0 without an intercept.
        fitted: how records are prepared.
    """
    kind, recipe = type(problem), fitted.recipe
    if kind not in (*_CLASSIFIERS, *_OF_NUMBERS):
        hint = f"one of {', '.join(each.__name__ for each in (*_CLASSIFIERS, *_OF_NUMBERS))}"
        raise InputError("model", kind.__name__, f"for scikit-learn {hint}; a network has `to_torch`")
    if kind in _CLASSIFIERS:
        last = _classifier(_CLASSIFIERS[kind](), weights, bias, np.array(recipe.classes))
    else:
        last = _regressor(weights[0], bias[0], recipe.predicts, recipe.scaling != "none")
    prepare = PrepareColumns(recipe.model_dump_json(), fitted.standard, fitted.components)
    return Pipeline([("prepare", prepare), ("model", last)])


def _classifier(made: Any, weights: Floats, bias: Floats, classes: Any) -> Any:
    """Its classes are sorted, as scikit-learn has them, and ours are in declared order."""
    made.fit(np.zeros((len(classes), weights.shape[1])), classes)
    order = np.argsort(classes)
    if len(weights) == 1:  # one score, of the second class
        sign = 1.0 if order[0] == 0 else -1.0
        weights, bias = sign * weights, sign * bias
    elif len(weights) == 2:
        weights, bias = weights[order[1:]] - weights[order[:1]], bias[order[1:]] - bias[order[:1]]
    else:
        weights, bias = weights[order], bias[order]
    made.coef_, made.intercept_ = weights, bias
    return made


def _regressor(weights: Floats, bias: float, target: Any, scaled: bool) -> Any:
    """Predicts in the target's units: the inverse of its scaling is linear too, or an exponential."""
    made, log = LinearRegression(), False
    if scaled and isinstance(target, NumberColumn):
        log = target.scale == "log"
        lower, upper = (np.log(end) if log else end for end in (target.lower, target.upper))
        half = (upper - lower) / 2
        weights, bias = half * weights, lower + (bias + 1) * half
    if log:
        made = TransformedTargetRegressor(made, func=np.log, inverse_func=np.exp)
    made.fit(np.zeros((2, len(weights))), np.ones(2))
    inner = made.regressor_ if log else made
    inner.coef_, inner.intercept_ = weights, float(bias)
    return made


class PrepareColumns(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Raw columns of a DataFrame to features, without the constant one. Fitting it changes nothing.

    Args:
        recipe: a `Recipe` as JSON.
        standard: mean and deviation of the columns; None where they are scaled by declared ranges or not.
        components: centre and directions; None without PCA.
    """

    def __init__(
        self, recipe: str, standard: tuple[Any, Any] | None = None, components: tuple[Any, Any] | None = None
    ) -> None:
        self.recipe, self.standard, self.components = recipe, standard, components

    def fit(self, X: Any, y: Any = None) -> Self:
        """Nothing to learn."""
        return self

    def transform(self, X: Any) -> Floats:
        """Features (n, d); InputError names a wrong column and row, and what would be right."""
        fitted = self._fitted()
        features = fitted.features(X)
        return features[:, :-1] if fitted.recipe.intercept else features

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the features."""
        recipe = self._fitted().recipe
        return np.array(recipe.names[: len(recipe.names) - recipe.intercept], dtype=object)

    def _fitted(self) -> Fitted:
        standard = None if self.standard is None else Standard(*self.standard)
        components = None if self.components is None else Components(*self.components)
        return Fitted(Recipe.model_validate_json(self.recipe), standard, components)

    def __sklearn_is_fitted__(self) -> bool:
        return True
