"""Writes iris.csv, wine.csv and digits.gz from the copies in scikit-learn.

    python crates/pellucid-data/data/make.py
"""
import gzip
import pathlib

from sklearn import datasets

folder = pathlib.Path(__file__).parent


def write(name, data, columns, target):
    names = data.target_names[data.target]
    rows = [",".join([*(f"{value:.12g}" for value in row), label]) for row, label in zip(data.data, names)]
    (folder / name).write_text("\n".join([",".join([*columns, target]), *rows]) + "\n")


iris, wine, digits = datasets.load_iris(), datasets.load_wine(), datasets.load_digits()
write("iris.csv", iris, [name.removesuffix(" (cm)").replace(" ", "_") for name in iris.feature_names], "species")
write("wine.csv", wine, [name.replace("/", "_") for name in wine.feature_names], "class")
# The 64 grey values, 0 to 16, and the digit of each image.
records = b"".join(bytes([*map(int, image), label]) for image, label in zip(digits.data, digits.target))
(folder / "digits.gz").write_bytes(gzip.compress(records, 9, mtime=0))
