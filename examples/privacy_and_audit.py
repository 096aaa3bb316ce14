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
# # Reading a privacy statement, and an audit
#
# A run says what it promises, to whom, and what it does not cover. An audit attacks the same silos and sets
# what it attains beside what was promised.

# %%
import fedsim

run = fedsim.simulate("quickstart", trials=1, num_rounds=10, runtime="inprocess")
privacy = run.summary.privacy

# %% [markdown]
# ## The promise
#
# The unit is one record, and the neighbouring data set has another record in its place. The adversary may
# be the server and all other silos together.

# %%
print(privacy.unit)
print(privacy.adjacency)
print(privacy.guarantee)

# %% [markdown]
# ## What it costs each silo
#
# `budget` is what a silo allows, `guaranteed` what the plan of all rounds costs, whatever happens in it.
# Guaranteed epsilons are rounded up. The noise multiplier is sigma over the sensitivity of a clipped mean.

# %%
run

# %%
run.plot("spend")

# %% [markdown]
# ## What it does not cover
#
# Read this list before you trust a number.

# %%
for line in privacy.not_private:
    print("-", line)

# %% [markdown]
# ## In other units
#
# What the same plan means for a group of records, for a whole silo, and for the federation seen from
# outside.

# %%
other = fedsim.price("quickstart", num_rounds=10, conversions=True).conversions
print(f"any one record, seen from outside: epsilon {other.central.epsilon:.3g}")
for silo in other.silos:
    groups = {group.records: round(group.guarantee.epsilon, 2) for group in silo.group}
    print(f"{silo.name}: epsilon by records in a group: {groups}")

# %% [markdown]
# ## An audit
#
# Attained epsilons are lower bounds: a sound silo stays below its claim, up to the chance that the bound's
# confidence leaves. `worst server` chooses the worst broadcasts and records; `honest server` reads along;
# `model alone` sees the final model. `moved` is by how much one record moves an answer without noise, over
# the sensitivity that was priced: at most 1. Effort 0.02 is a first look; 1, the default, takes about a
# minute.

# %%
found = fedsim.audit("quickstart", num_rounds=10, effort=0.02)
found

# %%
found.plot()

# %%
print(found.verdict)
assert not found.broken
