# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # An algorithm of your own
#
# An algorithm is a frozen dataclass of public numbers with two halves. `server` yields rounds and is sent
# the average of the silos' messages. `silo` makes one silo's message: it never sees a record, it asks for
# noisy means. So every algorithm is private, and what it costs follows from what it asks.
#
# This one is minibatch SGD with heavy-ball momentum.

# %%
from dataclasses import dataclass

import torch

import fedsim


@dataclass(frozen=True)
class Momentum:
    """v = m v + g; w = w - eta v."""

    linear = True  # a message is an affine function of the answers
    num_rounds: int
    step_size: float
    momentum: float
    clip_norm: float

    def server(self, w, problem, public, rng):
        velocity = torch.zeros_like(w)
        for _ in range(self.num_rounds):
            mean = yield fedsim.Round({"w": w}, answer=w)
            velocity = self.momentum * velocity + mean["g"] + problem.public_gradient(w)
            w = problem.project(w - self.step_size * velocity)
        return w

    def silo(self, problem, broadcast, ask, memory):
        return {"g": ask(fedsim.Query("gradient", (broadcast["w"],), self.clip_norm))}


# %% [markdown]
# ## One run
#
# The object takes the place of the scenario's algorithm. The class travels to Ray's processes by value, so
# it may be defined here.

# %%
mine = Momentum(num_rounds=20, step_size=0.5, momentum=0.5, clip_norm=1.0)
run = fedsim.simulate("quickstart", algorithm=mine, trials=2, epsilon=2.0, runtime="ray")
run

# %%
run.plot("error")

# %% [markdown]
# ## Beside the thesis's algorithms
#
# The same hospitals, budgets and trials for each.

# %%
from fedsim.algorithms.local_sgd import LocalSGD
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD

algorithms = [
    mine,
    NoisyMinibatchSGD(num_rounds=20, step_size=1.0, clip_norm=1.0),
    LocalSGD(num_rounds=10, local_steps=2, step_size=0.5, clip_norm=1.0),
]
common = {"trials": 3, "runtime": "inprocess", "report.nonprivate_twin": False}
runs = [
    fedsim.simulate("quickstart", common, algorithm=algorithm, epsilon=epsilon)
    for algorithm in algorithms
    for epsilon in (0.5, 1.0, 4.0)
]
together = fedsim.compare(runs)
together

# %%
together.plot()

# %% [markdown]
# Three trials tell little: take more before you believe an order. `docs/adding-an-algorithm.md` makes a
# file of this class, which gives it a name in scenarios, sweeps and the shared tests.
