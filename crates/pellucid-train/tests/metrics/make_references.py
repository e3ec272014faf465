"""Writes references.json: values of scikit-learn for random and degenerate inputs.

Needs numpy, scipy and scikit-learn (written with 1.9.1): python make_references.py
"""

import json
import pathlib
import warnings

import numpy as np
from scipy.special import expit, softmax
from sklearn import metrics as sk

warnings.simplefilter("ignore")
random = np.random.default_rng(0)
inputs, cases = {}, []


def add(name, output, target):
    """Adds an input. Floats have six decimals, which both sides read as the same numbers."""
    output, target = np.asarray(output), np.asarray(target)
    if output.dtype.kind == "f":
        output = output.round(6)
    if target.dtype.kind == "f":
        target = target.round(6)
    entry = lambda x: {"shape": x.shape, "float": x.dtype.kind == "f", "values": x.ravel().tolist()}
    inputs[name] = {"output": entry(output), "target": entry(target)}
    return output, target


def case(data, metric, value):
    """Adds the value of a metric. JSON has no NaN, so it is null."""
    cases.append({"input": data, "metric": metric, "value": None if np.isnan(value) else float(value)})


def classes(name, predicted, labels, binary=False):
    """Adds the metrics of predicted classes."""
    case(name, "accuracy", sk.accuracy_score(labels, predicted))
    averages = ["micro", "macro", "weighted"] + ["binary"] * binary
    for average in averages:
        options = {"average": average, "zero_division": 0}
        case(name, f"precision_{average}", sk.precision_score(labels, predicted, **options))
        case(name, f"recall_{average}", sk.recall_score(labels, predicted, **options))
        case(name, f"f1_{average}", sk.f1_score(labels, predicted, **options))
        case(name, f"iou_{average}", sk.jaccard_score(labels, predicted, **options))


def scores(name, logits, labels):
    """Adds the metrics of logits of several classes."""
    logits, labels = add(name, logits, labels)
    count = logits.shape[1]
    classes(name, logits.argmax(1), labels)
    known = list(range(count))
    # scikit-learn refuses scores of two columns.
    for k in (1, 2, count + 1) if count > 2 else ():
        case(name, f"top_{k}_accuracy", sk.top_k_accuracy_score(labels, logits, k=k, labels=known))
    probabilities = softmax(logits, axis=1)
    case(name, "log_loss", sk.log_loss(labels, probabilities, labels=known))
    case(name, "perplexity", np.exp(sk.log_loss(labels, probabilities, labels=known)))
    auc = lambda c: sk.roc_auc_score(labels == c, probabilities[:, c])
    case(name, "roc_auc", np.mean([auc(c) for c in known]))
    if len(set(labels)) == count > 2:
        assert np.isclose(cases[-1]["value"], sk.roc_auc_score(labels, probabilities, multi_class="ovr"), atol=1e-15)


def binary(name, logits, labels):
    """Adds the metrics of binary logits."""
    logits, labels = add(name, logits, labels)
    flat, truth = logits.ravel(), labels.ravel().astype(int)
    classes(name, (flat > 0).astype(int), truth, binary=True)
    case(name, "roc_auc", sk.roc_auc_score(truth, flat))
    case(name, "average_precision", sk.average_precision_score(truth, flat))
    case(name, "log_loss", sk.log_loss(truth, expit(flat), labels=[0, 1]))


def regression(name, output, target):
    """Adds the metrics of numbers."""
    output, target = add(name, output, target)
    mse = sk.mean_squared_error(target, output)
    case(name, "mean_squared_error", mse)
    case(name, "root_mean_squared_error", np.sqrt(mse))
    case(name, "mean_absolute_error", sk.mean_absolute_error(target, output))
    case(name, "r2", sk.r2_score(target, output))


scores("random", random.normal(size=(40, 5)), random.integers(5, size=40))
scores("absent classes", random.normal(size=(30, 6)), random.integers(3, size=30))
scores("one label", random.normal(size=(12, 3)), np.full(12, 1))
scores("ties", random.integers(3, size=(25, 4)).astype(float), random.integers(4, size=25))
scores("perfect", 4.0 * np.eye(4)[[0, 1, 2, 3, 1]], [0, 1, 2, 3, 1])
scores("one sample", [[0.5, 1.5, -1.0]], [2])
scores("two classes", random.normal(size=(20, 2)), random.integers(2, size=20))

