//! Computations around a call that the test data specifies: a preparation of the input, so that perturbations preserve
//! its structure, and a post-processing of the outputs that makes them unique.

use crate::index::Sample;
use pellucid::{Error, Result, Tensor, ops};
use std::collections::BTreeMap;

/// Returns the tensors of a call. If the sample names a preparation (such as a factorization), it is applied to the
/// tensor `input` first.
pub(crate) fn prepare(sample: &Sample, tensors: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>> {
    let mut prepared = tensors.clone();
    let Some(preparation) = &sample.preparation else { return Ok(prepared) };
    let x = &tensors["input"];
    let upper = sample.arguments.keywords.get("upper") == Some(&crate::index::Argument::Bool(true));
    let x = match preparation.as_str() {
        "hermitian_input" => ops::add(x, ops::transpose(x, -2, -1)?)?,
        "triangular_input_real_positive_diagonal" => unit_triangle(x, upper)?,
        "ctc_loss" => ops::log_softmax(x, 2)?,
        other => return Err(Error::invalid("prepare", format!("the preparation of the input `{other}` is not known"))),
    };
    prepared.insert("input".to_string(), x);
    Ok(prepared)
}

/// Returns one triangle of a matrix, with ones on its diagonal.
fn unit_triangle(x: &Tensor, upper: bool) -> Result<Tensor> {
    let n = x.shape()[x.rank() - 1] as i64;
    let (rows, columns) = (Tensor::arange(0, n, 1), Tensor::arange(0, n, 1));
    let rows = ops::unsqueeze(&rows, 1)?;
    let strict = if upper { ops::lt(&rows, &columns)? } else { ops::gt(&rows, &columns)? };
    let diagonal = ops::to_dtype(&ops::eq(&rows, &columns)?, x.dtype())?;
    ops::add(ops::where_(&strict, x, 0.0)?, &diagonal)
}

/// Applies the post-processing that the sample names. The test data contains and differentiates the results of the
/// post-processing.
pub(crate) fn post(sample: &Sample, outputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let first = |x: &Tensor, k: usize| ops::narrow(x, -1, 0, k);
    let smaller = |u: &Tensor, vh: &Tensor| u.shape()[u.rank() - 1].min(vh.shape()[vh.rank() - 1]);
    match (sample.post.as_deref(), &outputs[..]) {
        (None, _) => Ok(outputs),
        (Some("abs(U[..., :k])"), [u, _, vh]) => Ok(vec![ops::abs(&first(u, smaller(u, vh))?)?]),
        (Some("U[..., :k] @ Vh[..., :k, :], S"), [u, s, vh]) => {
            let k = smaller(u, vh);
            Ok(vec![ops::matmul(&first(u, k)?, &ops::narrow(vh, -2, 0, k)?)?, s.clone()])
        }
        (Some("eigenvalues, abs(eigenvectors)"), [values, vectors]) => Ok(vec![values.clone(), ops::abs(vectors)?]),
        (Some("L, U"), [_, l, u]) => Ok(vec![l.clone(), u.clone()]),
        (Some(other), _) => Err(Error::invalid(
            "post",
            format!("the post-processing `{other}` of {} outputs is not known", outputs.len()),
        )),
    }
}
