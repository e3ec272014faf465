"""Writes reference.safetensors: the outputs of PyTorch's layers and losses for small inputs, and their gradients.

    python crates/pellucid-nn/tests/reference/reference.py

Of each layer NAME: NAME/x, NAME/state/.., the output NAME/y of training, and for the gradient cos 0, cos 1, .. of it
the gradients NAME/dx and NAME/grad/... Of one with buffers also these, NAME/after/.., after a second batch 2x + 1, and the output NAME/eval
of evaluation afterwards. Layers of two inputs are under two/NAME.

Losses are in double precision. Of each, loss/NAME/.. has its inputs; loss/NAME/OPTION/REDUCTION the value, and for each
input x that has a gradient loss/NAME/OPTION/REDUCTION/x that of the value (of the values' sum, if all are kept).
"""

import json
import pathlib
import struct

import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

torch.manual_seed(0)
tensors = {}


def randn(*shape):
    return torch.randn(shape)


IMAGE, LINE, SOLID = randn(2, 4, 5, 6), randn(2, 4, 9), randn(2, 4, 4, 3, 3)
ROWS = randn(3, 6)
NUMBERS = torch.tensor([[1, 0, 3, 3], [4, 2, 0, 3]])

LAYERS = {
    "linear": (nn.Linear(6, 4), ROWS),
    "linear_plain": (nn.Linear(6, 4, bias=False), randn(2, 3, 6)),
    "embedding": (nn.Embedding(5, 3), NUMBERS),
    "embedding_options": (nn.Embedding(5, 3, padding_idx=3, max_norm=1.0, scale_grad_by_freq=True), NUMBERS),
    "embedding_bag": (nn.EmbeddingBag(5, 3), NUMBERS),
    "embedding_bag_sum": (nn.EmbeddingBag(5, 3, mode="sum", padding_idx=0), NUMBERS),
    "embedding_bag_max": (nn.EmbeddingBag(5, 3, mode="max"), NUMBERS),
    "conv1d": (nn.Conv1d(4, 6, 3), LINE),
    "conv1d_options": (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), LINE),
    "conv1d_single": (nn.Conv1d(4, 6, 3), randn(4, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3), IMAGE),
    "conv2d_options": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2), IMAGE),
    "conv2d_same": (nn.Conv2d(4, 6, (4, 3), padding="same"), IMAGE),
    "conv2d_reflect": (nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="reflect"), IMAGE),
    "conv2d_replicate_same": (nn.Conv2d(4, 6, (4, 3), padding="same", padding_mode="replicate"), IMAGE),
    "conv2d_circular": (nn.Conv2d(4, 6, 3, stride=2, padding=1, padding_mode="circular"), IMAGE),
    "conv2d_depthwise": (nn.Conv2d(4, 8, 3, groups=4), IMAGE),
    "conv3d": (nn.Conv3d(4, 2, (3, 2, 2), padding=1), SOLID),
    "conv_transpose1d": (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), LINE),
    "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3), IMAGE),
    "conv_transpose2d_options": (
        nn.ConvTranspose2d(4, 6, (3, 4), stride=2, padding=1, output_padding=(1, 0), dilation=(1, 2), groups=2, bias=False),
        IMAGE,
    ),
    "conv_transpose3d": (nn.ConvTranspose3d(4, 2, 2, stride=(1, 2, 1)), SOLID),
    "max_pool1d": (nn.MaxPool1d(3, stride=2, padding=1), LINE),
    "max_pool2d": (nn.MaxPool2d(2), IMAGE),
    "max_pool2d_options": (nn.MaxPool2d((3, 2), stride=(2, 3), padding=(1, 0), dilation=(1, 2), ceil_mode=True), IMAGE),
    "max_pool3d": (nn.MaxPool3d((2, 2, 1)), SOLID),
    "avg_pool1d": (nn.AvgPool1d(3, stride=2, padding=1), LINE),
    "avg_pool2d": (nn.AvgPool2d((3, 2), stride=2, padding=1, ceil_mode=True), IMAGE),
    "avg_pool2d_inside": (nn.AvgPool2d(3, padding=1, count_include_pad=False), IMAGE),
    "avg_pool2d_divisor": (nn.AvgPool2d(2, divisor_override=3), IMAGE),
    "avg_pool3d": (nn.AvgPool3d(2), SOLID),
    "fractional_max_pool2d": (
        nn.FractionalMaxPool2d((2, 3), output_size=(3, 4), _random_samples=torch.arange(16.0).div(16).reshape(2, 4, 2)),
        IMAGE,
    ),
    "fractional_max_pool3d": (
        nn.FractionalMaxPool3d(
            (2, 1, 2), output_ratio=(0.5, 0.7, 0.5), _random_samples=torch.arange(24.0).div(24).reshape(2, 4, 3)
        ),
        SOLID,
    ),
    "lp_pool1d": (nn.LPPool1d(3, 2), LINE.abs()),
    "lp_pool2d": (nn.LPPool2d(2, (2, 3), stride=2), IMAGE.abs()),
    "lp_pool3d": (nn.LPPool3d(2, 2), SOLID.abs()),
    "adaptive_avg_pool1d": (nn.AdaptiveAvgPool1d(4), LINE),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d((4, None)), IMAGE),
    "adaptive_avg_pool3d": (nn.AdaptiveAvgPool3d(2), SOLID),
    "adaptive_max_pool1d": (nn.AdaptiveMaxPool1d(4), LINE),
    "adaptive_max_pool2d": (nn.AdaptiveMaxPool2d((3, 4)), IMAGE),
    "adaptive_max_pool3d": (nn.AdaptiveMaxPool3d((2, None, 1)), SOLID),
    "batch_norm1d": (nn.BatchNorm1d(6), randn(8, 6)),
    "batch_norm1d_line": (nn.BatchNorm1d(4, eps=1e-3, momentum=0.3), LINE),
    "batch_norm2d": (nn.BatchNorm2d(4), IMAGE),
    "batch_norm2d_cumulative": (nn.BatchNorm2d(4, momentum=None, affine=False), IMAGE),
    "batch_norm2d_plain": (nn.BatchNorm2d(4, track_running_stats=False), IMAGE),
    "batch_norm3d": (nn.BatchNorm3d(4), SOLID),
    "instance_norm1d": (nn.InstanceNorm1d(4), LINE),
    "instance_norm2d": (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), IMAGE),
    "instance_norm2d_single": (nn.InstanceNorm2d(4, eps=1e-2), randn(4, 5, 6)),
    "instance_norm3d": (nn.InstanceNorm3d(4, affine=True), SOLID),
    "group_norm": (nn.GroupNorm(2, 4), IMAGE),
    "group_norm_plain": (nn.GroupNorm(4, 4, eps=1e-2, affine=False), LINE),
    "layer_norm": (nn.LayerNorm(6), ROWS),
    "layer_norm_axes": (nn.LayerNorm((5, 6), eps=1e-2, bias=False), IMAGE),
    "layer_norm_plain": (nn.LayerNorm(6, elementwise_affine=False), ROWS),
    "rms_norm": (nn.RMSNorm(6), ROWS),
    "rms_norm_axes": (nn.RMSNorm((5, 6), eps=1e-2, elementwise_affine=False), IMAGE),
    "local_response_norm": (nn.LocalResponseNorm(3, alpha=0.5, beta=0.6, k=2.0), IMAGE),
    "dropout_eval": (nn.Dropout(0.5).eval(), ROWS),
    "alpha_dropout_eval": (nn.AlphaDropout(0.5).eval(), ROWS),
    "feature_alpha_dropout_eval": (nn.FeatureAlphaDropout(0.5).eval(), IMAGE),
    "dropout1d_eval": (nn.Dropout1d(0.5).eval(), LINE),
    "dropout2d_eval": (nn.Dropout2d(0.5).eval(), IMAGE),
    "dropout3d_eval": (nn.Dropout3d(0.5).eval(), SOLID),
    "upsample": (nn.Upsample(scale_factor=2), IMAGE),
    "upsample_to": (nn.Upsample(size=(7, 4), mode="bilinear"), IMAGE),
    "upsample_corners": (nn.Upsample(scale_factor=(1.5, 2.5), mode="bicubic", align_corners=True), IMAGE),
    "upsample_line": (nn.Upsample(size=13, mode="linear", align_corners=True), LINE),
    "upsample_solid": (nn.Upsample(scale_factor=2.0, mode="trilinear"), SOLID[:1, :2]),
    "pixel_shuffle": (nn.PixelShuffle(2), IMAGE),
    "pixel_unshuffle": (nn.PixelUnshuffle(3), IMAGE[..., :3, :]),
    "channel_shuffle": (nn.ChannelShuffle(2), IMAGE),
    "flatten": (nn.Flatten(), IMAGE),
    "flatten_axes": (nn.Flatten(0, 2), IMAGE),
    "unflatten": (nn.Unflatten(1, (2, -1)), ROWS),
    "identity": (nn.Identity(), ROWS),
    "fold": (nn.Fold((4, 5), (2, 3), padding=(1, 0), stride=(2, 1)), randn(2, 12, 9)),
    "unfold": (nn.Unfold((2, 3), dilation=(2, 1), padding=(0, 1), stride=2), IMAGE),
    "zero_pad1d": (nn.ZeroPad1d((1, 2)), LINE),
    "zero_pad2d": (nn.ZeroPad2d((1, 2, 3, -1)), IMAGE),
    "zero_pad3d": (nn.ZeroPad3d(1), SOLID),
    "constant_pad1d": (nn.ConstantPad1d(2, 0.5), LINE),
    "constant_pad2d": (nn.ConstantPad2d((0, 1, 2, 0), -1.5), IMAGE),
    "constant_pad3d": (nn.ConstantPad3d((1, 0, 0, 1, 0, 0), 3.0), SOLID),
    "reflection_pad1d": (nn.ReflectionPad1d(2), LINE),
    "reflection_pad2d": (nn.ReflectionPad2d((1, 2, 3, 0)), IMAGE),
    "reflection_pad3d": (nn.ReflectionPad3d(1), SOLID),
    "replication_pad1d": (nn.ReplicationPad1d(2), LINE),
    "replication_pad2d": (nn.ReplicationPad2d((1, 2, 3, 0)), IMAGE),
    "replication_pad3d": (nn.ReplicationPad3d(1), SOLID),
    "circular_pad1d": (nn.CircularPad1d(2), LINE),
    "circular_pad2d": (nn.CircularPad2d((1, 2, 3, 0)), IMAGE),
    "circular_pad3d": (nn.CircularPad3d(1), SOLID),
    "relu": (nn.ReLU(), ROWS),
    "relu6": (nn.ReLU6(), 4 * ROWS),
    "leaky_relu": (nn.LeakyReLU(), ROWS),
    "leaky_relu_slope": (nn.LeakyReLU(0.2), ROWS),
    "prelu": (nn.PReLU(), ROWS),
    "prelu_channels": (nn.PReLU(4), IMAGE),
    "rrelu_eval": (nn.RReLU().eval(), ROWS),
    "elu": (nn.ELU(1.5), ROWS),
    "celu": (nn.CELU(1.5), ROWS),
    "selu": (nn.SELU(), ROWS),
    "gelu": (nn.GELU(), ROWS),
    "gelu_tanh": (nn.GELU(approximate="tanh"), ROWS),
    "silu": (nn.SiLU(), ROWS),
    "mish": (nn.Mish(), ROWS),
    "softplus": (nn.Softplus(), ROWS),
    "softplus_beta": (nn.Softplus(2.0, 3.0), 2 * ROWS),
    "softsign": (nn.Softsign(), ROWS),
    "sigmoid": (nn.Sigmoid(), ROWS),
    "log_sigmoid": (nn.LogSigmoid(), ROWS),
    "tanh": (nn.Tanh(), ROWS),
    "tanhshrink": (nn.Tanhshrink(), ROWS),
    "hardtanh": (nn.Hardtanh(), ROWS),
    "hardtanh_range": (nn.Hardtanh(-0.3, 0.7), ROWS),
    "hardsigmoid": (nn.Hardsigmoid(), 4 * ROWS),
    "hardswish": (nn.Hardswish(), 4 * ROWS),
    "hardshrink": (nn.Hardshrink(), ROWS),
    "softshrink": (nn.Softshrink(0.3), ROWS),
    "threshold": (nn.Threshold(0.1, 20.0), ROWS),
    "glu": (nn.GLU(), ROWS),
    "glu_axis": (nn.GLU(1), IMAGE),
    "softmax": (nn.Softmax(-1), ROWS),
    "softmax_axis": (nn.Softmax(1), IMAGE),
    "log_softmax": (nn.LogSoftmax(-1), ROWS),
    "softmin": (nn.Softmin(-1), ROWS),
    "softmax2d": (nn.Softmax2d(), IMAGE),
    "weight_norm": (weight_norm(nn.Linear(6, 4)), ROWS),
    "weight_norm_conv": (weight_norm(nn.Conv2d(4, 6, 3, bias=False)), IMAGE),
    "weight_norm_transposed": (weight_norm(nn.ConvTranspose1d(4, 6, 3)), LINE),
    "spectral_norm": (spectral_norm(nn.Linear(6, 4)), ROWS),
    "spectral_norm_conv": (spectral_norm(nn.Conv2d(4, 6, 3, padding=1), n_power_iterations=2), IMAGE),
    "spectral_norm_transposed": (spectral_norm(nn.ConvTranspose2d(4, 6, (2, 3))), IMAGE),
}


