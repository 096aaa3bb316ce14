"""pfl's simulator on softmax regression 784 x 10, 25 silos, one minibatch of 32 a round: `pfl_rounds.py
plain|private OUT`; writes JSON.

`plain` neither clips nor adds noise. `private` clips each silo's update and adds Gaussian noise to it, pfl's
local mechanism; records it cannot clip. In float32, as pfl is used. Runs in an environment that has pfl.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings

STARTED = time.perf_counter()
warnings.filterwarnings("ignore")

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from workload import SOFTMAX_BATCH, SOFTMAX_CLASSES, SOFTMAX_FEATURES, STEP, make_softmax_silo

SILOS, ROUNDS = 25, 200


class Softmax(torch.nn.Module):
    """A linear layer without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(SOFTMAX_FEATURES, SOFTMAX_CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict[str, float]:
        return {}


class Clock:
    """Starts after the first round, which warms up."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, *, model):
        from pfl.metrics import Metrics

        return Metrics()

    def after_central_iteration(self, metrics, model, *, central_iteration):
        from pfl.metrics import Metrics

        self.times.append(time.perf_counter())
        return False, Metrics()

    def on_train_end(self, *, model) -> None:
        pass


def main() -> None:
    kind, out = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    silos = {
        i: Dataset([torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y).long()])
        for i, (x, y) in enumerate(map(make_softmax_silo, range(SILOS)))
    }
    turn = [0]

    def next_user() -> int:
        turn[0] += 1
        return turn[0] % SILOS

    data = FederatedDataset(silos.__getitem__, next_user)
    network = Softmax()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
    clock = Clock()
    train = NNTrainHyperParams(
        local_learning_rate=STEP, local_num_epochs=None, local_num_steps=1, local_batch_size=SOFTMAX_BATCH
    )
    params = NNAlgorithmParams(
        central_num_iterations=ROUNDS + 1,
        evaluation_frequency=10**9,
        train_cohort_size=SILOS,
        val_cohort_size=None,
    )
    local = [GaussianMechanism(1.0, 1.0)] if kind == "private" else []
    backend = SimulatedBackend(data, None, postprocessors=local)
    FederatedAveraging().run(params, backend, model, train, callbacks=[clock], send_metrics_to_platform=False)
    milliseconds = float(np.median(np.diff(clock.times))) * 1e3
    with open(out, "w") as file:
        json.dump({"milliseconds": milliseconds, "startup": clock.times[0] - STARTED}, file)


if __name__ == "__main__":
    main()
