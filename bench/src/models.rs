//! Training steps of models whose operations the other workloads do not cover. `bench/models.py` contains the same
//! models in PyTorch.

use crate::harness::{Work, Workload};
use crate::training::Training;
use pellucid::nn::{
    AdaptiveAvgPool2d, AdaptiveAvgPool3d, AttentionMasks, AvgPool2d, BatchNorm2d, Conv1d, Conv2d, Conv3d,
    ConvTranspose2d, Embedding, GroupNorm, Gru, LayerNorm, LeakyRelu, TransformerEncoder, Upsample,
};
use pellucid::prelude::*;
use pellucid::{GradOptions, grad, grad_one};

pub(crate) fn workloads() -> Vec<Workload> {
    macro_rules! models {
        ($($id:literal => $training:ident,)*) => {
            vec![$(
                Workload::new(concat!("model-", $id), "", || $training().eager()),
                Workload::new(concat!("model-", $id), "captured", || $training().captured()),
            )*]
        };
    }
    models! {
        "depthwise" => depthwise,
        "dcgan" => dcgan,
        "unet" => unet,
        "dilated1d" => dilated1d,
        "conv3d" => conv3d,
        "mixer" => mixer,
        "gru" => gru,
        "attention" => attention,
        "vocabulary" => vocabulary,
        "messages" => messages,
        "pinn" => pinn,
        "linalg" => linalg,
    }
}

/// Returns the training of a model by AdamW, with its loss of inputs and targets.
fn training<M: Module + 'static>(
    model: M,
    data: (Tensor, Tensor),
    loss: impl Fn(&M, &Tensor, &Tensor) -> Tensor + 'static,
) -> Training {
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-3, ..Default::default() });
    Training::new(Work::Overhead, data, Box::new(optimizer), move |x, target| loss(&model, x, target))
}

fn classifier(model: Sequential, x: Tensor) -> Training {
    let target = Tensor::randint(0, 10, [x.shape()[0]]);
    training(model, (x, target), |model, x, target| cross_entropy(&model.forward(x), target))
}

/// Depthwise separable convolutions (Howard et al. 2017).
fn depthwise() -> Training {
    let mut model = sequential![Conv2d::new(3, 32, 3).stride(2).padding(1).bias(false), BatchNorm2d::new(32), Relu];
    for (inputs, outputs, stride) in [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)] {
        model.push(Conv2d::new(inputs, inputs, 3).groups(inputs).stride(stride).padding(1).bias(false));
        model.push(BatchNorm2d::new(inputs));
        model.push(Relu);
        model.push(Conv2d::new(inputs, outputs, 1).bias(false));
        model.push(BatchNorm2d::new(outputs));
        model.push(Relu);
    }
    model.push(AdaptiveAvgPool2d::new(1));
    model.push(Flatten::new());
    model.push(Linear::new(256, 10));
    classifier(model, Tensor::randn([16, 3, 64, 64], DType::F32))
}

/// A generator and a discriminator (Radford et al. 2016), trained by the loss of both.
fn dcgan() -> Training {
    let generator = sequential![
        ConvTranspose2d::new(64, 128, 4).bias(false),
        BatchNorm2d::new(128),
        Relu,
        ConvTranspose2d::new(128, 64, 4).stride(2).padding(1).bias(false),
        BatchNorm2d::new(64),
        Relu,
        ConvTranspose2d::new(64, 32, 4).stride(2).padding(1).bias(false),
        BatchNorm2d::new(32),
        Relu,
        ConvTranspose2d::new(32, 3, 4).stride(2).padding(1),
        Tanh,
    ];
    let discriminator = sequential![
        Conv2d::new(3, 32, 4).stride(2).padding(1),
        LeakyRelu::default(),
        Conv2d::new(32, 64, 4).stride(2).padding(1).bias(false),
        BatchNorm2d::new(64),
        LeakyRelu::default(),
        Conv2d::new(64, 128, 4).stride(2).padding(1).bias(false),
        BatchNorm2d::new(128),
        LeakyRelu::default(),
        Conv2d::new(128, 1, 4),
    ];
    let data = (Tensor::randn([32, 64, 1, 1], DType::F32), Tensor::randn([32, 3, 32, 32], DType::F32));
    training((generator, discriminator), data, |(generator, discriminator), noise, images| {
        let scores = |x: &Tensor| discriminator.forward(x);
        (scores(images) * -1.0).softplus().mean(..) + scores(&generator.forward(noise)).softplus().mean(..)
    })
}