def cosines(y):
    return torch.arange(y.numel(), dtype=torch.float64).cos().to(y.dtype).reshape(y.shape)


def put(name, tensor):
    tensors[name] = tensor.detach().clone().contiguous()


def layer(name, module, x, scale=0.3):
    real = x.is_floating_point()
    for parameter in module.parameters():
        # Random values instead of initial ones and zeros; the padding row 0 is kept.
        noise = scale * torch.randn_like(parameter)
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            parameter.data.add_(noise)
    put(f"{name}/x", x)
    for key, value in module.state_dict().items():
        put(f"{name}/state/{key}", value)
    leaf = x.detach().clone().requires_grad_(real)
    y = module(leaf)
    y.backward(cosines(y))
    put(f"{name}/y", y)
    if real:
        put(f"{name}/dx", leaf.grad)
    for key, parameter in module.named_parameters():
        put(f"{name}/grad/{key}", parameter.grad)
    if list(module.buffers()):
        module(2 * x + 1)
        for key, value in module.named_buffers():
            put(f"{name}/after/{key}", value)
        put(f"{name}/eval", module.eval()(x))


for name, (module, x) in LAYERS.items():
    layer(name, module, x)

# Layers of two inputs.
for name, module, a, b in [
    ("bilinear", nn.Bilinear(3, 4, 2), randn(5, 3), randn(5, 4)),
    ("bilinear_plain", nn.Bilinear(3, 4, 2, bias=False), randn(2, 5, 3), randn(2, 5, 4)),
    ("cosine_similarity", nn.CosineSimilarity(), randn(3, 4, 2), randn(3, 4, 2)),
    ("pairwise_distance", nn.PairwiseDistance(3.0, keepdim=True), randn(3, 4), randn(3, 4)),
]:
    for key, value in module.state_dict().items():
        put(f"two/{name}/state/{key}", value)
    a, b = a.requires_grad_(), b.requires_grad_()
    y = module(a, b)
    y.backward(cosines(y))
    for key, value in [("a", a), ("b", b), ("y", y), ("da", a.grad), ("db", b.grad)]:
        put(f"two/{name}/{key}", value)
    for key, parameter in module.named_parameters():
        put(f"two/{name}/grad/{key}", parameter.grad)



