//! Contractions.

use crate::table::nd::{Nd, indices};
use crate::table::row::{Gradient::Third, Input, Row, Rule, real};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Computes the sum of products in one loop over all labels, for an equation with an arrow and without `...`.
fn naive(equation: &str, x: &[Nd]) -> Nd {
    let (terms, result) = equation.split_once("->").expect("an equation of `naive` must contain an arrow");
    let terms: Vec<Vec<char>> = terms.split(',').map(|t| t.chars().collect()).collect();
    let mut letters: Vec<char> = result.chars().collect();
    for &c in terms.iter().flatten() {
        if !letters.contains(&c) {
            letters.push(c);
        }
    }
    let length = |c: &char| -> usize {
        let lengths =
            terms.iter().zip(x).flat_map(|(t, x)| t.iter().zip(&x.shape).filter(|(l, _)| *l == c).map(|p| *p.1));
        lengths.max().expect("at least one operand must have this label")
    };
    let lengths: Vec<usize> = letters.iter().map(length).collect();
    let (kept, summed) = lengths.split_at(result.chars().count());
    let inner = indices(summed);
    Nd::from_fn(kept, |outer| {
        let product = |inner: &Vec<usize>| -> f64 {
            let place = |c: &char, len: usize| {
                let at =
                    letters.iter().position(|l| l == c).expect("every label of a term must be in the list of letters");
                if len == 1 { 0 } else { [outer, inner].concat()[at] }
            };
            let own = |t: &Vec<char>, x: &Nd| {
                x.at(&t.iter().zip(&x.shape).map(|(c, &len)| place(c, len)).collect::<Vec<_>>())
            };
            terms.iter().zip(x).map(|(t, x)| own(t, x)).product()
        };
        inner.iter().map(product).sum()
    })
}

fn rejected(equation: &str, shapes: &[&[usize]]) -> Result<bool> {
    let x: Vec<Tensor> = shapes.iter().map(|s| Tensor::zeros(*s, DType::F32)).collect();
    let result = ops::einsum(equation, &x.iter().collect::<Vec<_>>());
    Ok(matches!(result, Err(Error::InvalidArgument { .. } | Error::ShapeMismatch { .. })))
}

