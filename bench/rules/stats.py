"""Means with intervals."""

import numpy as np

RESAMPLES = 1000


def summary(values, seed=0):
    """{"mean", "low", "high"}: mean of the numbers and its 95 % percentile bootstrap interval; None
    without any."""
    values = np.asarray([value for value in values if value is not None], np.float64)
    if not len(values):
        return None
    random = np.random.default_rng(seed)
    picks = random.integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}
