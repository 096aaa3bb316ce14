"""A recipe as a step of a scikit-learn pipeline. Where such a pipeline is loaded, fedsim is installed too."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from fedsim.data.prepare import Components, Standard
from fedsim.data.recipe import Fitted, Recipe
from fedsim.data.source import Floats


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

    @classmethod
    def of(cls, fitted: Fitted) -> Self:
        """The step that prepares as `fitted` does."""
        return cls(fitted.recipe.model_dump_json(), fitted.standard, fitted.components)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Nothing to learn."""
        return self

    def transform(self, X: Any) -> Floats:
        """Features (n, d).

        Raises:
            InputError: names the column and the row that are wrong, and what would be right.
        """
        fitted = self._fitted()
        features = fitted.features(X)
        return features[:, :-1] if fitted.recipe.intercept else features

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the features."""
        recipe = self._fitted().recipe
        return np.array(recipe.names[: len(recipe.names) - recipe.intercept], dtype=object)

    def _fitted(self) -> Fitted:
        return Fitted(
            Recipe.model_validate_json(self.recipe),
            None if self.standard is None else Standard(*self.standard),
            None if self.components is None else Components(*self.components),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True