def loss(name, inputs, by, options):
    """Options are functions of the reduction that return losses."""
    for key, value in inputs.items():
        put(f"loss/{name}/{key}", value)
    for option, make in options.items():
        for reduction in ["mean", "sum", "none"]:
            leaves = {key: value.detach().clone().requires_grad_(key in by) for key, value in inputs.items()}
            leaves = {key: leaves[key] for key in inputs if key not in OPTIONAL}
            value = make(reduction)(*leaves.values())
            value.sum().backward()
            put(f"loss/{name}/{option}/{reduction}", value)
            for key in by:
                put(f"loss/{name}/{option}/{reduction}/{key}", leaves[key].grad)


# Weights of losses, which are options and not inputs.
OPTIONAL = ["weight", "pos_weight"]

torch.set_default_dtype(torch.float64)
X, Y = randn(4, 3), randn(4, 3)
PAIR = {"x": X, "y": Y}
loss("l1", PAIR, ["x"], {"plain": lambda r: nn.L1Loss(reduction=r)})
loss("mse", PAIR, ["x"], {"plain": lambda r: nn.MSELoss(reduction=r)})
loss("smooth_l1", PAIR, ["x"], {"plain": lambda r: nn.SmoothL1Loss(reduction=r), "beta": lambda r: nn.SmoothL1Loss(beta=0.4, reduction=r)})
loss("huber", PAIR, ["x"], {"plain": lambda r: nn.HuberLoss(reduction=r), "delta": lambda r: nn.HuberLoss(delta=0.4, reduction=r)})
SOFT = {"x": X.log_softmax(1), "y": Y.softmax(1)}
loss("kl_div", SOFT, ["x"], {
    "plain": lambda r: nn.KLDivLoss(reduction=r),
    "batch": lambda r: nn.KLDivLoss(reduction="batchmean"),
})
loss("kl_div_log", {"x": X.log_softmax(1), "y": Y.log_softmax(1)}, ["x"], {"plain": lambda r: nn.KLDivLoss(log_target=True, reduction=r)})
COUNTS = {"x": X.abs(), "y": torch.tensor([[0.0, 1.0, 2.0], [3.0, 5.0, 0.0], [1.0, 1.0, 4.0], [7.0, 0.0, 2.0]])}
loss("poisson_nll", COUNTS, ["x"], {
    "plain": lambda r: nn.PoissonNLLLoss(reduction=r),
    "full": lambda r: nn.PoissonNLLLoss(full=True, reduction=r),
    "rate": lambda r: nn.PoissonNLLLoss(log_input=False, eps=1e-3, reduction=r),
})
gaussian = {
    "plain": lambda r: nn.GaussianNLLLoss(reduction=r),
    "full": lambda r: nn.GaussianNLLLoss(full=True, eps=0.3, reduction=r),
}
loss("gaussian_nll", PAIR | {"variance": randn(4, 3).abs() + 0.1}, ["x", "variance"], gaussian)
loss("gaussian_nll_rows", PAIR | {"variance": randn(4, 1).abs() + 0.1}, ["x", "variance"], gaussian)

