//! Matrix products.

use crate::table::nd::{Nd, broadcast_shape};
use crate::table::row::{Gradient::Third, Input, Row, Rule, real};
use pellucid_tensor::{DType, Error, Tensor, jvp, ops};

/// Computes A·B in three loops, with NumPy's rules for ranks.
fn product(a: &Nd, b: &Nd) -> Nd {
    let (row, column) = (a.shape.len() == 1, b.shape.len() == 1);
    let a = if row { a.reshape(&[1, a.shape[0]]) } else { a.clone() };
    let b = if column { b.reshape(&[b.shape[0], 1]) } else { b.clone() };
    let ((batch_a, ends_a), (batch_b, ends_b)) =
        (a.shape.split_at(a.shape.len() - 2), b.shape.split_at(b.shape.len() - 2));
    let batch = broadcast_shape(&[batch_a, batch_b]);
    let (m, k, n) = (ends_a[0], ends_a[1], ends_b[1]);
    let (wide_a, wide_b) = (a.broadcast(&[&batch[..], &[m, k]].concat()), b.broadcast(&[&batch[..], &[k, n]].concat()));
    let product = Nd::from_fn(&[&batch[..], &[m, n]].concat(), |ix| {
        let (batch, ends) = ix.split_at(ix.len() - 2);
        let term = |p| wide_a.at(&[batch, &[ends[0], p]].concat()) * wide_b.at(&[batch, &[p, ends[1]]].concat());
        (0..k).map(term).sum()
    });
    // The axis that was added to a vector is removed.
    let ends = [(!row).then_some(m), (!column).then_some(n)];
    let shape: Vec<usize> = batch.into_iter().chain(ends.into_iter().flatten()).collect();
    product.reshape(&shape)
}

fn with_bias(x: &[Nd]) -> Nd {
    let y = product(&x[0], &x[1].permute(&[1, 0]));
    match x.get(2) {
        None => y,
        Some(bias) => crate::table::nd::zip(&[y, bias.clone()], |v| v[0] + v[1]),
    }
}

