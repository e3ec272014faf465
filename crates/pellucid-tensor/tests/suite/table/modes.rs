//! Rows in deferred modes: `lazy`, `capture`, and a device that defers its kernels. Dtypes, bits and errors are equal
//! to eager mode.

use super::data::{operands, values};
use super::devices::toy;
use super::driver::Report;
use super::gradients::gradient_of;
use super::row::{Case, Gradient, Row, Rule, one};
use pellucid_tensor::{DType, Generator, Result, Shape, Tensor, capture_local, lazy, ops};

/// Operations that read values on the host to compute the shape of their result, so a captured step cannot contain
/// them.
const READS_VALUES: [&str; 23] = [
    "bincount",
    "chebyshev_t",
    "chebyshev_u",
    "chebyshev_v",
    "chebyshev_w",
    "flatnonzero",
    "hermite_h",
    "hermite_he",
    "intersect1d",
    "laguerre_l",
    "legendre_p",
    "masked_scatter",
    "masked_select",
    "nonzero",
    "setdiff1d",
    "setxor1d",
    "shifted_chebyshev_t",
    "shifted_chebyshev_u",
    "shifted_chebyshev_v",
    "shifted_chebyshev_w",
    "union1d",
    "unique",
    "unique_consecutive",
];

/// Dtypes of the first input and of the other inputs, of different kinds and widths.
const PAIRS: [[DType; 2]; 8] = [
    [DType::BF16, DType::I64],
    [DType::I64, DType::BF16],
    [DType::F32, DType::Bool],
    [DType::U8, DType::F16],
    [DType::F16, DType::BF16],
    [DType::F64, DType::F32],
    [DType::I8, DType::U8],
    [DType::Bool, DType::I16],
];

/// The results of a call, or its error.
#[derive(PartialEq)]
enum Outcome {
    Values(Vec<(DType, Shape, Vec<u64>)>),
    Rejected(String),
}

impl Outcome {
    /// Calls `compute` from the start of a random stream and reads its results.
    fn of(compute: impl FnOnce() -> Result<Vec<Tensor>>) -> Outcome {
        let _random = Generator::new(7).scope();
        match compute().and_then(|outputs| outputs.iter().map(read).collect()) {
            Ok(values) => Outcome::Values(values),
            Err(error) => Outcome::Rejected(error.to_string()),
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Rejected(error) => write!(f, "the error \"{error}\""),
            Outcome::Values(outputs) => outputs.iter().try_for_each(|(dtype, shape, bits)| {
                let few: Vec<f64> = bits.iter().take(8).map(|&b| f64::from_bits(b)).collect();
                write!(f, "{dtype} {shape} {few:?} ")
            }),
        }
    }
}

/// Reads a result; all NaNs are equal, because their payload is unspecified.
fn read(x: &Tensor) -> Result<(DType, Shape, Vec<u64>)> {
    x.try_to_bytes()?;
    let bits = |v: f64| if v.is_nan() { u64::MAX } else { v.to_bits() };
    Ok((x.dtype(), x.shape().clone(), values(x).into_iter().map(bits).collect()))
}

/// Compares the results of a case, and its gradients, in all modes: for every dtype, and for pairs of dtypes.
pub fn check_modes(row: &Row, case: &Case, report: &mut Report) -> Result<()> {
    let pairs = case.inputs.iter().filter(|i| i.is_number()).count() > 1;
    let choices: Vec<Vec<DType>> = match case.dtypes {
        false if case.values_only => vec![vec![any_dtype(row)]],
        false => [DType::F32, DType::BF16, DType::I64].map(|d| vec![d]).into(),
        true => {
            DType::ALL.map(|d| vec![d]).into_iter().chain(PAIRS.map(Vec::from).into_iter().filter(|_| pairs)).collect()
        }
    };
    for dtypes in choices {
        let (_, inputs) = operands(row.name, case, &dtypes);
        report.section(format!("{dtypes:?}"), |report| {
            compare(row, &inputs, &*case.call, report);
            Ok(())
        });
        let tracked =
            |t: &Tensor, i: usize| t.detach().requires_grad_(case.inputs[i].is_number() && t.dtype().is_float());
        let is_float = |t: &Tensor, i: usize| case.inputs[i].is_number() && t.dtype().is_float();
        let has_gradient = !case.values_only && row.gradient != Gradient::Untracked && dtypes != [DType::F64];
        if has_gradient && inputs.iter().enumerate().any(|(i, t)| is_float(t, i)) {
            let gradients = |x: &[Tensor]| {
                let leaves: Vec<Tensor> = x.iter().enumerate().map(|(i, t)| tracked(t, i)).collect();
                gradient_of(&*case.call, &leaves)
            };
            report.section(format!("gradients, {dtypes:?}"), |report| {
                compare(row, &inputs, &gradients, report);
                Ok(())
            });
        }
    }
    Ok(())
}

