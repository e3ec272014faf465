//! The data of a row of the table.

use super::nd::{Nd, zip};
use pellucid_tensor::{DType, Error, Result, Scalar, Tensor};
use std::ops::RangeInclusive;

/// An operation: its name in `ops`, and its test cases.
pub struct Row {
    pub name: &'static str,
    pub cases: Vec<Case>,
    /// The rule for the dtype of each output.
    pub rules: Vec<Rule>,
    pub gradient: Gradient,
    /// The tolerance, in units in the last place of numbers of magnitude `scale`.
    pub ulps: f64,
    pub scale: f64,
    /// True if NaN, ±∞ and ±0 are compared with the reference.
    pub special: bool,
    /// True if the sign of a zero in a result for special numbers counts.
    pub signed_zero: bool,
    /// True for a row of [`unary`] or [`binary`].
    pub elementwise: bool,
    /// The binary operation with a host number as its right operand, and as its left operand.
    pub scalar: Option<Scalars>,
    /// The reference for integers, if it differs from the reference for real numbers.
    pub integers: Option<fn(&[i64]) -> i64>,
    /// Checks in addition to the cases: labels and predicates.
    pub more: Vec<(&'static str, Statement)>,
}

/// One call of an operation.
pub struct Case {
    /// The name of the case. It also seeds the numbers of the inputs, so a new label gives new numbers.
    pub label: String,
    pub inputs: Vec<Input>,
    pub call: Call,
    pub reference: Reference,
    /// True if the case is run with every dtype, not only with floats.
    pub dtypes: bool,
    /// True if the case is too large for finite differences.
    pub values_only: bool,
    /// Replaces the `scale` of the row, if this case has larger intermediate values.
    pub scale: f64,
}

pub type Call = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>>;
pub type Statement = Box<dyn Fn() -> Result<bool>>;
pub type Scalars = (fn(&Tensor, Scalar) -> Result<Tensor>, fn(Scalar, &Tensor) -> Result<Tensor>);
pub type Reference = Box<dyn Fn(&[Nd]) -> Vec<Nd>>;

/// The dtype of an output as a function of the common dtype of the number inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Every dtype is preserved.
    Any,
    /// Every dtype is preserved, except that `bool` becomes `i64`.
    Numbers,
    /// Float dtypes are preserved; integers and `bool` become `f32`.
    Floats,
    /// Float dtypes are preserved; integers and `bool` become `i64`.
    Counts,
    /// The output always has this dtype.
    Always(DType),
    /// Float dtypes are errors; the others are preserved.
    Bits,
    /// Float dtypes are errors; integers are preserved, and `bool` becomes `i64`.
    Shifts,
    /// Float dtypes are preserved; other dtypes are errors.
    FloatsOnly,
    /// Dtypes are preserved; `bool` is an error.
    NoTruth,
    /// `f32` and `f64` are preserved; other dtypes are errors.
    Precise,
    /// The output has this dtype for `f32` and `f64`; other dtypes are errors.
    OfPrecise(DType),
}

impl Rule {
    /// Returns the dtype of the output, or `None` if the call is an error.
    pub fn result(self, dtype: DType) -> Option<DType> {
        let counted = if dtype == DType::Bool { DType::I64 } else { dtype };
        let float = dtype.is_float();
        match self {
            Rule::Any => Some(dtype),
            Rule::Numbers => Some(counted),
            Rule::Floats => Some(if float { dtype } else { DType::F32 }),
            Rule::Counts => Some(if float { dtype } else { DType::I64 }),
            Rule::Always(fixed) => Some(fixed),
            Rule::Bits => (!float).then_some(dtype),
            Rule::Shifts => (!float).then_some(counted),
            Rule::FloatsOnly => float.then_some(dtype),
            Rule::NoTruth => (dtype != DType::Bool).then_some(dtype),
            Rule::Precise => matches!(dtype, DType::F32 | DType::F64).then_some(dtype),
            Rule::OfPrecise(fixed) => Rule::Precise.result(dtype).map(|_| fixed),
        }
    }
}

/// The kind of gradient of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gradient {
    /// Compared with central differences, in first and second order.
    Smooth,
    /// Compared with central differences, up to third order.
    Third,
    /// Zero: the operation is piecewise constant.
    Zero,
    /// The result is untracked.
    Untracked,
}

/// An input: the shape and the range of its values.
#[derive(Clone)]
pub struct Input {
    pub shape: Vec<usize>,
    pub kind: Kind,
}