pub(super) fn rows() -> Vec<Row> {
    let shapes: [(&[usize], &[usize]); 16] = [
        (&[2, 3], &[3, 2]),
        (&[3], &[3]),
        (&[3], &[3, 2]),
        (&[2, 3], &[3]),
        (&[2, 2, 3], &[3, 2]),
        (&[4, 1, 5], &[5, 4]),
        (&[2, 3], &[2, 3, 2]),
        (&[2, 2, 3], &[2, 3, 2]),
        (&[2, 1, 2, 3], &[3, 3, 1]),
        (&[3], &[2, 3, 2]),
        (&[2, 2, 3], &[3]),
        (&[1, 1], &[1, 1]),
        (&[19, 33], &[33, 17]),
        (&[2, 0], &[0, 3]),
        (&[0, 2], &[2, 3]),
        (&[0, 2, 3], &[3, 2]),
    ];
    let matmul = shapes.iter().enumerate().fold(Row::new("matmul"), |row, (i, (a, b))| {
        let inputs = [a, b].map(|shape| Input { shape: shape.to_vec(), ..real([]) });
        let row = row.case(format!("{a:?} by {b:?}"), inputs, |x| ops::matmul(&x[0], &x[1]), |x| product(&x[0], &x[1]));
        match (i, *a) {
            (0, _) => row,
            (_, [19, 33]) => row.long(),
            _ => row.floats_only(),
        }
    });
    let matmul = matmul
        .gradient(Third)
        .check("unequal inner lengths must be an error", || mismatch(ops::matmul(&zeros([2, 3]), &zeros([2, 3]))))
        .check("0-d operands must be an error", || mismatch(ops::matmul(&Tensor::from(1f32), &zeros([2]))))
        .check("batch axes that do not broadcast must be an error", || {
            mismatch(ops::matmul(&zeros([2, 2, 3]), &zeros([3, 3, 2])))
        });
    let matmul_integer = Row::new("matmul_integer")
        .untracked()
        .check("the sums must be exact for every dtype, shape and layout", move || {
            let dtypes = [(DType::I8, -128, 256), (DType::U8, 0, 256), (DType::I16, -32768, 65536)];
            for (i, (a, b)) in shapes.iter().enumerate() {
                let (dtype, least, count) = dtypes[i % 3];
                let integers = |shape: &[usize], seed: i64| {
                    let len = shape.iter().product::<usize>() as i64;
                    let values: Vec<i64> = (0..len).map(|i| least + (i * 7919 + seed).rem_euclid(count)).collect();
                    ops::to_dtype(&ops::reshape(&Tensor::from(values), shape)?, dtype)
                };
                let (x, y) = (integers(a, 3)?, integers(b, 5)?);
                // B is stored column by column.
                let turned = |x: &Tensor| if x.rank() < 2 { Ok(x.clone()) } else { ops::transpose(x, -1, -2) };
                let y = turned(&ops::contiguous(&turned(&y)?)?)?;
                let wide = ops::matmul(&ops::to_dtype(&x, DType::I64)?, &ops::to_dtype(&y, DType::I64)?)?;
                let z = ops::matmul_integer(&x, &y)?;
                if z.dtype() != DType::I32 || z.to_vec::<i32>() != ops::to_dtype(&wide, DType::I32)?.to_vec::<i32>() {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .check("u8 times i8 and i32 times i8 must be exact", || {
            let (x, y) = (Tensor::from([[255u8, 1], [0, 200]]), Tensor::from([[-128i8, 127], [1, -1]]));
            let wide = Tensor::from([[70000i32, 1]]);
            Ok(ops::matmul_integer(&x, &y)?.to_vec::<i32>() == [-32639, 32384, 200, -200]
                && ops::matmul_integer(&wide, &y)?.to_vec::<i32>() == [-8959999, 8889999])
        })
        .check("other dtypes must be errors", || {
            let rejected = |dtype| {
                let x = Tensor::zeros([2, 2], dtype);
                matches!(ops::matmul_integer(&x, &x), Err(Error::DTypeMismatch { op: "matmul_integer", .. }))
            };
            Ok([DType::F32, DType::I64, DType::Bool].into_iter().all(rejected))
        })
        .check("unequal inner lengths must be an error", || {
            let x = Tensor::zeros([2, 3], DType::I8);
            Ok(matches!(ops::matmul_integer(&x, &x), Err(Error::ShapeMismatch { op: "matmul_integer", .. })))
        });
    let dot = Row::new("dot")
        .case("vectors", [real([5]), real([5])], |x| ops::dot(&x[0], &x[1]), |x| product(&x[0], &x[1]))
        .case("nothing", [real([0]), real([0])], |x| ops::dot(&x[0], &x[1]), |x| product(&x[0], &x[1]))
        .floats_only()
        .check("matrices must be an error", || mismatch(ops::dot(&zeros([2, 2]), &zeros([2, 2]))));
    let columns = |x: &[Nd]| product(&x[0].reshape(&[x[0].data.len(), 1]), &x[1].reshape(&[1, x[1].data.len()]));
    let outer = Row::new("outer")
        .case("vectors", [real([2]), real([3])], |x| ops::outer(&x[0], &x[1]), columns)
        .case("nothing", [real([0]), real([3])], |x| ops::outer(&x[0], &x[1]), columns)
        .floats_only()
        .check("matrices must be an error", || mismatch(ops::outer(&zeros([2, 2]), &zeros([2]))));
    let linear = Row::new("linear")
        .case("plain", [real([2, 3]), real([2, 3])], |x| ops::linear(&x[0], &x[1], None), with_bias)
        .case("biased", [real([2, 3]), real([2, 3]), real([2])], |x| ops::linear(&x[0], &x[1], Some(&x[2])), with_bias)
        .floats_only()
        .case("a vector", [real([3]), real([2, 3]), real([2])], |x| ops::linear(&x[0], &x[1], Some(&x[2])), with_bias)
        .floats_only()
        .case(
            "a batch",
            [real([2, 2, 3]), real([2, 3]), real([2])],
            |x| ops::linear(&x[0], &x[1], Some(&x[2])),
            with_bias,
        )
        .floats_only()
        .case(
            "no sample",
            [real([0, 3]), real([2, 3]), real([2])],
            |x| ops::linear(&x[0], &x[1], Some(&x[2])),
            with_bias,
        )
        .floats_only()
        .case(
            "one output",
            [real([2, 3]), real([3]), real([])],
            |x| ops::linear(&x[0], &x[1], Some(&x[2])),
            |x| x[0].reduce(&[1], |row| row.iter().zip(&x[1].data).map(|(a, b)| a * b).sum::<f64>() + x[2].data[0]),
        )
        .floats_only()
        .check("a weight of rank 3 must be an error", || mismatch(ops::linear(&zeros([3]), &zeros([1, 3, 1]), None)))
        .check("the result must be bit-identical for a weight in any layout", || {
            let dense = numbers([4, 3], 0.3)?;
            let columns = ops::t(&ops::contiguous(&ops::t(&dense)?)?)?;
            let bits = |weight: &Tensor| {
                let (x, bias) = (numbers([8, 3], 0.7)?, numbers([4], 1.1)?);
                let tangents = [numbers([8, 3], 1.3)?, numbers([4, 3], 1.7)?, numbers([4], 1.9)?];
                let f = |x: &[Tensor]| Ok(vec![ops::linear(&x[0], &x[1], Some(&x[2]))?]);
                jvp(f, &[&x, weight, &bias], &tangents.each_ref())?.1[0].try_to_bytes()
            };
            Ok(bits(&dense)? == bits(&columns)?)
        });
    let double_sum = |x: &[Nd]| {
        let [outputs, left, right] = [0, 1, 2].map(|axis| x[2].shape[axis]);
        let leading = |t: &Nd| t.shape[..t.shape.len() - 1].to_vec();
        let shape = [broadcast_shape(&[&leading(&x[0]), &leading(&x[1])]), vec![outputs]].concat();
        let stretch = |t: &Nd, last: usize| t.broadcast(&[&shape[..shape.len() - 1], &[last]].concat());
        let (a, c) = (stretch(&x[0], left), stretch(&x[1], right));
        Nd::from_fn(&shape, |ix| {
            let (k, row) = (ix[ix.len() - 1], &ix[..ix.len() - 1]);
            let pairs = (0..left).flat_map(|i| (0..right).map(move |j| (i, j)));
            let term = |(i, j): (usize, usize)| {
                a.at(&[row, &[i]].concat()) * x[2].at(&[k, i, j]) * c.at(&[row, &[j]].concat())
            };
            pairs.map(term).sum::<f64>() + x.get(3).map_or(0.0, |bias| bias.data[k])
        })
    };
    let bilinear = Row::new("bilinear")
        .case(
            "biased",
            [real([2, 3]), real([2, 4]), real([2, 3, 4]), real([2])],
            |x| ops::bilinear(&x[0], &x[1], &x[2], Some(&x[3])),
            double_sum,
        )
        .floats_only()
        .case(
            "leading axes that broadcast, without a bias",
            [real([2, 1, 3]), real([2, 2]), real([3, 3, 2])],
            |x| ops::bilinear(&x[0], &x[1], &x[2], None),
            double_sum,
        )
        .floats_only()
        .case(
            "no sample",
            [real([0, 3]), real([0, 4]), real([2, 3, 4]), real([2])],
            |x| ops::bilinear(&x[0], &x[1], &x[2], Some(&x[3])),
            double_sum,
        )
        .floats_only()
        .within(0.3..=2.0)
        .check("a weight of rank 2 must be an error", || {
            mismatch(ops::bilinear(&zeros([3]), &zeros([3]), &zeros([3, 3]), None))
        })
        .check("an input of another width must be an error", || {
            mismatch(ops::bilinear(&zeros([2, 3]), &zeros([2, 3]), &zeros([2, 3, 4]), None))
        })
        .check("half precision must be rounded once", || {
            // The product is 2049, which f16 does not represent; with the bias it is 1.
            let half = |values: &[f64], shape: &[usize]| Tensor::new(values, shape).to_dtype(DType::F16);
            let (a, c, bias) = (half(&[2048.0, 1.0], &[1, 2]), half(&[1.0], &[1, 1]), half(&[-2048.0], &[1]));
            let y = ops::bilinear(&a, &c, &half(&[1.0, 1.0], &[1, 2, 1]), Some(&bias))?;
            Ok(y.dtype() == DType::F16 && y.item::<f64>() == 1.0)
        });
    let trace = Row::new("trace")
        .case("a rectangle", [real([2, 3])], |x| ops::trace(&x[0]), |x| Nd::scalar(x[0].at(&[0, 0]) + x[0].at(&[1, 1])))
        .floats_only()
        .check("integers must be summed in i64", || {
            Ok(ops::trace(&Tensor::from([[1i32, 2], [3, 4]]))?.item::<i64>() == 5)
        })
        .check("a vector must be an error", || mismatch(ops::trace(&zeros([3]))));
    let vector = |x: &[Nd]| {
        let shape = broadcast_shape(&[&x[0].shape, &x[1].shape]);
        let (a, b) = (x[0].broadcast(&shape), x[1].broadcast(&shape));
        Nd::from_fn(&shape, |ix| {
            let at = |t: &Nd, i: usize| t.at(&[&ix[..ix.len() - 1], &[i % 3]].concat());
            let i = ix[ix.len() - 1];
            at(&a, i + 1) * at(&b, i + 2) - at(&a, i + 2) * at(&b, i + 1)
        })
    };
    let cross = Row::new("cross")
        .case("vectors", [real([3]), real([3])], |x| ops::cross(&x[0], &x[1], -1), vector)
        .case("broadcast", [real([2, 3]), real([3])], |x| ops::cross(&x[0], &x[1], 1), vector)
        .floats_only()
        .case(
            "along the first axis",
            [real([3, 2]), real([3, 2])],
            |x| ops::cross(&x[0], &x[1], 0),
            move |x| vector(&[x[0].permute(&[1, 0]), x[1].permute(&[1, 0])]).permute(&[1, 0]),
        )
        .floats_only()
        .ordinary()
        .any_zero()
        .check("vectors of two elements must be an error", || mismatch(ops::cross(&zeros([2]), &zeros([2]), 0)))
        .check("vectors of four elements must be an error", || mismatch(ops::cross(&zeros([4]), &zeros([4]), 0)))
        .check("a vector of one element must be an error", || mismatch(ops::cross(&zeros([3]), &zeros([1]), 0)));
    let rule = |row: Row, rule| row.rule(rule).ulps(32.0).scale(4.0);
    let more = [rule(trace, Rule::Counts), rule(cross, Rule::Numbers)];
    let mut rows = vec![
        rule(matmul, Rule::NoTruth),
        matmul_integer,
        rule(dot, Rule::NoTruth),
        rule(outer, Rule::Any),
        rule(linear, Rule::NoTruth),
        rule(bilinear, Rule::NoTruth),
    ];
    rows.extend(more);
    rows
}

/// Returns numbers between −1 and 1.
fn numbers<const N: usize>(shape: [usize; N], by: f64) -> pellucid_tensor::Result<Tensor> {
    let count = shape.iter().product::<usize>() as f64;
    ops::sin(&ops::reshape(&Tensor::arange(by, by * (count + 0.5), by), shape)?)
}

fn zeros<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::zeros(shape, DType::F32)
}

fn mismatch(result: pellucid_tensor::Result<Tensor>) -> pellucid_tensor::Result<bool> {
    Ok(matches!(result, Err(Error::ShapeMismatch { .. })))
}