/// Two convolutions with group normalization (Wu & He 2018).
fn double_conv(inputs: usize, outputs: usize) -> Sequential {
    sequential![
        Conv2d::new(inputs, outputs, 3).padding(1),
        GroupNorm::new(8, outputs),
        Relu,
        Conv2d::new(outputs, outputs, 3).padding(1),
        GroupNorm::new(8, outputs),
        Relu,
    ]
}

/// A U-Net with two levels (Ronneberger et al. 2015).
#[derive(Module)]
struct UNet {
    down: Sequential,
    bottom: Sequential,
    up: Sequential,
    head: Conv2d,
}

fn unet() -> Training {
    let model = UNet {
        down: double_conv(3, 32),
        bottom: double_conv(32, 64),
        up: double_conv(96, 32),
        head: Conv2d::new(32, 1, 1),
    };
    let data = (Tensor::randn([4, 3, 64, 64], DType::F32), Tensor::randn([4, 1, 64, 64], DType::F32));
    training(model, data, |model, x, target| {
        let high = model.down.forward(x);
        let low = model.bottom.forward(&AvgPool2d::new(2).forward(&high));
        let joined = ops::concatenate(&[&high, &Upsample::by([2.0]).forward(&low)], 1)
            .expect("the images must be equal in size");
        (model.head.forward(&model.up.forward(&joined)) - target).square().mean(..)
    })
}

/// Dilated convolutions over sequences (van den Oord et al. 2016).
fn dilated1d() -> Training {
    let mut model = sequential![Conv1d::new(32, 64, 1)];
    for dilation in [1, 2, 4, 8] {
        model.push(Conv1d::new(64, 64, 3).dilation(dilation).padding(dilation));
        model.push(Relu);
    }
    model.push(Conv1d::new(64, 32, 1));
    let data = (Tensor::randn([16, 32, 512], DType::F32), Tensor::randn([16, 32, 512], DType::F32));
    training(model, data, |model, x, target| (model.forward(x) - target).square().mean(..))
}

/// Convolutions over volumes, one of them dilated.
fn conv3d() -> Training {
    let model = sequential![
        Conv3d::new(2, 16, 3).padding(1),
        Relu,
        Conv3d::new(16, 32, 3).padding(2).dilation(2).stride(2),
        Relu,
        Conv3d::new(32, 32, 3).padding(1),
        Relu,
        AdaptiveAvgPool3d::new(1),
        Flatten::new(),
        Linear::new(32, 10),
    ];
    classifier(model, Tensor::randn([2, 2, 16, 32, 32], DType::F32))
}

/// One layer of a mixer of tokens and channels.
#[derive(Clone, Module)]
struct MixerLayer {
    token_norm: LayerNorm,
    tokens: [Linear; 2],
    channel_norm: LayerNorm,
    channels: [Linear; 2],
}

impl Layer for MixerLayer {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let mixed = |x: &Tensor, [first, last]: &[Linear; 2]| last.try_forward(&first.try_forward(x)?.gelu());
        let y = self.token_norm.try_forward(x)?.transpose(1, 2);
        let x = x + mixed(&y, &self.tokens)?.transpose(1, 2);
        let y = mixed(&self.channel_norm.try_forward(&x)?, &self.channels)?;
        Ok(x + y)
    }
}

/// An MLP-mixer (Tolstikhin et al. 2021) of 64 tokens.
fn mixer() -> Training {
    let mut model = Sequential::new();
    for _ in 0..4 {
        model.push(MixerLayer {
            token_norm: LayerNorm::new([128]),
            tokens: [Linear::new(64, 256), Linear::new(256, 64)],
            channel_norm: LayerNorm::new([128]),
            channels: [Linear::new(128, 512), Linear::new(512, 128)],
        });
    }
    let data = (Tensor::randn([32, 64, 128], DType::F32), Tensor::randn([32, 64, 128], DType::F32));
    training(model, data, |model, x, target| (model.forward(x) - target).square().mean(..))
}

