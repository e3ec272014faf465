//! A sample as a call: arguments by position or keyword, converted to the types that bindings use.

use crate::index::{Argument, Arguments};
use pellucid::ops::{Axes, Reduction, TensorOrScalar, over};
use pellucid::{DType, Error, IndexItem, Result, Scalar, Tensor, slice};
use std::collections::BTreeMap;

/// The position of a keyword-only argument.
pub(crate) const KEY: usize = usize::MAX;

/// A call of an operation. The argument at position 0 is the input.
pub(crate) struct Call<'a> {
    pub(crate) arguments: &'a Arguments,
    /// The tensors, by the paths that the arguments name.
    pub(crate) tensors: &'a BTreeMap<String, Tensor>,
    /// The dtype of the run. It replaces `float64` in the arguments if the samples were converted.
    pub(crate) float: DType,
}

impl Call<'_> {
    /// Returns the argument at position `at` or with this keyword, or `None` if it is absent.
    pub(crate) fn get(&self, at: usize, name: &str) -> Option<&Argument> {
        let Arguments { positional, keywords } = self.arguments;
        positional.get(at).or_else(|| keywords.get(name)).filter(|argument| **argument != Argument::None)
    }

    /// Returns the number of positional arguments.
    pub(crate) fn len(&self) -> usize {
        self.arguments.positional.len()
    }

    /// Returns the input.
    pub(crate) fn x(&self) -> Result<&Tensor> {
        self.tensor(0, "input")
    }

    /// Returns the second argument of a binary operation.
    pub(crate) fn y(&self) -> Result<&Tensor> {
        self.tensor(1, "other")
    }

    /// Returns the tensor argument at this position or with this name. An argument of another type is rejected.
    pub(crate) fn tensor(&self, at: usize, name: &str) -> Result<&Tensor> {
        self.optional(at, name).ok_or_else(|| Error::invalid("call", format!("{name} is not a tensor")))
    }

    /// Returns the argument at this position or with this name, or `None` if it is missing or not a tensor.
    pub(crate) fn optional(&self, at: usize, name: &str) -> Option<&Tensor> {
        match self.get(at, name)? {
            Argument::Tensor(path) => self.tensors.get(path),
            _ => None,
        }
    }

    /// Returns all tensor arguments starting at position `at`, or the elements of the list at that position.
    pub(crate) fn tensors(&self, at: usize) -> Result<Vec<&Tensor>> {
        let arguments = match self.arguments.positional.get(at) {
            Some(Argument::List(items)) => items,
            _ => self.arguments.positional.get(at..).unwrap_or(&[]),
        };
        let tensor = |argument: &Argument| match argument {
            Argument::Tensor(path) => self.tensors.get(path),
            _ => None,
        };
        arguments
            .iter()
            .map(|a| tensor(a).ok_or_else(|| Error::invalid("call", "the argument must be a list of tensors")))
            .collect()
    }

    /// Returns a tensor or a number.
    pub(crate) fn operand(&self, at: usize, name: &str) -> Result<TensorOrScalar<'_>> {
        match self.get(at, name) {
            Some(Argument::Int(number)) => Ok((*number).into()),
            Some(Argument::Float(number)) => Ok((*number).into()),
            Some(Argument::Bool(flag)) => Ok((*flag).into()),
            _ => self.tensor(at, name).map(TensorOrScalar::from),
        }
    }

    pub(crate) fn int(&self, at: usize, name: &str) -> Option<isize> {
        match self.get(at, name)? {
            Argument::Int(number) => Some(*number as isize),
            Argument::Bool(flag) => Some(isize::from(*flag)),
            Argument::Tensor(path) => self.tensors.get(path)?.try_item::<i64>().ok().map(|number| number as isize),
            _ => None,
        }
    }

    /// Returns a count, or another nonnegative integer.
    pub(crate) fn count(&self, at: usize, name: &str) -> Result<usize> {
        let number = self.int(at, name).ok_or_else(|| Error::invalid("call", format!("{name} is not an integer")))?;
        usize::try_from(number).map_err(|_| Error::invalid("call", format!("{name} is negative")))
    }

    pub(crate) fn float(&self, at: usize, name: &str) -> Option<f64> {
        match self.get(at, name)? {
            Argument::Float(number) => Some(*number),
            Argument::Tensor(path) => self.tensors.get(path)?.try_item::<f64>().ok(),
            _ => self.int(at, name).map(|number| number as f64),
        }
    }

    /// Returns a number as the scalar kind in which it is written.
    pub(crate) fn scalar(&self, at: usize, name: &str) -> Option<Scalar> {
        match self.get(at, name)? {
            Argument::Int(number) => Some((*number).into()),
            Argument::Float(number) => Some((*number).into()),
            Argument::Bool(flag) => Some((*flag).into()),
            _ => None,
        }
    }

    /// Returns a list of numbers; a single number is a list of one.
    pub(crate) fn floats(&self, at: usize, name: &str) -> Option<Vec<f64>> {
        let number = |argument: &Argument| match argument {
            Argument::Float(number) => Some(*number),
            Argument::Int(number) => Some(*number as f64),
            _ => None,
        };
        match self.get(at, name)? {
            Argument::List(items) => items.iter().map(number).collect(),
            single => Some(vec![number(single)?]),
        }
    }

    /// Returns a list of optional counts; a single count is a list of one.
    pub(crate) fn optional_counts(&self, at: usize, name: &str) -> Result<Vec<Option<usize>>> {
        let no_count = || Error::invalid("call", format!("{name} is not a list of counts"));
        let count = |argument: &Argument| match argument {
            Argument::None => Ok(None),
            other => integer(other).and_then(|n| usize::try_from(n).ok()).map(Some).ok_or_else(no_count),
        };
        match self.get(at, name) {
            Some(Argument::List(items)) => items.iter().map(count).collect(),
            Some(single) => Ok(vec![count(single)?]),
            None => Err(no_count()),
        }
    }

    pub(crate) fn flag(&self, at: usize, name: &str) -> bool {
        matches!(self.get(at, name), Some(Argument::Bool(true)))
    }

    pub(crate) fn text(&self, at: usize, name: &str) -> Option<&str> {
        match self.get(at, name)? {
            Argument::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns a list of integers; a single integer is a list of one.
    pub(crate) fn ints(&self, at: usize, name: &str) -> Option<Vec<isize>> {
        match self.get(at, name)? {
            Argument::List(items) => items.iter().map(integer).collect(),
            Argument::Tensor(path) => {
                let numbers = self.tensors.get(path)?.try_to_vec::<i64>().ok()?;
                Some(numbers.into_iter().map(|number| number as isize).collect())
            }
            single => Some(vec![integer(single)?]),
        }
    }

    /// Returns the integer arguments (usually lengths) starting at position `at`, or the elements of the list at that
    /// position.
    pub(crate) fn lengths(&self, at: usize, name: &str) -> Result<Vec<isize>> {
        let spread = || self.arguments.positional.get(at..)?.iter().map(integer).collect();
        self.ints(at, name)
            .filter(|_| self.len() <= at + 1 || matches!(self.get(at, name), Some(Argument::List(_))))
            .or_else(spread)
            .ok_or_else(|| Error::invalid("call", format!("{name} is not a list of integers")))
    }

    /// Returns the axes of a reduction; the default is all axes. The test data uses axes 0 and −1 of a 0-d tensor,
    /// which Pellucid rejects; these axes are dropped.
    pub(crate) fn axes(&self, at: usize, name: &str) -> Axes {
        let mut axes = self.ints(at, name).unwrap_or_default();
        if self.x().is_ok_and(|x| x.rank() == 0) {
            axes.retain(|axis| !matches!(axis, 0 | -1));
        }
        if axes.is_empty() { over(..) } else { axes.into() }
    }

    /// Returns the axes of a reduction with `keepdim`.
    pub(crate) fn reduced(&self, at: usize, name: &str) -> Axes {
        let axes = self.axes(at, name);
        if self.flag(at + 1, "keepdim") { axes.keepdims() } else { axes }
    }

    /// Returns the dtype that an argument names.
    pub(crate) fn dtype(&self, at: usize, name: &str) -> Option<DType> {
        let Argument::DType(dtype) = self.get(at, name)? else { return None };
        Some(match dtype.as_str() {
            "float64" => self.float,
            "float32" => DType::F32,
            "float16" => DType::F16,
            "bfloat16" => DType::BF16,
            "int64" => DType::I64,
            "int32" => DType::I32,
            "int16" => DType::I16,
            "int8" => DType::I8,
            "uint8" => DType::U8,
            "bool" => DType::Bool,
            _ => return None,
        })
    }

    /// Returns the reduction of a loss.
    pub(crate) fn reduction(&self) -> Result<Reduction> {
        match self.text(KEY, "reduction") {
            None | Some("mean") => Ok(Reduction::Mean),
            Some("sum") => Ok(Reduction::Sum),
            Some("none") => Ok(Reduction::None),
            Some(other) => Err(Error::invalid("call", format!("unknown reduction {other}"))),
        }
    }

    /// Returns an index expression.
    pub(crate) fn index(&self, at: usize) -> Result<Vec<IndexItem>> {
        match self.get(at, "index") {
            // A list of numbers alone is one index tensor; any other list has one entry for each axis.
            Some(list @ Argument::List(items)) if items.iter().all(|i| integer(i).is_some()) => {
                Ok(vec![self.part(list)?])
            }
            Some(Argument::List(items)) => items.iter().map(|item| self.part(item)).collect(),
            Some(single) => Ok(vec![self.part(single)?]),
            None => Err(Error::invalid("call", "the call has no index")),
        }
    }

    fn part(&self, argument: &Argument) -> Result<IndexItem> {
        match argument {
            Argument::Int(at) => Ok(IndexItem::At(*at as isize)),
            Argument::Slice([start, stop, step]) => {
                let bound = |b: &Option<i64>| b.map(|b| b as isize);
                Ok(slice(bound(start), bound(stop), step.unwrap_or(1) as isize).into())
            }
            Argument::Ellipsis => Ok(IndexItem::Ellipsis),
            Argument::None => Ok(IndexItem::NewAxis),
            Argument::Tensor(path) => Ok(IndexItem::Tensor(self.tensors[path].clone())),
            Argument::List(items) => {
                let numbers: Option<Vec<i64>> = items.iter().map(|i| integer(i).map(|i| i as i64)).collect();
                let numbers = numbers.ok_or_else(|| Error::invalid("call", "an index list must contain integers"))?;
                Ok(IndexItem::Tensor(Tensor::new(&numbers, [numbers.len()])))
            }
            other => Err(Error::invalid("call", format!("the argument {other:?} is not an index"))),
        }
    }
}

fn integer(argument: &Argument) -> Option<isize> {
    match argument {
        Argument::Int(number) => Some(*number as isize),
        _ => None,
    }
}
