"""Writes fixtures.safetensors: attention, transformers and recurrent layers of PyTorch, with their gradients.

    python make_fixtures.py

Each case contains weights (`CASE/state/..`), inputs (`in`), outputs (`out`), the gradients of the outputs (`seed`), and the
gradients of weights and inputs (`grad/state`, `grad/in`). Values are drawn in float32, computed in float64, and rounded
once. Boolean masks are true for visible positions.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
fixtures = {}


def draw(*shape):
    return torch.randn(*shape).float().double()


def case(name, module, inputs, run):
    """Runs `run(module, **inputs)`, which returns outputs by name, and keeps everything."""
    module = module.double()
    with torch.no_grad():
        for p in module.parameters():
            # Away from zeros and ones, so that biases and norms matter.
            p.copy_((p + 0.1 * torch.randn_like(p)).float().double())
    for tensor in inputs.values():
        if tensor.is_floating_point() and not tensor.isinf().any():
            tensor.requires_grad_()
    outputs = run(module, **inputs)
    seeds = {k: draw(*v.shape) for k, v in outputs.items()}
    sum((outputs[k] * seeds[k]).sum() for k in outputs).backward()
    keep = lambda part, values: fixtures.update({f"{name}/{part}/{k}": v for k, v in values.items()})
    keep("state", dict(module.named_parameters()))
    keep("in", inputs)
    keep("out", outputs)
    keep("seed", seeds)
    keep("grad/state", {k: v.grad for k, v in module.named_parameters()})
    keep("grad/in", {k: v.grad for k, v in inputs.items() if v.grad is not None})


N, L, S, E, H = 2, 4, 3, 8, 2
there = lambda length: torch.tensor([[True] * length, [True] * (length - 1) + [False]])
causal = lambda length: torch.ones(length, length).tril().bool()

# Attention.
attend = lambda module, query, key, value, **masks: dict(
    zip(("y", "weights"), module(query, key, value, average_attn_weights=False, **masks))
)
mha = lambda **options: nn.MultiheadAttention(E, H, batch_first=True, **options)
case("mha", mha(), {"x": draw(N, L, E)}, lambda m, x: {"y": m(x, x, x, need_weights=False)[0]})
case(
    "mha_masked", mha(), {"x": draw(N, L, E), "mask": causal(L), "padding": there(L)},
    lambda m, x, mask, padding: attend(m, x, x, x, attn_mask=~mask, key_padding_mask=~padding),
)
case(
    "mha_added", mha(bias=False), {"query": draw(N, L, E), "key": draw(N, S, E), "value": draw(N, S, E), "mask": draw(L, S)},
    lambda m, query, key, value, mask: attend(m, query, key, value, attn_mask=mask),
)
case(
    "mha_widths", mha(kdim=6, vdim=5), {"query": draw(N, L, E), "key": draw(N, S, 6), "value": draw(N, S, 5)},
    lambda m, query, key, value: {"y": attend(m, query, key, value)["y"]},
)
case(
    "mha_bias_kv", mha(add_bias_kv=True, add_zero_attn=True),
    {"query": draw(N, L, E), "key": draw(N, S, E), "value": draw(N, S, E), "padding": there(S)},
    lambda m, query, key, value, padding: attend(m, query, key, value, key_padding_mask=~padding),
)
case(
    "mha_causal_bias_kv", mha(add_bias_kv=True), {"x": draw(N, L, E), "mask": causal(L)},
    lambda m, x, mask: attend(m, x, x, x, attn_mask=~mask),
)


class Own(nn.Module):
    """Attention out of its parts, for what nn.MultiheadAttention lacks."""

    def __init__(self, heads, kv_heads, pairs=None):
        super().__init__()
        self.heads, self.kv_heads, self.pairs, self.width = heads, kv_heads, pairs, E // heads
        self.in_proj_weight = nn.Parameter(torch.randn(E + 2 * kv_heads * self.width, E) / 3)
        self.in_proj_bias = nn.Parameter(torch.randn(E + 2 * kv_heads * self.width) / 3)
        self.out_proj = nn.Linear(E, E)

    def turn(self, x):
        if self.pairs is None:
            return x
        angle = torch.arange(x.shape[-2])[:, None] * 10000 ** (-torch.arange(0, self.width, 2) / self.width)
        turn = torch.polar(torch.ones_like(angle), angle)
        if self.pairs == "neighbours":
            return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)
        y = torch.complex(*x.chunk(2, -1)) * turn
        return torch.cat([y.real, y.imag], -1)

    def forward(self, x):
        shared = self.kv_heads * self.width
        parts = F.linear(x, self.in_proj_weight, self.in_proj_bias).split([E, shared, shared], -1)
        q, k, v = (p.unflatten(-1, (-1, self.width)).transpose(1, 2) for p in parts)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (self.turn(k), v))
        y = F.scaled_dot_product_attention(self.turn(q), k, v, is_causal=True)
        return {"y": self.out_proj(y.transpose(1, 2).flatten(2))}


case("grouped", Own(4, 2), {"x": draw(N, L, E)}, lambda m, x: m(x))
case("rotary_neighbours", Own(2, 2, "neighbours"), {"x": draw(N, L, E)}, lambda m, x: m(x))
case("rotary_halves", Own(2, 1, "halves"), {"x": draw(N, L, E)}, lambda m, x: m(x))

# Transformers.
layer = dict(d_model=E, nhead=H, dim_feedforward=12, dropout=0.0, batch_first=True)
case(
    "encoder_layer", nn.TransformerEncoderLayer(**layer), {"x": draw(N, L, E)}, lambda m, x: {"y": m(x)}
)
case(
    "encoder", nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**layer, activation="gelu", norm_first=True), 2, nn.LayerNorm(E), enable_nested_tensor=False
    ),
    {"x": draw(N, L, E), "mask": causal(L), "padding": there(L)},
    lambda m, x, mask, padding: {"y": m(x, mask=~mask, src_key_padding_mask=~padding)},
)
case(
    "decoder", nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer, bias=False), 2),
    {"x": draw(N, L, E), "memory": draw(N, S, E), "mask": causal(L), "padding": there(S)},
    lambda m, x, memory, mask, padding: {"y": m(x, memory, tgt_mask=~mask, memory_key_padding_mask=~padding)},
)
case(
    "transformer", nn.Transformer(num_encoder_layers=1, num_decoder_layers=1, **layer),
    {"source": draw(N, S, E), "target": draw(N, L, E), "mask": causal(L), "padding": there(S)},
    lambda m, source, target, mask, padding: {
        "y": m(source, target, tgt_mask=~mask, src_key_padding_mask=~padding, memory_key_padding_mask=~padding)
    },
)

# Recurrent layers.
T, N, I, H = 4, 3, 3, 4


def states(found):
    y, state = found
    return {"y": y} | (dict(zip("hc", state)) if isinstance(state, tuple) else {"h": state})


def packed(module, x, lengths, state=None):
    x = nn.utils.rnn.pack_padded_sequence(x, lengths, module.batch_first, enforce_sorted=False)
    y, state = module(x, state)
    return states((nn.utils.rnn.pad_packed_sequence(y, module.batch_first, total_length=T)[0], state))


two = dict(num_layers=2, bidirectional=True)
case("rnn", nn.RNN(I, H, **two), {"x": draw(T, N, I), "h": draw(4, N, H)}, lambda m, x, h: states(m(x, h)))
case("rnn_relu", nn.RNN(I, H, nonlinearity="relu", bias=False), {"x": draw(T, N, I)}, lambda m, x: states(m(x)))
case("gru", nn.GRU(I, H, batch_first=True, **two), {"x": draw(N, T, I), "h": draw(4, N, H)}, lambda m, x, h: states(m(x, h)))
case(
    "lstm", nn.LSTM(I, H, **two), {"x": draw(T, N, I), "h": draw(4, N, H), "c": draw(4, N, H)},
    lambda m, x, h, c: states(m(x, (h, c))),
)
case("lstm_one", nn.LSTM(I, H), {"x": draw(T, I)}, lambda m, x: states(m(x)))
case(
    "lstm_projected", nn.LSTM(I, H, proj_size=2, **two),
    {"x": draw(T, N, I), "lengths": torch.tensor([2, 4, 3]), "h": draw(4, N, 2), "c": draw(4, N, H)},
    lambda m, x, lengths, h, c: packed(m, x, lengths, (h, c)),
)
case(
    "gru_packed", nn.GRU(I, H, bidirectional=True, batch_first=True),
    {"x": draw(N, T, I), "lengths": torch.tensor([3, 1, 4])}, lambda m, x, lengths: packed(m, x, lengths),
)
case("rnn_cell", nn.RNNCell(I, H), {"x": draw(N, I), "h": draw(N, H)}, lambda m, x, h: {"h": m(x, h)})
case("gru_cell", nn.GRUCell(I, H), {"x": draw(N, I), "h": draw(N, H)}, lambda m, x, h: {"h": m(x, h)})
case(
    "lstm_cell", nn.LSTMCell(I, H), {"x": draw(N, I), "h": draw(N, H), "c": draw(N, H)},
    lambda m, x, h, c: dict(zip("hc", m(x, (h, c)))),
)

rounded = {k: (v.detach().float() if v.is_floating_point() else v).clone().contiguous() for k, v in fixtures.items()}
save_file(rounded, Path(__file__).with_name("fixtures.safetensors"))