fn gru() -> Training {
    let model = (Gru::new(64, 128).batch_first(true).bidirectional(true), Linear::new(256, 10));
    let data = (Tensor::randn([32, 64, 64], DType::F32), Tensor::randint(0, 10, [32]));
    training(model, data, |(gru, head), x, target| {
        let (y, _) = gru.forward_sequence(x, None);
        cross_entropy(&head.forward(&y.mean(1)), target)
    })
}

/// One transformer layer over 1,024 tokens.
fn attention() -> Training {
    let model = TransformerEncoder::new(256, 4, 1).hidden(1024).dropout(0.0).norm_first(true);
    let data = (Tensor::randn([2, 1024, 256], DType::F32), Tensor::randn([2, 1024, 256], DType::F32));
    training(model, data, |model, x, target| {
        (model.forward_masked(x, AttentionMasks::default()) - target).square().mean(..)
    })
}

/// An embedding and an output layer of 32,000 tokens.
fn vocabulary() -> Training {
    let model = (Embedding::new(32_000, 128), Linear::new(128, 32_000).bias(false));
    let data = (Tensor::randint(0, 32_000, [256]), Tensor::randint(0, 32_000, [256]));
    training(model, data, |(words, head), x, target| cross_entropy(&head.forward(&words.forward(x)), target))
}

/// Two rounds of messages between the 20,000 nodes of a graph with 100,000 edges.
fn messages() -> Training {
    let (nodes, edges) = (20_000, 100_000);
    let model = [Linear::new(64, 64), Linear::new(64, 64)];
    let [from, to] = [(); 2].map(|()| Tensor::randint(0, nodes as i64, [edges]));
    let data = (Tensor::randn([nodes, 64], DType::F32), Tensor::randn([nodes, 64], DType::F32));
    training(model, data, move |layers, x, target| {
        let mut h = x.clone();
        for layer in layers {
            let sent = layer.forward(&h).index_select(0, &from);
            h = Tensor::zeros([nodes, 64], DType::F32).index_add(0, &to, &sent, 1.0).relu();
        }
        (h - target).square().mean(..)
    })
}

/// The residual of Burgers' equation at 1,024 points, whose loss contains second derivatives of the network.
fn pinn() -> Training {
    let model = sequential![
        Linear::new(2, 64),
        Tanh,
        Linear::new(64, 64),
        Tanh,
        Linear::new(64, 64),
        Tanh,
        Linear::new(64, 1),
    ];
    let data = (Tensor::rand([1024, 1], DType::F32), Tensor::rand([1024, 1], DType::F32));
    training(model, data, |model, t, x| {
        let create_graph = || GradOptions { create_graph: true, ..Default::default() };
        let [t, x] = [t, x].map(|points| points.detach().requires_grad_(true));
        let joined = ops::concatenate(&[&t, &x], 1).expect("both must have one column");
        let u = model.forward(&joined);
        let first = grad(&[&u], &[&t, &x], create_graph()).expect("the network must be differentiable");
        let second = grad_one(&first[1], &x, create_graph()).expect("the derivative must be differentiable");
        (&first[0] + u * &first[1] - second * 0.01).square().mean(..)
    })
}

/// The roots A of the covariances A·Aᵀ + 4·I of normal distributions.
#[derive(Module)]
struct CovarianceRoots {
    roots: Parameter,
}

/// The log-likelihood of 256 normal distributions with covariances of 16 × 16.
fn linalg() -> Training {
    let model = CovarianceRoots { roots: Parameter::new(Tensor::randn([256, 16, 16], DType::F32)) };
    let data = (Tensor::eye(16, DType::F32) * 4.0, Tensor::randn([256, 16, 1], DType::F32));
    training(model, data, |model, identity, x| {
        let roots = model.roots.tensor();
        let covariance = roots.matmul(&roots.transpose(-1, -2)) + identity;
        let factor = covariance.cholesky(false);
        let white = ops::solve_triangular(&factor, x, false, true, false).expect("the factor must be invertible");
        (white.square().sum([-2, -1]) + factor.diagonal(0, -2, -1).ln().sum(-1) * 2.0).mean(..)
    })
}
