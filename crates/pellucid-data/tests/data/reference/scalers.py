"""Writes scalers.txt: the values of scikit-learn's scalers for small matrices with missing and constant values.

    python crates/pellucid-data/tests/data/reference/scalers.py

Each line has a name and the values of a matrix in row-major order, with all digits.
"""

import pathlib

import numpy as np
from sklearn.preprocessing import MinMaxScaler, StandardScaler

random = np.random.default_rng(0)
train = random.normal(size=(12, 6)) * [1, 100, 1e-3, 1, 1, 1e6] + [0, 50, 2, 0, 0, 1e9]
train[:, 3] = 0.1  # constant, and not exact in binary
train[:, 4] = 7
train[[1, 5], 0] = np.nan
test = random.normal(size=(3, 6)) * 10
test[0, 1] = np.nan

SCALERS = {
    "standard": StandardScaler(),
    "min_max": MinMaxScaler(),
    "min_max_range": MinMaxScaler((-2, 3)),
}
matrices = {"train": train, "test": test}
for name, scaler in SCALERS.items():
    matrices[f"{name}_train"] = scaler.fit_transform(train)
    matrices[f"{name}_test"] = scaler.transform(test)
    matrices[f"{name}_inverse"] = scaler.inverse_transform(test)
lines = [" ".join([name, *(repr(float(value)) for value in matrix.flat)]) for name, matrix in matrices.items()]
pathlib.Path(__file__).with_name("scalers.txt").write_text("\n".join(lines) + "\n")
