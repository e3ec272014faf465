//! Rearrangements by patterns.

use crate::table::nd::Nd;
use crate::table::row::{Row, argument_rejected, real, shape_rejected};
use pellucid_tensor::ops::einops::{self, EinopsReduction};
use pellucid_tensor::{DType, Tensor, ops};

pub(super) fn rows() -> Vec<Row> {
    vec![rearrange(), repeat(), reduce()]
}

fn image() -> Tensor {
    Tensor::zeros([2, 4, 6], DType::F32)
}

fn rearrange() -> Row {
    let rejected = |pattern: &'static str| move || argument_rejected(ops::rearrange(&image(), pattern, &[]));
    Row::new("rearrange")
        .case(
            "another order",
            [real([2, 3, 4])],
            |x| ops::rearrange(&x[0], "a b c -> c a b", &[]),
            |x| x[0].permute(&[2, 0, 1]),
        )
        .case(
            "split and joined",
            [real([4, 3])],
            |x| ops::rearrange(&x[0], "(a s) b -> a (b s)", &[("s", 2)]),
            |x| Nd::from_fn(&[2, 6], |ix| x[0].at(&[2 * ix[0] + ix[1] % 2, ix[1] / 2])),
        )
        .floats_only()
        .case(
            "the rest in the middle",
            [real([2, 3, 2, 2])],
            |x| ops::rearrange(&x[0], "a ... b -> b (...) a", &[]),
            |x| x[0].permute(&[3, 1, 2, 0]).reshape(&[2, 6, 2]),
        )
        .floats_only()
        .case(
            "axes of length 1 come and go",
            [real([2, 1, 3])],
            |x| ops::rearrange(&x[0], "a 1 b -> 1 b a 1", &[]),
            |x| x[0].permute(&[2, 1, 0]).reshape(&[1, 3, 2, 1]),
        )
        .floats_only()
        .case("a number", [real([])], |x| ops::rearrange(&x[0], " -> 1", &[]), |x| x[0].reshape(&[1]))
        .floats_only()
        .case("nothing", [real([0, 2])], |x| ops::rearrange(&x[0], "a b -> (a b)", &[]), |x| x[0].reshape(&[0]))
        .floats_only()
        .check("a missing arrow must be an error", rejected("a b c"))
        .check("a missing axis on the right must be an error", rejected("a b c -> a b"))
        .check("a new axis on the right must be an error", || {
            argument_rejected(ops::rearrange(&image(), "a b c -> a b c d", &[("d", 2)]))
        })
        .check("a repeated axis must be an error", rejected("a b a -> a b"))
        .check("a repeated axis on the right must be an error", rejected("a b c -> a b c a"))
        .check("two unknown lengths must be an error", rejected("a b (c d) -> a b c d"))
        .check("nested parentheses must be an error", rejected("a (b (c)) -> a b c"))
        .check("an unclosed parenthesis must be an error", rejected("a (b c -> a b c"))
        .check("an invalid character must be an error", rejected("a b+c -> a b c"))
        .check("a length of an unknown axis must be an error", || {
            argument_rejected(ops::rearrange(&image(), "a b c -> c b a", &[("d", 2)]))
        })
        .check("another rank must be an error", || shape_rejected(ops::rearrange(&image(), "a b -> b a", &[])))
        .check("an indivisible length must be an error", || {
            shape_rejected(ops::rearrange(&image(), "a b (c 4) -> a b c 4", &[]))
        })
}

fn repeat() -> Row {
    Row::new("repeat")
        .case(
            "a new axis",
            [real([2, 3])],
            |x| einops::repeat(&x[0], "a b -> b (r a)", &[("r", 2)]),
            |x| Nd::from_fn(&[3, 4], |ix| x[0].at(&[ix[1] % 2, ix[0]])),
        )
        .check("new axes", || {
            let x = Tensor::from([[1.0, 2.0]]);
            let y = einops::repeat(&x, "1 a -> a (2 r)", &[("r", 2)])?;
            Ok(y.shape().dims() == [2, 4] && y.to_vec::<f64>() == [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0])
        })
        .check("the gradient must be summed over repeated elements", || {
            let x = Tensor::from([1.0, 2.0]).requires_grad_(true);
            einops::repeat(&x, "a -> a 3", &[])?.sum(..).backward();
            Ok(x.grad().is_some_and(|g| g.to_vec::<f64>() == [3.0, 3.0]))
        })
        .check("a missing axis must be an error", || argument_rejected(einops::repeat(&image(), "a b c -> a b", &[])))
}

fn reduce() -> Row {
    let sum = |row: &[f64]| row.iter().sum::<f64>();
    Row::new("reduce")
        .case(
            "blocks",
            [real([4, 6])],
            |x| ops::reduce(&x[0], "(a 2) (b 3) -> a b", EinopsReduction::Sum, &[]),
            move |x| x[0].reshape(&[2, 2, 2, 3]).reduce(&[1, 3], sum),
        )
        .floats_only()
        .case(
            "the mean of axes, the others turned",
            [real([2, 3, 4])],
            |x| ops::reduce(&x[0], "a b c -> c a", EinopsReduction::Mean, &[]),
            move |x| x[0].reduce(&[1], move |row| sum(row) / 3.0).permute(&[1, 0]),
        )
        .floats_only()
        .case(
            "the rest",
            [real([2, 3, 2])],
            |x| ops::reduce(&x[0], "... a -> a", EinopsReduction::Sum, &[]),
            move |x| x[0].reduce(&[0, 1], sum),
        )
        .floats_only()
        .case(
            "no axis",
            [real([2, 3])],
            |x| ops::reduce(&x[0], "a b -> b a", EinopsReduction::Prod, &[]),
            |x| x[0].permute(&[1, 0]),
        )
        .check("max, min and prod", || {
            let x = Tensor::from([[1.0, -2.0], [3.0, 4.0]]);
            let of = |fold| Ok::<_, pellucid_tensor::Error>(ops::reduce(&x, "a b -> a", fold, &[])?.to_vec::<f64>());
            Ok(of(EinopsReduction::Max)? == [1.0, 4.0]
                && of(EinopsReduction::Min)? == [-2.0, 3.0]
                && of(EinopsReduction::Prod)? == [-2.0, 12.0])
        })
        .check("a new axis on the right must be an error", || {
            argument_rejected(ops::reduce(&image(), "a b c -> a 2", EinopsReduction::Sum, &[]))
        })
}
