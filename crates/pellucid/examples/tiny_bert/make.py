"""Writes a random BERT of 6 layers with the tensor names of published files, and PyTorch's results in expected.json.

    python make.py
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = Path(__file__).parent
WIDTH, HEADS, HIDDEN, LAYERS, LONGEST, EPS = 24, 3, 48, 6, 24, 1e-12

SENTENCES = ["A cat sat on the mat.", "The dogs are barking!", "Café unseen, plötzlich unknownest", ""]
WORDS = "a cat sat on the mat dog are bark cafe un ##s ##ing ##seen ##known ##est . ! , plot ##z ##lich".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + WORDS
TOKENS = [
    "[CLS] a cat sat on the mat . [SEP]",
    "[CLS] the dog ##s are bark ##ing ! [SEP]",
    "[CLS] cafe un ##seen , plot ##z ##lich un ##known ##est [SEP]",
    "[CLS] [SEP]",
]

torch.manual_seed(0)
state = {}


def matrix(name, *shape):
    state[name] = torch.randn(*shape) / shape[-1] ** 0.5


def linear(name, rows, columns):
    matrix(f"{name}.weight", rows, columns)
    state[f"{name}.bias"] = 0.1 * torch.randn(rows)


def norm(name):
    state[f"{name}.LayerNorm.weight"] = 1 + 0.1 * torch.randn(WIDTH)
    state[f"{name}.LayerNorm.bias"] = 0.1 * torch.randn(WIDTH)


matrix("embeddings.word_embeddings.weight", len(VOCABULARY), WIDTH)
matrix("embeddings.position_embeddings.weight", LONGEST, WIDTH)
matrix("embeddings.token_type_embeddings.weight", 2, WIDTH)
norm("embeddings")
for k in range(LAYERS):
    layer = f"encoder.layer.{k}"
    for part in ("query", "key", "value"):
        linear(f"{layer}.attention.self.{part}", WIDTH, WIDTH)
    linear(f"{layer}.attention.output.dense", WIDTH, WIDTH)
    norm(f"{layer}.attention.output")
    linear(f"{layer}.intermediate.dense", HIDDEN, WIDTH)
    linear(f"{layer}.output.dense", WIDTH, HIDDEN)
    norm(f"{layer}.output")
linear("pooler.dense", WIDTH, WIDTH)
save_file(state | {"embeddings.position_ids": torch.arange(LONGEST)[None]}, HERE / "model.safetensors")
state = {name: value.double() for name, value in state.items()}


def apply(name, x):
    return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])


def normalize(name, x):
    return F.layer_norm(x, (WIDTH,), state[f"{name}.LayerNorm.weight"], state[f"{name}.LayerNorm.bias"], EPS)


def embed(ids):
    x = state["embeddings.word_embeddings.weight"][torch.tensor(ids)]
    x = x + state["embeddings.position_embeddings.weight"][: len(ids)] + state["embeddings.token_type_embeddings.weight"][0]
    x = normalize("embeddings", x)
    for k in range(LAYERS):
        layer = f"encoder.layer.{k}"
        heads = lambda part: apply(f"{layer}.attention.self.{part}", x).view(len(ids), HEADS, -1).transpose(0, 1)
        scores = heads("query") @ heads("key").mT / (WIDTH / HEADS) ** 0.5
        found = (scores.softmax(-1) @ heads("value")).transpose(0, 1).reshape(len(ids), WIDTH)
        x = normalize(f"{layer}.attention.output", x + apply(f"{layer}.attention.output.dense", found))
        hidden = F.gelu(apply(f"{layer}.intermediate.dense", x))
        x = normalize(f"{layer}.output", x + apply(f"{layer}.output.dense", hidden))
    return x.mean(0)


ids = [[VOCABULARY.index(token) for token in tokens.split()] for tokens in TOKENS]
embeddings = [[round(value, 7) for value in embed(sentence).tolist()] for sentence in ids]
(HERE / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
config = {"num_attention_heads": HEADS, "layer_norm_eps": EPS}
(HERE / "config.json").write_text(json.dumps(config) + "\n")
expected = {"sentences": SENTENCES, "ids": ids, "embeddings": embeddings}
(HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n")
