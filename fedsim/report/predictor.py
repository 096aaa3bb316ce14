"""A trained model that can be used: on a table's records, and outside fedsim."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.common.errors import InputError
from fedsim.data.frame import FIELD
from fedsim.data.recipe import Fitted, Recipe
from fedsim.data.source import Floats
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem, head
from fedsim.problems.network import NeuralNetwork
from fedsim.report.run_directory import RunData

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.pipeline import Pipeline

PREDICTION, PROBABILITY, SCORE = "prediction", "probability", "score"


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trial's final model, and the preparation of records for it."""

    problem: Problem  # what was minimised, which says what scores mean
    parameters: Tensor  # flat, (d,)
    fitted: Fitted | None  # how records are prepared; None where only the silos know
    num_classes: int  # 0 for a number

    @property
    def recipe(self) -> Recipe:
        """The columns that it takes and what it predicts. InputError if only the silos know."""
        return self._known.recipe

    @property
    def _known(self) -> Fitted:
        if self.fitted is None:
            hint = "a model whose columns are known: of this deployed run only the silos know them; "
            hint += "declare the schema in the scenario's data section (name: csv)"
            raise InputError("model", "no recipe", hint)
        return self.fitted

    def features(self, table: Any) -> Floats:
        """Prepared features of a table's records, as `to_torch()` takes them: float64, (n, d), in order.

        Args:
            table: a pandas.DataFrame, the path of a CSV or Parquet file, or an array whose columns are the
                recipe's in their order; other columns of a table do no harm. InputError names the column and
                the row that are wrong, and what would be right.
        """
        prepared = self._known.features(table)
        return prepared[:, :-1] if self._has_bias else prepared

    @property
    def _has_bias(self) -> bool:
        """Whether coefficients of the constant feature are a bias; a network takes that feature as it is."""
        linear = isinstance(self.problem, GeneralisedLinear)
        return linear and self.fitted is not None and self.fitted.recipe.intercept

    def scores(self, table: Any) -> Floats:
        """(n,) or (n, outputs), as in training; InputError as of `features`, or if a score is not finite."""
        features = torch.as_tensor(self._known.features(table)).to(self.parameters.dtype)
        scores = self.problem.scores(features, self.parameters)
        bad = (~scores.isfinite()).nonzero()
        if len(bad):
            raise InputError(FIELD, f"row {int(bad[0][0]) + 1}", "has no finite score")
        return np.asarray(scores.double().numpy())

    def predict(self, table: Any) -> pd.DataFrame:
        """A row for each record, in their order and with a DataFrame's index; InputError as of `scores`.

        Returns:
            `prediction`: a class's own label, or a number in its own units. For classes also
            `probability LABEL` of each, or `score` where the loss gives no probabilities.
        """
        import pandas as pd

        scores = torch.as_tensor(self.scores(table))
        if self.num_classes:
            made = self._of_classes(scores)
        else:
            made = {PREDICTION: self._known.preparation.number(head(self.problem).numbers(scores).numpy())}
        return pd.DataFrame(made, index=table.index if isinstance(table, pd.DataFrame) else None)

    def _of_classes(self, scores: Tensor) -> dict[str, Any]:
        labels = np.array(self.recipe.classes, dtype=object)
        codes = scores.argmax(-1) if scores.dim() > 1 else (scores > 0).long()
        probabilities = head(self.problem).probabilities(scores)
        if probabilities is None:
            columns = scores.reshape(len(scores), -1).T.numpy()
            names = [SCORE] if len(columns) == 1 else [f"{SCORE} {label}" for label in labels]
        else:
            columns, names = probabilities.T.numpy(), [f"{PROBABILITY} {label}" for label in labels]
        return {PREDICTION: labels[codes.numpy()], **dict(zip(names, columns, strict=True))}

    def to_torch(self) -> nn.Module:
        """The model as a module: of `features`, in the parameters' type, to scores, (n, outputs).

        A linear model is a torch.nn.Linear, with a bias where there is an intercept; a network is its own
        module with the parameters in it.
        """
        if isinstance(self.problem, NeuralNetwork):
            module = copy.deepcopy(self.problem.module).to(self.parameters.dtype)
            values = self.problem.parameters(self.parameters)
        else:
            weights, bias = self.coefficients()
            outputs, d = weights.shape
            module = nn.Linear(d, outputs, bias=self._has_bias, dtype=self.parameters.dtype)
            values = {"weight": weights, **({"bias": bias} if self._has_bias else {})}
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(values[name])
        return module.eval()

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Weights (outputs, d) and biases (outputs,), 0 without one; InputError if it is a network."""
        if isinstance(self.problem, NeuralNetwork):
            raise InputError("model", "neural_network", "must be linear; a network has `to_torch`")
        matrix = self.parameters.reshape(self.problem.num_features, self.problem.num_outputs)
        if not self._has_bias:
            return matrix.T.clone(), torch.zeros(self.problem.num_outputs, dtype=matrix.dtype)
        return matrix[:-1].T.clone(), matrix[-1].clone()

    def to_sklearn(self) -> Pipeline:
        """See `fedsim.report.to_sklearn`; InputError for a network, or a loss that scikit-learn lacks."""
        from fedsim.report.to_sklearn import pipeline_of

        weights, bias = (value.double().numpy() for value in self.coefficients())
        return pipeline_of(self.problem, weights, bias, self._known)


def predictor_of(run: RunData, trial: int | None = None, nonprivate: bool = False) -> Predictor:
    """A run's model; arguments and errors as of `fedsim.Run.predictor`."""
    if not (run.summary.privacy.private or nonprivate):
        hint = "this run's model is not private; nonprivate=True (--nonprivate) takes it all the same"
        raise InputError("nonprivate", False, hint)
    models = run.models.get("nonprivate" if nonprivate else "private", {})
    if not models:
        hint = "the run has no non-private baseline" if nonprivate else "no trial of the run is finished"
        raise InputError("nonprivate", nonprivate, hint)
    number = next(iter(models)) if trial is None else trial
    if number not in models:
        raise InputError("trial", trial, f"must be one of the finished ones, {', '.join(map(str, models))}")
    kept, fitted = run.trained
    return Predictor(kept.made(), models[number], fitted.get(number), kept.num_classes)