WEIGHT = torch.tensor([0.5, 2.0, 1.5])
classes = torch.tensor([2, 0, 1, 1])
cross_entropy = {
    "plain": lambda r: nn.CrossEntropyLoss(reduction=r),
    "smoothing": lambda r: nn.CrossEntropyLoss(label_smoothing=0.2, reduction=r),
    "weight": lambda r: nn.CrossEntropyLoss(WEIGHT, reduction=r),
    "ignore": lambda r: nn.CrossEntropyLoss(ignore_index=1, reduction=r),
    "all": lambda r: nn.CrossEntropyLoss(WEIGHT, ignore_index=1, label_smoothing=0.2, reduction=r),
}
loss("cross_entropy", {"x": X, "y": classes, "weight": WEIGHT}, ["x"], cross_entropy)
loss("cross_entropy_image", {"x": randn(2, 3, 2, 2), "y": torch.tensor([[[0, 1], [2, 2]], [[1, 0], [1, 0]]]), "weight": WEIGHT}, ["x"], cross_entropy)
loss("cross_entropy_soft", {"x": X, "y": Y.softmax(1), "weight": WEIGHT}, ["x"], {
    key: cross_entropy[key] for key in ["plain", "smoothing", "weight"]
})
loss("nll", {"x": X.log_softmax(1), "y": classes, "weight": WEIGHT}, ["x"], {
    "plain": lambda r: nn.NLLLoss(reduction=r),
    "weight": lambda r: nn.NLLLoss(WEIGHT, reduction=r),
    "ignore": lambda r: nn.NLLLoss(ignore_index=1, reduction=r),
})
TRUTH = torch.tensor([[0.0, 1.0, 0.3], [1.0, 1.0, 0.0], [0.5, 0.0, 0.0], [1.0, 0.9, 1.0]])
WEIGHTED = {"y": TRUTH, "weight": WEIGHT, "pos_weight": torch.tensor([3.0, 0.5, 1.0])}
loss("binary_cross_entropy", {"x": X.sigmoid()} | WEIGHTED, ["x"], {
    "plain": lambda r: nn.BCELoss(reduction=r),
    "weight": lambda r: nn.BCELoss(WEIGHT, reduction=r),
})
loss("binary_cross_entropy_with_logits", {"x": 5 * X} | WEIGHTED, ["x"], {
    "plain": lambda r: nn.BCEWithLogitsLoss(reduction=r),
    "weight": lambda r: nn.BCEWithLogitsLoss(WEIGHT, pos_weight=WEIGHTED["pos_weight"], reduction=r),
})
SIGNS = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0], [1.0, 1.0, 1.0], [-1.0, 1.0, -1.0]])
loss("hinge_embedding", {"x": X, "y": SIGNS}, ["x"], {
    "plain": lambda r: nn.HingeEmbeddingLoss(reduction=r),
    "margin": lambda r: nn.HingeEmbeddingLoss(0.3, reduction=r),
})
loss("soft_margin", {"x": X, "y": SIGNS}, ["x"], {"plain": lambda r: nn.SoftMarginLoss(reduction=r)})
loss("multi_margin", {"x": X, "y": classes, "weight": WEIGHT}, ["x"], {
    "plain": lambda r: nn.MultiMarginLoss(reduction=r),
    "all": lambda r: nn.MultiMarginLoss(2, 0.7, WEIGHT, reduction=r),
})
labels = torch.tensor([[2, 0, -1], [-1, 1, 0], [0, 1, 2], [1, -1, -1]])
loss("multilabel_margin", {"x": X, "y": labels}, ["x"], {"plain": lambda r: nn.MultiLabelMarginLoss(reduction=r)})
loss("multilabel_soft_margin", {"x": X, "y": (SIGNS + 1) / 2, "weight": WEIGHT}, ["x"], {
    "plain": lambda r: nn.MultiLabelSoftMarginLoss(reduction=r),
    "weight": lambda r: nn.MultiLabelSoftMarginLoss(WEIGHT, reduction=r),
})
loss("margin_ranking", {"a": randn(4), "b": randn(4), "y": SIGNS[:, 0]}, ["a", "b"], {
    "plain": lambda r: nn.MarginRankingLoss(reduction=r),
    "margin": lambda r: nn.MarginRankingLoss(0.5, reduction=r),
})
loss("cosine_embedding", {"a": X, "b": Y, "y": SIGNS[:, 0]}, ["a", "b"], {
    "plain": lambda r: nn.CosineEmbeddingLoss(reduction=r),
    "margin": lambda r: nn.CosineEmbeddingLoss(-0.3, reduction=r),
})
TRIPLE = {"x": X, "positive": Y, "negative": randn(4, 3)}
loss("triplet_margin", TRIPLE, list(TRIPLE), {
    "plain": lambda r: nn.TripletMarginLoss(reduction=r),
    "all": lambda r: nn.TripletMarginLoss(2.0, 3, eps=1e-3, swap=True, reduction=r),
    "distance": lambda r: nn.TripletMarginWithDistanceLoss(
        distance_function=lambda a, b: (a - b).square().sum(1), margin=3.0, swap=True, reduction=r
    ),
})


