//! Recurrent layers, compared with plain loops and with PyTorch.

mod fixture;

use crate::table::nd::Nd;
use crate::table::row::{Input, Row, Rule, argument_rejected, class, real, shape_rejected};
use pellucid_tensor::ops::{self, RecurrenceOptions, RecurrentWeights, RnnNonlinearity};
use pellucid_tensor::{DType, Error, Result, Tensor, bf16, capture};

pub(super) fn rows() -> Vec<Row> {
    let new = |name| Row::new(name).rule(Rule::FloatsOnly).ulps(64.0).scale(1.0);
    let rnn = cases(cases(new("rnn"), Kind::Tanh), Kind::Relu);
    vec![rnn, cases(new("gru"), Kind::Gru), cases(new("lstm"), Kind::Lstm)]
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Tanh,
    Relu,
    Gru,
    Lstm,
}

impl Kind {
    fn gates(self) -> usize {
        match self {
            Kind::Tanh | Kind::Relu => 1,
            Kind::Gru => 3,
            Kind::Lstm => 4,
        }
    }
}

/// A configuration of a layer.
#[derive(Clone, Copy)]
struct LayerConfig {
    kind: Kind,
    reverse: bool,
    biased: bool,
    lengths: bool,
    projected: bool,
}

const fn plain(kind: Kind) -> LayerConfig {
    LayerConfig { kind, reverse: false, biased: true, lengths: false, projected: false }
}