#[derive(Clone)]
pub enum Kind {
    /// Numbers of any dtype in a range, except near kinks and poles.
    Number { range: RangeInclusive<f64>, away: &'static [f64] },
    /// `i64` positions in `-len..len`.
    Index { len: usize },
    /// Class indices in `0..len`.
    Class { len: usize },
    /// Booleans.
    Mask,
}

impl Input {
    pub fn is_number(&self) -> bool {
        matches!(self.kind, Kind::Number { .. })
    }

    /// Restricts the numbers to a range.
    pub fn within(mut self, range: RangeInclusive<f64>) -> Input {
        let away = match self.kind {
            Kind::Number { away, .. } => away,
            _ => &[],
        };
        self.kind = Kind::Number { range, away };
        self
    }
}

/// Returns an input of numbers from −2 to 2.
pub fn real<const N: usize>(shape: [usize; N]) -> Input {
    Input { shape: shape.into(), kind: Kind::Number { range: -2.0..=2.0, away: &[] } }
}

/// Returns an input of positions on an axis of length `len`, some counted from its end.
pub fn index<const N: usize>(shape: [usize; N], len: usize) -> Input {
    Input { shape: shape.into(), kind: Kind::Index { len } }
}

/// Returns an input of class indices below `len`.
pub fn class<const N: usize>(shape: [usize; N], len: usize) -> Input {
    Input { shape: shape.into(), kind: Kind::Class { len } }
}

/// Returns an input of booleans.
pub fn mask<const N: usize>(shape: [usize; N]) -> Input {
    Input { shape: shape.into(), kind: Kind::Mask }
}

/// Returns the only result of an operation as the list that the call of a row returns.
pub fn one(result: Result<Tensor>) -> Result<Vec<Tensor>> {
    result.map(|t| vec![t])
}

/// Returns true if the result is a shape error.
pub fn shape_rejected<T>(result: Result<T>) -> Result<bool> {
    Ok(matches!(result, Err(Error::ShapeMismatch { .. })))
}

/// Returns true if the result is an argument error.
pub fn argument_rejected<T>(result: Result<T>) -> Result<bool> {
    Ok(matches!(result, Err(Error::InvalidArgument { .. })))
}

/// Returns true if the result is an error of an invalid axis.
pub fn axis_rejected<T>(result: Result<T>) -> Result<bool> {
    Ok(matches!(result, Err(Error::AxisOutOfRange { .. })))
}

impl Row {
    pub fn new(name: &'static str) -> Row {
        Row {
            name,
            cases: vec![],
            rules: vec![Rule::Any],
            gradient: Gradient::Smooth,
            ulps: 8.0,
            scale: 0.1,
            special: true,
            signed_zero: true,
            elementwise: false,
            scalar: None,
            integers: None,
            more: vec![],
        }
    }

    /// Adds a case with one output that is run with every dtype.
    pub fn case(
        self,
        label: impl Into<String>,
        inputs: impl IntoIterator<Item = Input>,
        call: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
        reference: impl Fn(&[Nd]) -> Nd + 'static,
    ) -> Row {
        self.outputs(label, inputs, move |x| one(call(x)), move |x| vec![reference(x)])
    }

    /// Adds a case with several outputs.
    pub fn outputs(
        mut self,
        label: impl Into<String>,
        inputs: impl IntoIterator<Item = Input>,
        call: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'static,
        reference: impl Fn(&[Nd]) -> Vec<Nd> + 'static,
    ) -> Row {
        self.cases.push(Case {
            label: label.into(),
            inputs: inputs.into_iter().collect(),
            call: Box::new(call),
            reference: Box::new(reference),
            dtypes: true,
            values_only: false,
            scale: 0.0,
        });
        self
    }

    pub fn rule(mut self, rule: Rule) -> Row {
        self.rules = vec![rule];
        self
    }

    pub fn rules(mut self, rules: impl Into<Vec<Rule>>) -> Row {
        self.rules = rules.into();
        self
    }

    pub fn gradient(mut self, gradient: Gradient) -> Row {
        self.gradient = gradient;
        self
    }

    pub fn untracked(self) -> Row {
        self.gradient(Gradient::Untracked)
    }

    pub fn ulps(mut self, ulps: f64) -> Row {
        self.ulps = ulps;
        self
    }

    /// Sets the magnitude of intermediate values, whose rounding error the result contains.
    pub fn scale(mut self, scale: f64) -> Row {
        self.scale = scale;
        self
    }

    pub fn integers(mut self, value: fn(&[i64]) -> i64) -> Row {
        self.integers = Some(value);
        self
    }

    /// Turns off the comparison for NaN and infinities.
    pub fn ordinary(mut self) -> Row {
        self.special = false;
        self
    }

    /// Ignores the sign of zeros.
    pub fn any_zero(mut self) -> Row {
        self.signed_zero = false;
        self
    }