def ctc(**options):
    """From logits: PyTorch's gradient with respect to log-probabilities assumes that log_softmax follows."""
    return lambda r: lambda logits, *others: nn.CTCLoss(reduction=r, **options)(logits.log_softmax(2), *others)


CTC = {"logits": randn(7, 3, 5), "labels": torch.tensor([[1, 2, 2, 3], [3, 1, 1, 1], [2, 1, 1, 1]])}
LENGTHS = {"input_lengths": torch.tensor([7, 6, 5]), "label_lengths": torch.tensor([4, 2, 1])}
loss("ctc", CTC | LENGTHS, ["logits"], {"plain": ctc(), "blank": ctc(blank=4)})
# The first labelling has no alignment: it is longer than its number of steps.
loss("ctc_infinite", CTC | LENGTHS | {"input_lengths": torch.tensor([3, 6, 5])}, ["logits"], {"zero": ctc(zero_infinity=True)})
loss("ctc_joined", CTC | LENGTHS | {"labels": torch.tensor([1, 2, 2, 3, 3, 1, 2])}, ["logits"], {"plain": ctc()})

# Pruned and orthogonal layers, after all others, whose random values they do not change.
torch.set_default_dtype(torch.float32)
torch.manual_seed(1)
layer("pruned", prune.l1_unstructured(nn.Linear(6, 4), "weight", 0.4), ROWS)
layer("pruned_conv", prune.ln_structured(nn.Conv2d(4, 6, 3), "weight", 2, n=2, dim=0), IMAGE)
layer("orthogonal", orthogonal(nn.Linear(6, 6)), ROWS)
layer("orthogonal_cayley", orthogonal(nn.Linear(6, 4), orthogonal_map="cayley"), ROWS)
layer("orthogonal_conv", orthogonal(nn.Conv2d(4, 6, (3, 2)), orthogonal_map="matrix_exp"), IMAGE)
# The diagonal of the original consists of signs, which noise would change.
layer("orthogonal_householder", orthogonal(nn.Linear(6, 4), use_trivialization=False), ROWS, scale=0)

DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}


def save(path, tensors):
    """The safetensors format: the length of a JSON header, the header, the elements."""
    header, data = {}, b""
    for name, tensor in sorted(tensors.items()):
        elements = tensor.numpy().tobytes()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(elements)],
        }
        data += elements
    header = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


save(pathlib.Path(__file__).with_suffix(".safetensors"), tensors)