/// Runs the layer on these tensors: x, both weights, optional biases, initial states, the projection, lengths.
fn layer(way: LayerConfig, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let own: Vec<Tensor> =
        x.iter().map(|t| if t.dtype() == DType::I64 { t.clone() } else { t.to_dtype(x[0].dtype()) }).collect();
    let mut rest = own[3..].iter();
    let (bias_ih, bias_hh) = if way.biased { (rest.next(), rest.next()) } else { (None, None) };
    let h0 = rest.next().expect("the list must contain an initial state");
    let c0 = if way.kind == Kind::Lstm { rest.next() } else { None };
    let weight_hr = if way.projected { rest.next() } else { None };
    let weights = RecurrentWeights { weight_ih: &own[1], weight_hh: &own[2], bias_ih, bias_hh, weight_hr };
    let options = RecurrenceOptions { reverse: way.reverse, lengths: rest.next() };
    let plain = |f| ops::rnn(&own[0], weights, Some(h0), f, options);
    let (y, h) = match way.kind {
        Kind::Tanh => plain(RnnNonlinearity::Tanh)?,
        Kind::Relu => plain(RnnNonlinearity::Relu)?,
        Kind::Gru => ops::gru(&own[0], weights, Some(h0), options)?,
        Kind::Lstm => {
            let (y, (h, c)) = ops::lstm(&own[0], weights, c0.map(|c0| (h0, c0)), options)?;
            return Ok(vec![y, h, c]);
        }
    };
    Ok(vec![y, h])
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Computes the same in loops over steps, sequences and features.
fn naive(way: LayerConfig, x: &[Nd]) -> Vec<Nd> {
    let (inputs, w_ih, w_hh) = (&x[0], &x[1], &x[2]);
    let mut rest = x[3..].iter();
    let zeros = Nd::from_fn(&[w_ih.shape[0]], |_| 0.0);
    let (b_ih, b_hh) = if way.biased { (rest.next().unwrap(), rest.next().unwrap()) } else { (&zeros, &zeros) };
    let mut h = rest.next().unwrap().clone();
    let mut c = if way.kind == Kind::Lstm { rest.next().unwrap().clone() } else { h.clone() };
    let projection = if way.projected { rest.next() } else { None };
    let lengths = rest.next();
    let (steps, batch, hidden, state) =
        (inputs.shape[0], inputs.shape[1], w_ih.shape[0] / way.kind.gates(), w_hh.shape[1]);
    let mut y = Nd::from_fn(&[steps, batch, state], |_| 0.0);
    for k in 0..steps {
        let t = if way.reverse { steps - 1 - k } else { k };
        for n in 0..batch {
            if lengths.is_some_and(|l| t as f64 >= l.data[n]) {
                continue;
            }
            let dot = |w: &Nd, row: usize, v: &dyn Fn(usize) -> f64| -> f64 {
                (0..w.shape[1]).map(|i| w.at(&[row, i]) * v(i)).sum()
            };
            let share = |gate: usize, j: usize| {
                let row = gate * hidden + j;
                dot(w_ih, row, &|i| inputs.at(&[t, n, i])) + b_ih.data[row]
            };
            let recurrent = |gate: usize, j: usize| {
                let row = gate * hidden + j;
                dot(w_hh, row, &|i| h.at(&[n, i])) + b_hh.data[row]
            };
            let sum = |gate: usize, j: usize| share(gate, j) + recurrent(gate, j);
            let mut next: Vec<f64> = Vec::new();
            for j in 0..hidden {
                next.push(match way.kind {
                    Kind::Tanh => sum(0, j).tanh(),
                    Kind::Relu if sum(0, j) <= 0.0 => 0.0,
                    Kind::Relu => sum(0, j),
                    Kind::Gru => {
                        let (r, z) = (sigmoid(sum(0, j)), sigmoid(sum(1, j)));
                        let new = (share(2, j) + r * recurrent(2, j)).tanh();
                        new + z * (h.at(&[n, j]) - new)
                    }
                    Kind::Lstm => {
                        let (i, f, o) = (sigmoid(sum(0, j)), sigmoid(sum(1, j)), sigmoid(sum(3, j)));
                        let cell = f * c.at(&[n, j]) + i * sum(2, j).tanh();
                        c.set(&[n, j], cell);
                        o * cell.tanh()
                    }
                });
            }
            for j in 0..state {
                let value = projection.map_or_else(|| next[j], |p| dot(p, j, &|i| next[i]));
                h.set(&[n, j], value);
                y.set(&[t, n, j], value);
            }
        }
    }
    if way.kind == Kind::Lstm { vec![y, h, c] } else { vec![y, h] }
}

/// Returns the inputs of a layer of sizes T, N, I, H, P.
fn inputs(way: LayerConfig, [t, n, i, h, p]: [usize; 5]) -> Vec<Input> {
    let g = way.kind.gates();
    let mut all = vec![real([t, n, i]), real([g * h, i]), real([g * h, p])];
    if way.biased {
        all.extend([real([g * h]), real([g * h])]);
    }
    all.push(real([n, p]));
    if way.kind == Kind::Lstm {
        all.push(real([n, h]));
    }
    if way.projected {
        all.push(real([p, h]));
    }
    if way.lengths {
        all.push(class([n], t + 1));
    }
    all
}

fn with(row: Row, label: &str, way: LayerConfig, sizes: [usize; 5]) -> Row {
    row.outputs(label, inputs(way, sizes), move |x| layer(way, x), move |x| naive(way, x)).floats_only()
}

fn cases(mut row: Row, kind: Kind) -> Row {
    let way = plain(kind);
    row = with(row, &format!("{kind:?}, small"), way, [2, 2, 1, 2, 2]);
    row = with(
        row,
        &format!("{kind:?}, without bias, in reverse"),
        LayerConfig { biased: false, reverse: true, ..way },
        [3, 1, 2, 1, 1],
    );
    let lengths = LayerConfig { lengths: true, biased: false, ..way };
    row = with(row, &format!("{kind:?}, lengths"), lengths, [3, 3, 1, 1, 1]);
    row =
        with(row, &format!("{kind:?}, lengths, in reverse"), LayerConfig { reverse: true, ..lengths }, [3, 3, 1, 2, 2]);
    row = with(row, &format!("{kind:?}, large"), LayerConfig { lengths: true, ..way }, [4, 17, 20, 37, 37])
        .long()
        .case_scale(256.0);
    row = with(row, &format!("{kind:?}, no step"), way, [0, 2, 1, 2, 2]);
    row = with(row, &format!("{kind:?}, no sequence"), lengths, [2, 0, 1, 2, 2]);
    if kind == Kind::Lstm {
        let projected = LayerConfig { projected: true, ..way };
        row = with(row, "projected", projected, [2, 2, 1, 2, 1]);
        row = with(
            row,
            "projected, lengths, in reverse",
            LayerConfig { reverse: true, lengths: true, ..projected },
            [3, 2, 1, 1, 2],
        );
        row = with(row, "projected, large", LayerConfig { lengths: true, ..projected }, [4, 17, 20, 37, 21])
            .long()
            .case_scale(4096.0);
    }
    row.check("values and gradients must agree with PyTorch", move || fixture::agrees(kind))
        .check("invalid shapes must be errors", move || rejections(kind))
        .check("half precision must be computed in f32", move || halves(kind))
        .check("the gradient at NaN must be that of the definition", move || nan_gradients(kind))
        .check("gradients of gradients must use the definition", move || second_order_gradients(kind))
        .check("a captured layer must compute the same values", move || captured(kind))
}

/// Returns the tensors of a layer, filled with a sine wave.
fn tensors(way: LayerConfig, sizes: [usize; 5], dtype: DType) -> Vec<Tensor> {
    let filled = |(k, input): (usize, Input)| match input.kind {
        crate::table::row::Kind::Class { len } => {
            Tensor::new((0..input.shape[0]).map(|i| (i % len) as i64).collect::<Vec<_>>(), &input.shape)
        }
        _ => wave(&input.shape, 10 * k, dtype),
    };
    inputs(way, sizes).into_iter().enumerate().map(filled).collect()
}

/// Returns sin(0.7·(i + start)) in row-major order.
fn wave(shape: &[usize], start: usize, dtype: DType) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<f64> = (start..start + count).map(|i| (0.7 * i as f64).sin()).collect();
    Tensor::new(values, shape).to_dtype(dtype)
}