    pub fn is_elementwise(&self) -> bool {
        self.elementwise
    }

    fn elementwise(mut self) -> Row {
        self.elementwise = true;
        self
    }

    /// Adds a check in addition to the cases: a property of the operation, or the name of a test case, and a predicate.
    pub fn check(mut self, statement: &'static str, holds: impl Fn() -> Result<bool> + 'static) -> Row {
        self.more.push((statement, Box::new(holds)));
        self
    }

    /// Restricts the numbers of every case to a range.
    pub fn within(mut self, range: RangeInclusive<f64>) -> Row {
        for input in self.cases.iter_mut().flat_map(|c| &mut c.inputs).filter(|i| i.is_number()) {
            *input = input.clone().within(range.clone());
        }
        self
    }

    /// Excludes neighbourhoods of these points from the numbers of every case.
    pub fn away(mut self, points: &'static [f64]) -> Row {
        for input in self.cases.iter_mut().flat_map(|c| &mut c.inputs) {
            if let Kind::Number { away, .. } = &mut input.kind {
                *away = points;
            }
        }
        self
    }

    /// Restricts the numbers of input `at` of every case to a range.
    pub fn input_within(mut self, at: usize, range: RangeInclusive<f64>) -> Row {
        for case in &mut self.cases {
            case.inputs[at] = case.inputs[at].clone().within(range.clone());
        }
        self
    }

    /// Marks the last case as too large for finite differences: only values are compared.
    pub fn long(mut self) -> Row {
        let case = self.cases.last_mut().expect("the row must have a case");
        (case.dtypes, case.values_only) = (false, true);
        self
    }

    /// Sets the magnitude of the intermediate values of the last case.
    pub fn case_scale(mut self, scale: f64) -> Row {
        self.cases.last_mut().expect("the row must have a case").scale = scale;
        self
    }

    /// Removes the case with this label.
    pub fn without(mut self, label: &str) -> Row {
        self.cases.retain(|c| c.label != label);
        self
    }

    /// Runs the last case with floats only.
    pub fn floats_only(mut self) -> Row {
        self.cases.last_mut().expect("the row must have a case").dtypes = false;
        self
    }
}

/// Returns a row of an elementwise operation of one tensor, with the same shapes for all operations.
pub fn unary(
    name: &'static str,
    call: impl Fn(&Tensor) -> Result<Tensor> + Copy + 'static,
    reference: impl Fn(f64) -> f64 + Copy + 'static,
) -> Row {
    let shapes: [&[usize]; 7] = [&[2, 3], &[1500], &[], &[1], &[0], &[2, 0, 3], &[1, 2, 1, 2, 1, 1, 2]];
    shapes.iter().fold(Row::new(name).elementwise(), |row, shape| {
        let input = Input { shape: shape.to_vec(), ..real([]) };
        let row = row.case(format!("{shape:?}"), [input], move |x| call(&x[0]), move |x| x[0].map(reference));
        match shape {
            [2, 3] => row,
            [1500] => row.long(),
            _ => row.floats_only(),
        }
    })
}

/// Returns a row of an elementwise operation of two tensors, with every kind of broadcasting.
pub fn binary(
    name: &'static str,
    call: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Copy + 'static,
    scalar: Scalars,
    reference: impl Fn(f64, f64) -> f64 + Copy + 'static,
) -> Row {
    let shapes: [(&[usize], &[usize]); 14] = [
        (&[2, 3], &[2, 3]),
        (&[1500], &[1500]),
        (&[40, 1], &[1, 37]),
        (&[1, 2, 1, 2, 1, 1, 2], &[2, 1, 1, 1, 1]),
        (&[2, 3], &[3]),
        (&[1, 3], &[2, 1]),
        (&[2, 1, 2], &[2, 3, 2]),
        (&[], &[2, 2]),
        (&[3], &[]),
        (&[], &[]),
        (&[1], &[3, 1, 2]),
        (&[0, 3], &[3]),
        (&[2, 1], &[1, 0]),
        (&[0], &[]),
    ];
    let row = Row { scalar: Some(scalar), ..Row::new(name) }.elementwise();
    shapes.iter().fold(row, |row, (a, b)| {
        let inputs = [a, b].map(|shape| Input { shape: shape.to_vec(), ..real([]) });
        let value = move |x: &[Nd]| zip(x, |v| reference(v[0], v[1]));
        let row = row.case(format!("{a:?} with {b:?}"), inputs, move |x| call(&x[0], &x[1]), value);
        match (*a, *b) {
            ([2, 3], [2, 3]) => row,
            ([1500], _) | ([40, 1], _) => row.long(),
            _ => row.floats_only(),
        }
    })
}
