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
# # A first run
#
# Five hospitals train one model. No record leaves its hospital: each sends noisy means, and each has a
# budget (epsilon, delta) for all that it ever sends. Smaller epsilon means more noise.
#
# `quickstart` is one of the scenarios that come with fedsim: logistic regression on the Wisconsin breast
# cancer data, sorted by tumour size, so that the hospitals see different patients.

# %%
import fedsim

# %% [markdown]
# ## What would it cost?
#
# `price` finds the noise that each hospital needs for its budget. It reads no record.

# %%
cost = fedsim.price("quickstart", epsilon=2.0)
cost

# %% [markdown]
# ## The run
#
# Any field of the scenario can be changed. A short name does where only one field has it; otherwise write
# the whole name: `{"algorithm.step_size": 0.5}`. `runtime="inprocess"` runs in this process; without it,
# trials run side by side on Ray, whose start takes a few seconds.

# %%
run = fedsim.simulate("quickstart", {"algorithm.step_size": 0.5}, trials=3, epsilon=2.0, runtime="inprocess")
run

# %% [markdown]
# The private model beside its twin, which neither clips nor adds noise. The band holds 90 % of the trials.

# %%
run.plot("error")

# %% [markdown]
# ## What was measured, and what was paid
#
# Tables are Arrow tables: `.to_pandas()` makes a data frame of one, `["column"]` a list.

# %%
run.metrics.to_pandas().groupby("variant")["error"].last()

# %%
run.ledger

# %%
run.spend

# %% [markdown]
# `model` has one row of parameters a trial.

# %%
run.model.shape

# %% [markdown]
# ## Records of your own
#
# `Arrays` takes features, targets and the name of the silo that each record belongs to. `ranges` are the
# features' documented limits: public numbers, not taken from the records.

# %%
import numpy as np

rng = np.random.default_rng(0)
features = rng.uniform(-1, 1, (400, 3))
target = (features @ [2.0, -1.0, 0.5] + rng.normal(0, 0.3, 400) > 0).astype(int)
silo = rng.choice(["north", "south", "west"], 400)

own = fedsim.simulate(
    "quickstart",
    data=fedsim.Arrays(features, target, silo, ranges=(-1.0, 1.0)),
    trials=2,
    epsilon=1.0,
    runtime="inprocess",
)
own

# %% [markdown]
# Nothing has been written so far. `run.save("runs/first")` writes a directory with all of it and a page for
# a privacy reviewer, `report.html`; `fedsim.load_run("runs/first")` reads it back.