fn rejections(kind: Kind) -> Result<bool> {
    let way = LayerConfig { lengths: true, projected: kind == Kind::Lstm, ..plain(kind) };
    let good = tensors(way, [3, 2, 2, 4, if way.projected { 3 } else { 4 }], DType::F32);
    let mut holds = layer(way, &good).is_ok();
    for (k, tensor) in good.iter().enumerate() {
        let wrong = |t: Tensor| {
            good.iter().enumerate().map(|(i, g)| if i == k { t.clone() } else { g.clone() }).collect::<Vec<_>>()
        };
        // One more element along any axis; x may have any number of steps.
        for axis in isize::from(k == 0)..tensor.rank() as isize {
            let longer = ops::concatenate(&[tensor, &tensor.narrow(axis, 0, 1)], axis)?;
            holds &= shape_rejected(layer(way, &wrong(longer)))?;
        }
        holds &= shape_rejected(layer(way, &wrong(tensor.unsqueeze(0))))?;
    }
    let last = good.len() - 1;
    for length in [-1i64, 4] {
        let mut wrong = good.clone();
        wrong[last] = Tensor::from([1, length]);
        holds &= argument_rejected(layer(way, &wrong))?;
    }
    let weights =
        RecurrentWeights { weight_ih: &good[1], weight_hh: &good[2], bias_ih: None, bias_hh: None, weight_hr: None };
    let floats = good[last].to_dtype(DType::F32);
    let options = RecurrenceOptions { lengths: Some(&floats), ..RecurrenceOptions::default() };
    let unprojected = tensors(plain(kind), [3, 2, 2, 4, 4], DType::F32);
    let weights = RecurrentWeights { weight_ih: &unprojected[1], weight_hh: &unprojected[2], ..weights };
    let x = good[0].to_dtype(DType::F64);
    let integers = good[0].to_dtype(DType::I32);
    let call = |x: &Tensor, weights, options| match kind {
        Kind::Gru => ops::gru(x, weights, None, options).map(|_| ()),
        Kind::Lstm => ops::lstm(x, weights, None, options).map(|_| ()),
        _ => ops::rnn(x, weights, None, RnnNonlinearity::Tanh, options).map(|_| ()),
    };
    let plainly = |x: &Tensor| call(x, weights, RecurrenceOptions::default());
    for rejected in [call(&good[0], weights, options), plainly(&x), plainly(&integers)] {
        holds &= matches!(rejected, Err(Error::DTypeMismatch { .. }));
    }
    holds &= plainly(&good[0]).is_ok();
    if kind != Kind::Lstm {
        let projected = RecurrentWeights { weight_hr: Some(&unprojected[2]), ..weights };
        holds &= argument_rejected(call(&good[0], projected, RecurrenceOptions::default()))?;
    }
    Ok(holds)
}

/// Checks that half precision is rounded once, at the end.
fn halves(kind: Kind) -> Result<bool> {
    let narrow = tensors(plain(kind), [9, 2, 3, 4, 4], DType::BF16);
    let wide: Vec<Tensor> = narrow.iter().map(|t| t.to_dtype(DType::F32)).collect();
    let (narrow, wide) = (layer(plain(kind), &narrow)?, layer(plain(kind), &wide)?);
    Ok(narrow.iter().zip(&wide).all(|(a, b)| a.to_vec::<bf16>() == b.to_dtype(DType::BF16).to_vec::<bf16>()))
}