/// Returns a dtype that the operation accepts.
fn any_dtype(row: &Row) -> DType {
    let floats = row.rules.iter().all(|r: &Rule| r.result(DType::F32).is_some());
    if floats { DType::F32 } else { DType::I32 }
}

fn compare(row: &Row, inputs: &[Tensor], call: &dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>, report: &mut Report) {
    let eager = Outcome::of(|| call(inputs));
    let mut expect = |mode: &str, got: Outcome| {
        report.expect(got == eager, || format!("{mode} gives {got}, but eager mode {eager}"));
    };
    expect("lazy", Outcome::of(|| lazy(|| call(inputs).inspect(|outputs| outputs.iter().for_each(|y| drop(read(y)))))));
    let device = toy(1);
    expect(
        "a device that defers kernels",
        Outcome::of(|| {
            let moved: Vec<Tensor> = inputs.iter().map(|t| t.try_to(device)).collect::<Result<_>>()?;
            call(&moved)
        }),
    );
    for on in [None, Some(toy(0)), Some(toy(1))] {
        let captured = Outcome::of(|| {
            let inputs: Vec<Tensor> = match on {
                Some(device) => inputs.iter().map(|t| t.try_to(device)).collect::<Result<_>>()?,
                None => inputs.to_vec(),
            };
            let mut step = capture_local(call, &inputs.iter().collect::<Vec<_>>())?;
            let outputs = step.launch(&inputs.iter().collect::<Vec<_>>())?;
            (0..outputs.len()).map(|k| outputs.try_to_tensor(k)).collect()
        });
        let is_read = matches!(&captured, Outcome::Rejected(error) if error.contains("values do not exist"));
        if !(is_read && READS_VALUES.contains(&row.name)) {
            expect(&on.map_or("capture".into(), |device| format!("capture on {device}")), captured);
        }
    }
}

/// Conversions of floats to integers truncate and saturate, for every dtype and in every mode; NaN gives 0.
#[test]
fn floats_outside_of_an_integer_dtype_saturate() {
    let values = [
        300.7,
        -1.5,
        129.0,
        -129.0,
        40_000.0,
        -40_000.0,
        3e9,
        -3e9,
        1e19,
        -1e19,
        f64::INFINITY,
        -f64::INFINITY,
        f64::NAN,
    ];
    let mut report = Report::default();
    for from in DType::ALL.into_iter().filter(|d| d.is_float()) {
        let x = Tensor::from(values).to_dtype(from);
        let exact = x.to_vec::<f64>();
        for to in DType::ALL.into_iter().filter(|d| d.is_int() && *d != DType::Bool) {
            let expected: Vec<i64> = exact.iter().map(|&v| to.saturate(v as i64)).collect();
            let convert = |x: &[Tensor]| one(ops::to_dtype(&x[0], to));
            report.section(format!("{from} to {to}"), |report| {
                let got = convert(std::slice::from_ref(&x))?.remove(0).to_vec::<i64>();
                report.expect(got == expected, || format!("{got:?} for {exact:?}"));
                compare(&Row::new("to_dtype"), std::slice::from_ref(&x), &convert, report);
                Ok(())
            });
        }
    }
    report.finish();
}
