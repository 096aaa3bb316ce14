"""The workload that every peer runs: 25 silos x 1,238 records x 50 features, logistic regression."""

from __future__ import annotations

import numpy as np

SILOS, RECORDS, FEATURES = 25, 1238, 50
STEP, CLIP = 0.5, 1.0
SIGMA = 10 * 2 * CLIP / RECORDS


def make_silo(index: int) -> tuple[np.ndarray, np.ndarray]:
    """One silo's features (records, features) and targets 0 or 1."""
    truth = np.random.default_rng(0).standard_normal(FEATURES)
    x = np.random.default_rng(index + 1).standard_normal((RECORDS, FEATURES)) / FEATURES**0.5
    return x, (x @ truth > 0).astype(float)


SOFTMAX_FEATURES, SOFTMAX_CLASSES, SOFTMAX_BATCH, SOFTMAX_RECORDS = 784, 10, 32, 320


def make_softmax_silo(index: int) -> tuple[np.ndarray, np.ndarray]:
    """One silo's features (records, 784) and labels 0..9, for the pfl workload."""
    rng = np.random.default_rng(index + 1)
    x = rng.standard_normal((SOFTMAX_RECORDS, SOFTMAX_FEATURES)) / SOFTMAX_FEATURES**0.5
    return x, rng.integers(SOFTMAX_CLASSES, size=SOFTMAX_RECORDS).astype(float)