/// Compares the gradients of the kernel with those of the definition for an input with a NaN. A differentiable gradient
/// uses the definition.
fn nan_gradients(kind: Kind) -> Result<bool> {
    use pellucid_tensor::{GradOptions, grad};
    let mut x = tensors(plain(kind), [2, 3, 2, 4, 4], DType::F64);
    let mut values = x[0].to_vec::<f64>();
    values[0] = f64::NAN;
    x[0] = Tensor::new(values, x[0].shape());
    let x: Vec<Tensor> = x.iter().map(|t| t.detach().requires_grad_(true)).collect();
    let inputs: Vec<&Tensor> = x.iter().collect();
    let outputs = layer(plain(kind), &x)?;
    let gradients = |create_graph| {
        let grad_outputs = outputs.iter().map(|y| Some(y.ones_like())).collect();
        let options = GradOptions { grad_outputs, create_graph, retain_graph: true, ..GradOptions::default() };
        let gradients = grad(&outputs.iter().collect::<Vec<_>>(), &inputs, options)?;
        Ok(gradients.iter().flat_map(|g| g.to_vec::<f64>()).collect::<Vec<f64>>())
    };
    let (kernel, definition): (Vec<f64>, Vec<f64>) = (gradients(false)?, gradients(true)?);
    let agree = |(a, b): (&f64, &f64)| (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-12 * b.abs().max(1.0);
    Ok(kernel.iter().zip(&definition).all(agree))
}

/// Compares the gradients of the kernel with the definition, which a differentiable gradient uses.
fn second_order_gradients(kind: Kind) -> Result<bool> {
    use pellucid_tensor::{GradOptions, grad};
    for way in [plain(kind), LayerConfig { reverse: true, lengths: true, projected: kind == Kind::Lstm, ..plain(kind) }]
    {
        let x = tensors(way, [5, 3, 2, 4, if way.projected { 3 } else { 4 }], DType::F64);
        let floats = x.len() - usize::from(way.lengths);
        let x: Vec<Tensor> = x.iter().enumerate().map(|(i, t)| t.detach().requires_grad_(i < floats)).collect();
        let inputs: Vec<&Tensor> = x[..floats].iter().collect();
        let outputs = layer(way, &x)?;
        let weights: Vec<Tensor> =
            outputs.iter().enumerate().map(|(k, y)| wave(y.shape(), 7 * k, DType::F64).requires_grad_(true)).collect();
        let options = GradOptions {
            grad_outputs: weights.iter().cloned().map(Some).collect(),
            create_graph: true,
            ..GradOptions::default()
        };
        let first = grad(&outputs.iter().collect::<Vec<_>>(), &inputs, options)?;
        // Σ v·∂(Σ w·y)/∂x is linear in w, so its gradient with respect to w, times w, is the function itself.
        let vectors: Vec<Tensor> =
            first.iter().enumerate().map(|(k, g)| wave(g.shape(), 3 * k + 1, DType::F64)).collect();
        let total = first.iter().zip(&vectors).map(|(g, v)| (g * v).sum(..)).reduce(|a, b| a + b).expect("inputs");
        let by_weights = grad(&[&total], &weights.iter().collect::<Vec<_>>(), GradOptions::default())?;
        let again: f64 = by_weights.iter().zip(&weights).map(|(g, w)| (g * w).sum(..).item::<f64>()).sum();
        if (again - total.item::<f64>()).abs() > 1e-10 * again.abs().max(1.0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks forward and backward of a captured step that is launched with other inputs.
fn captured(kind: Kind) -> Result<bool> {
    let way = LayerConfig { lengths: true, ..plain(kind) };
    let sizes = [4, 3, 2, 5, 5];
    let x: Vec<Tensor> = tensors(way, sizes, DType::F32);
    let weight = x[2].detach().requires_grad_(true);
    let step = |x0: &Tensor| {
        weight.zero_grad();
        let mut all = x.clone();
        (all[0], all[2]) = (x0.clone(), weight.clone());
        let outputs = layer(way, &all).expect("the tensors must form a valid layer");
        outputs.iter().map(|y| y.sum(..)).reduce(|a, b| a + b).expect("a layer must have outputs").backward();
        (outputs[0].detach(), weight.grad().expect("the tensor must have a gradient"))
    };
    let other = &x[0] * 0.5;
    let (y, gradient) = step(&other);
    weight.zero_grad();
    let mut replay = capture(|inputs: &[Tensor]| step(&inputs[0]), &[&x[0]])?;
    replay.launch(&[&x[0]])?;
    let found = replay.launch(&[&other])?;
    Ok(found.to_vec::<f32>(0) == y.to_vec::<f32>() && found.to_vec::<f32>(1) == gradient.to_vec::<f32>())
}
