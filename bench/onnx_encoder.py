"""Runs a published BERT encoder in ONNX Runtime, as a peer of the example `serve`.

    pip install onnxruntime onnx numpy safetensors
    python bench/onnx_encoder.py DIRECTORY [--graph standard|fused] [--save FILE]

DIRECTORY contains `model.safetensors` and `config.json`. The script builds the ONNX graph from them: token ids and mask
`[N, L]` to the mean of the last layer over the tokens, `[N, E]`, scaled to length 1 if `modules.json` says so. With
`standard`, the default, the graph contains the operators of an exporter, and the session's optimizer fuses them. With
`fused`, attention, residual connection with norm, and bias with gelu are the operators that ONNX Runtime's optimizer for
transformers uses; on the CPU, this was slower.

Each line on standard input is a request, {"ids": [[..], ..], "mask": [[..], ..], "calls": n}. The answer is one line,
{"times_us": [..], "embeddings": [[..], ..]}: the time of each of the n calls. The answer to {} is the version. The
number of threads is THREADS, or 1.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

MICROSOFT = "com.microsoft"


class Graph:
    """A list of nodes and constants."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind, *inputs, **attributes):
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name


def build(directory, fused):
    """Returns the ONNX model of the encoder in a directory."""
    directory = Path(directory)
    config = json.loads((directory / "config.json").read_text())
    heads, eps = config["num_attention_heads"], config.get("layer_norm_eps", 1e-12)
    state = {name.removeprefix("bert."): value for name, value in load_file(directory / "model.safetensors").items()}
    width = state["embeddings.word_embeddings.weight"].shape[1]
    g = Graph()

    def weight(name):
        return state[f"{name}.weight"].T

    def vector(name):
        return g.constant(state[name])

    def linear(x, name):
        product = g.node("MatMul", x, g.constant(weight(name)))
        return g.node("Add", product, vector(f"{name}.bias"))

    def norm(x, name):
        return g.node("LayerNormalization", x, vector(f"{name}.weight"), vector(f"{name}.bias"), axis=-1, epsilon=eps)

    def residual_norm(x, y, bias, name):
        """Returns norm(x + y + bias)."""
        if fused:
            inputs = [y, x, vector(f"{name}.weight"), vector(f"{name}.bias"), vector(bias)]
            return g.node("SkipLayerNormalization", *inputs, domain=MICROSOFT, epsilon=eps)
        return norm(g.node("Add", g.node("Add", y, vector(bias)), x), name)

    def split_heads(x):
        shaped = g.node("Reshape", x, g.constant(np.array([0, 0, heads, width // heads], np.int64)))
        return g.node("Transpose", shaped, perm=[0, 2, 1, 3])

    def attention(x, name):
        names = [f"{name}.{part}" for part in ("query", "key", "value")]
        if fused:
            weights = g.constant(np.concatenate([weight(name) for name in names], 1))
            biases = g.constant(np.concatenate([state[f"{name}.bias"] for name in names]))
            return g.node("Attention", x, weights, biases, mask_int, domain=MICROSOFT, num_heads=heads)
        q, k, v = [split_heads(linear(x, name)) for name in names]
        scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
        scaled = g.node("Div", scores, g.constant(np.array((width / heads) ** 0.5, np.float32)))
        found = g.node("MatMul", g.node("Softmax", g.node("Add", scaled, hidden), axis=-1), v)
        joined = g.node("Transpose", found, perm=[0, 2, 1, 3])
        return g.node("Reshape", joined, g.constant(np.array([0, 0, width], np.int64)))

    mask = g.node("Cast", "mask", to=TensorProto.FLOAT)
    if fused:
        mask_int = g.node("Cast", "mask", to=TensorProto.INT32)
    else:
        two = g.node("Unsqueeze", mask, g.constant(np.array([1, 2], np.int64)))
        unseen = g.node("Sub", g.constant(np.array(1, np.float32)), two)
        hidden = g.node("Mul", unseen, g.constant(np.array(-10000, np.float32)))
    length = g.node("Slice", g.node("Shape", "ids"), *[g.constant(np.array([at], np.int64)) for at in (1, 2)])
    positions = g.node("Slice", vector("embeddings.position_embeddings.weight"),
                       g.constant(np.array([0], np.int64)), length, g.constant(np.array([0], np.int64)))
    types = g.constant(state["embeddings.token_type_embeddings.weight"][0])
    words = g.node("Gather", vector("embeddings.word_embeddings.weight"), "ids")
    x = norm(g.node("Add", g.node("Add", words, types), positions), "embeddings.LayerNorm")
    layers = 0
    while f"encoder.layer.{layers}.output.dense.weight" in state:
        layer = f"encoder.layer.{layers}"
        found = g.node("MatMul", attention(x, f"{layer}.attention.self"),
                       g.constant(weight(f"{layer}.attention.output.dense")))
        x = residual_norm(x, found, f"{layer}.attention.output.dense.bias", f"{layer}.attention.output.LayerNorm")
        if fused:
            product = g.node("MatMul", x, g.constant(weight(f"{layer}.intermediate.dense")))
            active = g.node("BiasGelu", product, vector(f"{layer}.intermediate.dense.bias"), domain=MICROSOFT)
        else:
            active = g.node("Gelu", linear(x, f"{layer}.intermediate.dense"))
        found = g.node("MatMul", active, g.constant(weight(f"{layer}.output.dense")))
        x = residual_norm(x, found, f"{layer}.output.dense.bias", f"{layer}.output.LayerNorm")
        layers += 1
    last, one = g.constant(np.array([-1], np.int64)), g.constant(np.array([1], np.int64))
    counted = g.node("Unsqueeze", mask, last)
    total = g.node("ReduceSum", g.node("Mul", x, counted), one, keepdims=0)
    mean = g.node("Div", total, g.node("ReduceSum", counted, one, keepdims=0))
    modules = directory / "modules.json"
    if modules.exists() and "Normalize" in modules.read_text():
        mean = g.node("LpNormalization", mean, axis=1, p=2)
    g.nodes.append(helper.make_node("Identity", [mean], ["embeddings"]))

    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["N", "L"]) for name in ("ids", "mask")]
    output = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["N", width])
    graph = helper.make_graph(g.nodes, "encoder", inputs, [output], g.constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("THREADS", "1"))
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def answer(encoder, request):
    feed = {name: np.array(request[name], np.int64) for name in ("ids", "mask")}
    times = []
    for _ in range(max(request.get("calls", 1), 1)):
        start = time.perf_counter_ns()
        (embeddings,) = encoder.run(None, feed)
        times.append((time.perf_counter_ns() - start) / 1e3)
    return {"times_us": times, "embeddings": embeddings.tolist()}


def main():
    directory, *rest = sys.argv[1:]
    options = dict(zip(rest[::2], rest[1::2]))
    model = build(directory, options.get("--graph", "standard") == "fused")
    if "--save" in options:
        onnx.save(model, options["--save"])
    encoder = session(model)
    for line in sys.stdin:
        request = json.loads(line)
        found = answer(encoder, request) if request else {"peer": "onnxruntime", "version": onnxruntime.__version__}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