predicted, labels = add("predicted classes", random.integers(7, size=30), random.integers(5, size=30))
classes("predicted classes", predicted, labels)

binary("binary", random.normal(size=50), random.integers(2, size=50))
binary("binary column", random.normal(size=(20, 1)), random.integers(2, size=(20, 1)).astype(float))
binary("binary ties", random.normal(size=60).round(), random.integers(2, size=60))
binary("no positives", random.normal(size=10), np.zeros(10, int))
binary("only positives", random.normal(size=10), np.ones(10, int))
binary("equal scores", np.full(10, 0.5), random.integers(2, size=10))
binary("no positive predictions", -np.abs(random.normal(size=10)), random.integers(2, size=10))

pixels, labels = add("pixels", random.normal(size=(2, 3, 4, 5)), random.choice([0, 1, 2, 255], size=(2, 4, 5)))
used = labels.ravel() != 255
rows = np.moveaxis(pixels, 1, -1).reshape(-1, 3)[used]
classes("pixels", rows.argmax(1), labels.ravel()[used])
case("pixels", "log_loss", sk.log_loss(labels.ravel()[used], softmax(rows, axis=1), labels=[0, 1, 2]))
case("pixels", "top_2_accuracy", sk.top_k_accuracy_score(labels.ravel()[used], rows, k=2, labels=[0, 1, 2]))

tokens, labels = add("tokens", 3 * random.normal(size=(2, 6, 7)), random.choice([0, 1, 2, 3, 4, 5, 6, 255], size=(2, 6)))
used = labels.ravel() != 255
rows = softmax(tokens.reshape(-1, 7)[used], axis=1)
case("tokens", "perplexity", np.exp(sk.log_loss(labels.ravel()[used], rows, labels=range(7))))
# scikit-learn refuses inputs without samples, and has no option to ignore labels: these values are defined as NaN.
add("ignored tokens", random.normal(size=(1, 3, 4)), np.full((1, 3), 255))
case("ignored tokens", "perplexity", np.nan)
add("ignored samples", random.normal(size=(3, 4)), np.full(3, 255))
for metric in ("accuracy", "top_2_accuracy", "precision_macro", "recall_weighted", "f1_micro", "iou_macro", "log_loss"):
    case("ignored samples", metric, np.nan)

# Multiples of 1/64, whose sums are exactly 1.
counts = random.multinomial(64, [0.1, 0.2, 0.3, 0.4], size=30)
probabilities, labels = add("probabilities", counts / 64, random.integers(4, size=30))
case("probabilities", "log_loss_of_probabilities", sk.log_loss(labels, probabilities, labels=range(4)))
case("probabilities", "roc_auc_of_probabilities", sk.roc_auc_score(labels, probabilities, multi_class="ovr"))
probabilities, labels = add("binary probabilities", [0.0, 1.0, 0.25, 1.0, 0.0], [0, 1, 1, 0, 1])
case("binary probabilities", "log_loss_of_probabilities", sk.log_loss(labels, probabilities, labels=[0, 1]))

values = random.normal(size=40)
regression("numbers", values + 0.3 * random.normal(size=40), values)
regression("large mean", 1e6 + values + 0.1 * random.normal(size=40), 1e6 + values)
regression("outlier first", random.normal(size=30), np.r_[1e5, random.normal(size=29)])
regression("columns", random.normal(size=(20, 3)), random.normal(size=(20, 3)) * [1.0, 10.0, 0.1])
regression("constant target", random.normal(size=8), np.full(8, 2.5))
regression("constant and perfect", np.full(8, 2.5), np.full(8, 2.5))
regression("one number", [1.5], [2.0])
regression("integer targets", random.normal(size=15), random.integers(-3, 4, size=15))

path = pathlib.Path(__file__).with_name("references.json")
line = lambda items: ",\n".join(json.dumps(item) for item in items)
listed = ",\n".join(f"{json.dumps(name)}: {json.dumps(data)}" for name, data in inputs.items())
path.write_text('{"inputs": {\n' + listed + '\n},\n"cases": [\n' + line(cases) + "\n]}\n")
