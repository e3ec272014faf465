//! Every row of the operation table with tensors of invalid or unsuitable shapes and dtypes.

use super::Case;
use crate::table::{Row, operands, rows};
use pellucid_tensor::{DType, Result, Tensor};
use std::rc::Rc;

/// Operations that run a user formula; their errors name the formula.
const OF_THE_USER: [&str; 6] = ["map", "map_all", "map_rows", "map_rows_all", "update", "update_many"];

/// Operations whose rows compute their inputs by other operations: symmetric matrices, regular matrices, signs.
const COMPOSED: [&str; 32] = [
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "cosine_embedding_loss",
    "cholesky",
    "cholesky_ex",
    "cholesky_inverse",
    "cholesky_solve",
    "eigh",
    "eigvalsh",
    "matrix_sqrth",
    "polar",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "lu_unpack",
    "ldl_factor",
    "ldl_factor_ex",
    "ldl_solve",
    "solve_triangular",
    "det",
    "slogdet",
    "logdet",
    "inv",
    "inv_ex",
    "solve",
    "solve_ex",
    "pinv",
    "matrix_rank",
    "cond",
    "tensorinv",
    "tensorsolve",
];

/// The number of tested cases of a row.
const CASES: usize = 3;

const HUGE: usize = 1 << 40;

/// Computes the replacement of an input.
type Other = Rc<dyn Fn(&Tensor) -> Result<Tensor>>;

/// Broadcasts one element to a shape without allocating memory.
fn stretched(x: &Tensor, shape: Vec<usize>) -> Result<Tensor> {
    let one = if x.size() > 0 { x.ravel().narrow(0, 0, 1) } else { Tensor::zeros([1], x.dtype()) };
    pellucid_tensor::ops::broadcast_to(&one.reshape(vec![1; x.rank()].as_slice()), shape)
}

/// Returns replacements of huge or empty shapes for an input of rank `rank`.
fn absurd(rank: usize) -> Vec<(String, Other)> {
    let mut others: Vec<(String, Other)> = Vec::new();
    for axis in 0..rank {
        let long = move |x: &Tensor| stretched(x, x.shape().with_axis(axis, HUGE).to_vec());
        others.push((format!("2^40 along {axis}"), Rc::new(long)));
        let nothing = move |x: &Tensor| {
            let rest = (axis + 1) % rank;
            let shape = x.shape().with_axis(axis, HUGE).with_axis(rest, 0);
            pellucid_tensor::ops::zeros(shape, x.dtype())
        };
        if rank > 1 {
            others.push((format!("2^40 along {axis} without elements"), Rc::new(nothing)));
        }
    }
    let wide = move |x: &Tensor| {
        let rest = x.shape().iter().map(|&len| len.max(1)).product::<usize>();
        stretched(x, (0..rank).map(|k| if k == 0 { (1 << 58) / rest } else { x.shape()[k].max(1) }).collect())
    };
    if rank > 1 {
        others.push(("2^58 elements".into(), Rc::new(wide)));
    }
    let deep = |x: &Tensor| {
        let shape: Vec<usize> = std::iter::repeat_n(1, 70).chain(x.shape().iter().copied()).collect();
        pellucid_tensor::ops::reshape(x, shape.as_slice())
    };
    others.push(("70 axes in front".into(), Rc::new(deep)));
    others
}

/// Returns replacements of ordinary shapes that few operations accept.
fn wrong() -> Vec<(String, Other)> {
    let mut others: Vec<(String, Other)> = Vec::new();
    for shape in [vec![], vec![5], vec![0], vec![3, 0], vec![4, 1, 3], vec![7, 2, 3, 4], vec![2, 1, 1, 1, 1, 1, 5]] {
        let label = format!("{shape:?}");
        others.push((label, Rc::new(move |x: &Tensor| Ok(Tensor::ones(shape.as_slice(), x.dtype())))));
    }
    for dtype in [DType::Bool, DType::I64, DType::U8, DType::F16, DType::F64] {
        others.push((format!("{dtype}"), Rc::new(move |x: &Tensor| pellucid_tensor::ops::to_dtype(x, dtype))));
    }
    others
}

pub fn all() -> Vec<Case> {
    rows::all().into_iter().flat_map(of_row).collect()
}

fn of_row(row: Row) -> Vec<Case> {
    let (op, mut calls) = (row.name, Vec::new());
    let any_name = OF_THE_USER.contains(&op) || COMPOSED.contains(&op);
    for case in row.cases.into_iter().take(CASES).map(Rc::new) {
        let (_, inputs) = operands(op, &case, &[DType::F32]);
        let mut add = |label: String, inputs: Vec<Tensor>, other: Other, places: Vec<usize>| {
            let case = case.clone();
            let call = move || {
                let mut inputs = inputs.clone();
                for &place in &places {
                    inputs[place] = other(&inputs[place])?;
                }
                (case.call)(&inputs).map(drop)
            };
            calls.push(Case { op, label, call: Box::new(call), any_name, is_row: true });
        };
        let ranks: Vec<usize> = inputs.iter().map(|x| x.rank()).collect();
        for (place, &rank) in ranks.iter().enumerate() {
            for (label, other) in absurd(rank).into_iter().chain(wrong()) {
                let label = format!("{}, input {place}: {label}", case.label);
                add(label, inputs.clone(), other, vec![place]);
            }
        }
        if ranks.len() > 1 && ranks.iter().all(|&rank| rank == ranks[0]) {
            for (label, other) in absurd(ranks[0]).into_iter().chain(wrong()) {
                add(format!("{}, all inputs: {label}", case.label), inputs.clone(), other, (0..ranks.len()).collect());
            }
        }
    }
    calls
}