pub(super) fn rows() -> Vec<Row> {
    // The equation, the same equation without dots and with an arrow, and the shapes of the operands.
    let cases: [(&str, &str, &[&[usize]]); 26] = [
        ("ij,jk->ik", "ij,jk->ik", &[&[2, 3], &[3, 2]]),
        ("ij->ji", "ij->ji", &[&[2, 3]]),
        ("ij", "ij->ij", &[&[2, 3]]),
        ("ba", "ba->ab", &[&[2, 3]]),
        ("ij->", "ij->", &[&[2, 3]]),
        ("ij->j", "ij->j", &[&[2, 3]]),
        ("ii->", "ii->", &[&[3, 3]]),
        ("ii->i", "ii->i", &[&[3, 3]]),
        ("iij->ji", "iij->ji", &[&[2, 2, 3]]),
        ("iii->i", "iii->i", &[&[2, 2, 2]]),
        ("i,i->", "i,i->", &[&[3], &[3]]),
        ("i,j->ij", "i,j->ij", &[&[2], &[3]]),
        ("i, i -> i", "i,i->i", &[&[3], &[3]]),
        ("bij,bjk->bik", "bij,bjk->bik", &[&[2, 2, 3], &[2, 3, 2]]),
        ("bij,bkj", "bij,bkj->ik", &[&[2, 2, 3], &[2, 2, 3]]),
        ("ij,kl->", "ij,kl->", &[&[2, 3], &[3, 2]]),
        ("ij,jk,kl->il", "ij,jk,kl->il", &[&[2, 3], &[3, 2], &[2, 3]]),
        ("i,i,i->i", "i,i,i->i", &[&[3], &[3], &[3]]),
        ("a,ab,abc->abc", "a,ab,abc->abc", &[&[2], &[2, 3], &[2, 3, 2]]),
        ("ij,jk,kl,lm->mi", "ij,jk,kl,lm->mi", &[&[2, 2], &[2, 3], &[3, 2], &[2, 2]]),
        ("...ij,...jk->...ik", "aij,bajk->baik", &[&[2, 2, 3], &[2, 2, 3, 2]]),
        ("i...->...", "iab->ab", &[&[2, 2, 3]]),
        ("...i,...i", "abi,abi->ab", &[&[2, 1, 3], &[1, 2, 3]]),
        ("ij,jk->ik", "ij,jk->ik", &[&[2, 1], &[3, 2]]),
        ("ij,jk->ik", "ij,jk->ik", &[&[2, 0], &[0, 3]]),
        ("->", "->", &[&[]]),
    ];
    let einsum = cases.into_iter().enumerate().fold(Row::new("einsum"), |row, (k, (equation, plain, shapes))| {
        let inputs = shapes.iter().map(|shape| Input { shape: shape.to_vec(), ..real([]) });
        let call = move |x: &[Tensor]| ops::einsum(equation, &x.iter().collect::<Vec<_>>());
        let row = row.case(format!("{equation} of {shapes:?}"), inputs, call, move |x| naive(plain, x));
        if k == 0 { row } else { row.floats_only() }
    });
    let einsum = einsum
        .gradient(Third)
        .check("more terms than operands must be an error", || rejected("i,i->", &[&[2]]))
        .check("fewer letters than axes must be an error", || rejected("i->i", &[&[2, 3]]))
        .check("more letters than axes must be an error", || rejected("ij...->i", &[&[2]]))
        .check("an invalid label must be an error", || rejected("i1->i", &[&[2, 3]]))
        .check("an unknown label in the result must be an error", || rejected("i->j", &[&[2]]))
        .check("a repeated label in the result must be an error", || rejected("i->ii", &[&[2]]))
        .check("unequal lengths must be an error", || rejected("ij,jk->ik", &[&[2, 3], &[2, 3]]))
        .check("a repeated label with unequal lengths must be an error", || rejected("ii->", &[&[2, 3]]))
        .check("no operand must be an error", || rejected("", &[]))
        .check("nine operands", || {
            let x = Tensor::full([2, 2], 0.5, DType::F64);
            let y = ops::einsum("ab,bc,cd,de,ef,fg,gh,hi,ij->aj", &[&x; 9])?;
            Ok(y.to_vec::<f64>().iter().all(|&y| (y - 0.5).abs() < 1e-15))
        });
    let shape = |result: Result<Tensor>| Ok(matches!(result, Err(Error::ShapeMismatch { .. })));
    let argument = |result: Result<Tensor>| Ok(matches!(result, Err(Error::InvalidArgument { .. })));
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let tensordot = Row::new("tensordot")
        .case(
            "two axes",
            [real([2, 3, 2]), real([3, 2, 2])],
            |x| ops::tensordot(&x[0], &x[1], &[0, 1], &[1, 0]),
            |x| naive("ijk,jil->kl", x),
        )
        .case("no axis", [real([2]), real([3])], |x| ops::tensordot(&x[0], &x[1], &[], &[]), |x| naive("i,j->ij", x))
        .floats_only()
        .case(
            "all axes",
            [real([2, 3]), real([2, 3])],
            |x| ops::tensordot(&x[0], &x[1], &[0, -1], &[0, 1]),
            |x| naive("ij,ij->", x),
        )
        .floats_only()
        .case(
            "a length of 1",
            [real([2, 1]), real([3, 2])],
            |x| ops::tensordot(&x[0], &x[1], &[1], &[0]),
            |x| naive("ij,jk->ik", x),
        )
        .floats_only()
        .check("unequal lengths must be an error", move || {
            shape(ops::tensordot(&zeros(&[2, 3]), &zeros(&[2, 3]), &[1], &[0]))
        })
        .check("axis lists of unequal length must be an error", move || {
            argument(ops::tensordot(&zeros(&[2, 3]), &zeros(&[2, 3]), &[1], &[]))
        })
        .check("a repeated axis must be an error", move || {
            argument(ops::tensordot(&zeros(&[2, 2]), &zeros(&[2, 2]), &[1, 1], &[0, 1]))
        });
    let inner = Row::new("inner")
        .case("matrices", [real([2, 3]), real([2, 3])], |x| ops::inner(&x[0], &x[1]), |x| naive("ij,kj->ik", x))
        .case("vectors", [real([3]), real([3])], |x| ops::inner(&x[0], &x[1]), |x| naive("i,i->", x))
        .floats_only()
        .case("a number", [real([]), real([2, 3])], |x| ops::inner(&x[0], &x[1]), |x| naive(",ij->ij", x))
        .floats_only()
        .check("unequal lengths must be an error", move || shape(ops::inner(&zeros(&[2]), &zeros(&[3]))));
    let kron_of = |x: &[Nd]| {
        let (a, b) = (&x[0], &x[1]);
        let (rows, columns) = (b.shape[0], b.shape[1]);
        Nd::from_fn(&[a.shape[0] * rows, a.shape[1] * columns], |ix| {
            a.at(&[ix[0] / rows, ix[1] / columns]) * b.at(&[ix[0] % rows, ix[1] % columns])
        })
    };
    let kron = Row::new("kron")
        .case("matrices", [real([2, 3]), real([3, 2])], |x| ops::kron(&x[0], &x[1]), kron_of)
        .case(
            "a vector",
            [real([2, 2]), real([3])],
            |x| ops::kron(&x[0], &x[1]),
            move |x| kron_of(&[x[0].clone(), x[1].reshape(&[1, 3])]),
        )
        .floats_only();
    let rule = |row: Row, rule| row.rule(rule).ulps(64.0).scale(8.0).any_zero().ordinary();
    vec![rule(einsum, Rule::NoTruth), rule(tensordot, Rule::NoTruth), rule(inner, Rule::NoTruth), rule(kron, Rule::Any)]
}
