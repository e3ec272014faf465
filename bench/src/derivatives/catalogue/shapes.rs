//! Views, joins, indexing and scattering.

use super::{CatalogueOperation, Domain, OperationFamily, axis, dims, fit, length, ranked};
use Domain::{Any, Apart};
use pellucid::ops::einops::{self, EinopsReduction};
use pellucid::ops::{EmbeddingBagOptions, EmbeddingOptions, PaddingMode, ScatterReduceOp};
use pellucid::{DType, Tensor, ops};

fn views() -> Vec<CatalogueOperation> {
    entries! { Shape;
        "reshape" [Any] (x, _) => ops::reshape(&x[0], -1);
        "flatten" [Any] (x, _) => ops::flatten(&ranked(&x[0])?, 0, -1);
        "unsqueeze and squeeze" [Any] (x, _) => ops::squeeze(&ops::mul(&ops::unsqueeze(&x[0], 0)?, 1.5)?, 0);
        "permute" [Any] (x, random) => {
            let order: Vec<isize> = random.permutation(x[0].rank()).into_iter().map(|k| k as isize).collect();
            ops::permute(&x[0], &order)
        };
        "transpose" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            ops::transpose(&x, axis(&x, random), axis(&x, random))
        };
        "swapaxes" [Any] (x, _) => ops::swapaxes(&fit(&x[0], &[2, 3])?, 0, -1);
        "t" [Any] (x, _) => ops::t(&fit(&x[0], &[2, 3])?);
        "movedim" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            ops::movedim(&x, [axis(&x, random)], [axis(&x, random)])
        };
        "broadcast_to" [Any] (x, _) => ops::broadcast_to(&fit(&x[0], &[1, 3])?, [2, 3]);
        "expand" [Any] (x, _) => ops::expand(&fit(&x[0], &[3, 1])?, [-1, 2]);
        "narrow" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            let axis = axis(&x, random);
            let start = random.below(length(&x, axis));
            ops::narrow(&x, axis, start, 1 + random.below(length(&x, axis) - start))
        };
        "select" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            let axis = axis(&x, random);
            ops::select(&x, axis, random.below(length(&x, axis)) as isize)
        };
        "flip" [Any] (x, random) => { let x = ranked(&x[0])?; ops::flip(&x, axis(&x, random)) };
        "split" [Any] (x, _) => {
            let parts = ops::split(&fit(&x[0], &[2, 3])?, [1, 2], 1)?;
            ops::mul(&parts[0], &parts[1])
        };
        "chunk" [Any] (x, _) => {
            let parts = ops::chunk(&fit(&x[0], &[4])?, 2, 0)?;
            ops::mul(&parts[0], &parts[1])
        };
        "tensor_split" [Any] (x, _) => {
            let parts = ops::tensor_split(&fit(&x[0], &[2, 3])?, 2, 1)?;
            ops::mul(&parts[0], &parts[1])
        };
        "unbind" [Any] (x, _) => {
            let parts = ops::unbind(&fit(&x[0], &[2, 3])?, 0)?;
            ops::mul(&parts[0], &parts[1])
        };
        "roll" [Any] (x, random) => { let x = ranked(&x[0])?; ops::roll(&x, [1], [axis(&x, random)]) };
        "rot90" [Any] (x, random) => ops::rot90(&fit(&x[0], &[2, 3])?, random.below(4) as isize, [0, 1]);
        "unflatten" [Any] (x, _) => ops::unflatten(&fit(&x[0], &[6])?, 0, [2, 3]);
        "repeat" [Any] (x, random) => { let x = ranked(&x[0])?; ops::repeat(&x, 2, Some(axis(&x, random))) };
        "repeat counts" [Any] (x, _) => ops::repeat(&fit(&x[0], &[2, 3])?, [1, 0, 3], Some(1));
        "tile" [Any] (x, _) => ops::tile(&x[0], [2]);
        "windows" [Any] (x, _) => ops::windows(&fit(&x[0], &[2, 3])?, 1, 2, 1);
        "diagonal" [Any] (x, random) => ops::diagonal(&fit(&x[0], &[2, 3])?, random.below(3) as isize - 1, 0, 1);
        "diag_embed" [Any] (x, _) => ops::diag_embed(&fit(&x[0], &[2])?, 1, 0, 1);
        "diag" [Any] (x, random) => ops::diag(&fit(&x[0], &[2, 2])?, random.below(2) as isize);
        "tril" [Any] (x, _) => ops::tril(&fit(&x[0], &[2, 3])?, 0);
        "triu" [Any] (x, _) => ops::triu(&fit(&x[0], &[2, 3])?, 1);
        "to_dtype" [Any] (x, _) => ops::to_dtype(&x[0], DType::F64);
        "slice with a step" [Any] (x, _) => Ok(fit(&x[0], &[2, 3])?.i((0, pellucid::slice(None, None, 2))));
        "einops rearrange" [Any] (x, _) => einops::rearrange(&fit(&x[0], &[2, 3])?, "a b -> (b a)", &[]);
        "einops repeat" [Any] (x, _) => einops::repeat(&fit(&x[0], &[2, 3])?, "a b -> b (a 2)", &[]);
        "einops reduce" [Apart] (x, random) => {
            use EinopsReduction::{Max, Mean, Min, Prod, Sum};
            let fold = random.choose(&[Sum, Mean, Max, Min, Prod]);
            einops::reduce(&fit(&x[0], &[2, 3])?, "a b -> b", fold, &[])
        };
        "pixel_shuffle" [Any] (x, _) => ops::pixel_shuffle(&fit(&x[0], &[4, 1, 2])?, 2);
        "pixel_unshuffle" [Any] (x, _) => ops::pixel_unshuffle(&fit(&x[0], &[1, 2, 4])?, 2);
        "channel_shuffle" [Any] (x, _) => ops::channel_shuffle(&fit(&x[0], &[1, 4, 2])?, 2);
    }
}

fn joins() -> Vec<CatalogueOperation> {
    entries! { Shape;
        "concatenate" [Any, Any] (x, random) => {
            let x = [ranked(&x[0])?, fit(&x[1], &dims(&ranked(&x[0])?))?];
            ops::concatenate(&[&x[0], &x[1], &x[0]], axis(&x[0], random))
        };
        "stack" [Any, Any] (x, random) => {
            let x = [ranked(&x[0])?, fit(&x[1], &dims(&ranked(&x[0])?))?];
            ops::stack(&[&x[0], &x[1]], axis(&x[0], random))
        };
        "hstack" [Any, Any] (x, _) => ops::hstack(&[&fit(&x[0], &[2, 2])?, &fit(&x[1], &[2, 1])?]);
        "vstack" [Any, Any] (x, _) => ops::vstack(&[&fit(&x[0], &[3])?, &fit(&x[1], &[2, 3])?]);
        "dstack" [Any, Any] (x, _) => ops::dstack(&[&fit(&x[0], &[2, 2])?, &fit(&x[1], &[2, 2])?]);
        "column_stack" [Any, Any] (x, _) => ops::column_stack(&[&fit(&x[0], &[2])?, &fit(&x[1], &[2, 2])?]);
        "block_diag" [Any, Any] (x, _) => ops::block_diag(&[&fit(&x[0], &[2, 1])?, &fit(&x[1], &[1, 2])?]);
        "cartesian_prod" [Any, Any] (x, _) => ops::cartesian_prod(&[&fit(&x[0], &[2])?, &fit(&x[1], &[3])?]);
        "combinations" [Any] (x, random) => ops::combinations(&fit(&x[0], &[3])?, 2, random.coin());
        "pad with a constant" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            ops::pad(&x, (random.below(3) as isize, 1), PaddingMode::Constant(0.5.into()))
        };
        "pad that cuts" [Any] (x, _) => ops::pad(&fit(&x[0], &[4])?, (-1, 2), PaddingMode::Constant(0.into()));
        "pad reflect" [Any] (x, _) => ops::pad(&fit(&x[0], &[2, 3])?, [(0, 1), (2, 1)], PaddingMode::Reflect);
        "pad replicate" [Any] (x, _) => ops::pad(&fit(&x[0], &[2, 3])?, [(2, 0), (1, 1)], PaddingMode::Replicate);
        "pad circular" [Any] (x, _) => ops::pad(&fit(&x[0], &[2, 3])?, [(0, 1), (1, 2)], PaddingMode::Circular);
        "vander" [Any] (x, _) => ops::vander(&fit(&x[0], &[3])?, Some(4));
    }
}

fn indexing() -> Vec<CatalogueOperation> {
    entries! { Shape;
        "index_select" [Any] (x, random) => {
            let x = ranked(&x[0])?;
            let axis = axis(&x, random);
            ops::index_select(&x, axis, &random.indices(&[3], length(&x, axis)))
        };
        "take_along_axis" [Any] (x, random) => {
            ops::take_along_axis(&fit(&x[0], &[2, 3])?, &random.indices(&[2, 2], 3), 1)
        };
        "take" [Any] (x, random) => ops::take(&x[0], &random.indices(&[2, 2], x[0].size()));
        "index by tensors" [Any] (x, random) => {
            fit(&x[0], &[2, 3])?.try_i((&random.indices(&[4], 2), &random.indices(&[4], 3)))
        };
        "masked_select" [Any] (x, random) => ops::masked_select(&x[0], &random.mask(&dims(&x[0])));
        "masked_fill" [Any] (x, random) => ops::masked_fill(&x[0], &random.mask(&dims(&x[0])), 0.5);
        "masked_scatter" [Any, Any] (x, random) => {
            let x = [fit(&x[0], &[2, 3])?, fit(&x[1], &[6])?];
            ops::masked_scatter(&x[0], &random.mask(&[2, 3]), &x[1])
        };
        "scatter" [Any, Any] (x, random) => {
            let index: Vec<i64> = random.permutation(3).into_iter().take(2).map(|k| k as i64).collect();
            ops::scatter(&fit(&x[0], &[3])?, 0, &Tensor::new(&index[..], [2]), &fit(&x[1], &[2])?)
        };
        "scatter_add" [Any, Any] (x, random) => {
            ops::scatter_add(&fit(&x[0], &[2, 3])?, 1, &random.indices(&[2, 4], 3), &fit(&x[1], &[2, 4])?)
        };
        "scatter_add_along" [Any] (x, random) => {
            ops::scatter_add_along(&fit(&x[0], &[2, 3])?, &random.indices(&[2, 3], 4), 1, [2, 4])
        };
        "scatter_reduce" [Apart, Apart] (x, random) => {
            let meeting = random.choose(&[ScatterReduceOp::Sum, ScatterReduceOp::Prod, ScatterReduceOp::Mean, ScatterReduceOp::Max, ScatterReduceOp::Min]);
            let (x, values) = (fit(&x[0], &[3])?, ops::add(&fit(&x[1], &[4])?, 0.013)?);
            ops::scatter_reduce(&x, 0, &random.indices(&[4], 3), &values, meeting, random.coin())
        };
        "index_add" [Any, Any] (x, random) => {
            ops::index_add(&fit(&x[0], &[2, 3])?, 1, &random.indices(&[2], 3), &fit(&x[1], &[2, 2])?, 0.7)
        };
        "index_copy" [Any, Any] (x, random) => {
            ops::index_copy(&fit(&x[0], &[2, 3])?, 1, &random.indices(&[1], 3), &fit(&x[1], &[2, 1])?)
        };
        "index_fill" [Any] (x, random) => ops::index_fill(&fit(&x[0], &[2, 3])?, 1, &random.indices(&[2], 3), 0.5);
        "index_fill by a tensor" [Any, Any] (x, random) => {
            let value = ops::sum(&x[1], ..)?;
            ops::index_fill(&fit(&x[0], &[2, 3])?, 1, &random.indices(&[1], 3), &value)
        };
        "index_reduce" [Apart, Apart] (x, random) => {
            let meeting = random.choose(&[ScatterReduceOp::Sum, ScatterReduceOp::Prod, ScatterReduceOp::Mean, ScatterReduceOp::Max, ScatterReduceOp::Min]);
            let source = ops::add(&fit(&x[1], &[2, 2])?, 0.013)?;
            ops::index_reduce(&fit(&x[0], &[2, 3])?, 1, &random.indices(&[2], 3), &source, meeting, random.coin())
        };
    }
}

fn writes_and_embeddings() -> Vec<CatalogueOperation> {
    entries! { Shape;
        "index_put" [Any, Any] (x, random) => {
            let index = random.indices(&[1], 2);
            ops::index_put(&fit(&x[0], &[2, 3])?, &index, &fit(&x[1], &[1, 3])?, random.coin())
        };
        "put" [Any, Any] (x, random) => {
            ops::put(&fit(&x[0], &[2, 3])?, &random.indices(&[4], 6), &fit(&x[1], &[4])?, true)
        };
        "select_scatter" [Any, Any] (x, _) => {
            ops::select_scatter(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[2])?, 1, -1)
        };
        "slice_scatter" [Any, Any] (x, _) => {
            ops::slice_scatter(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[2, 2])?, 1, None, None, 2)
        };
        "diagonal_scatter" [Any, Any] (x, _) => {
            ops::diagonal_scatter(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[2])?, 1, 0, 1)
        };
        "embedding" [Any] (x, random) => {
            ops::embedding(&fit(&x[0], &[2, 3])?, &random.indices(&[4], 2), EmbeddingOptions::default())
        };
        "embedding_bag" [Apart] (x, random) => {
            let mode = random.choose(&[ScatterReduceOp::Sum, ScatterReduceOp::Mean, ScatterReduceOp::Max]);
            let options = EmbeddingBagOptions { mode, ..Default::default() };
            ops::embedding_bag(&fit(&x[0], &[3, 2])?, &random.indices(&[2, 3], 3), options)
        };
        "embedding_bag with weights" [Any, Any] (x, random) => {
            let weights = fit(&x[1], &[2, 3])?;
            let mode = ScatterReduceOp::Sum;
            let options = EmbeddingBagOptions { mode, weights: Some(&weights), ..Default::default() };
            ops::embedding_bag(&fit(&x[0], &[3, 2])?, &random.indices(&[2, 3], 3), options)
        };
    }
}

pub(super) fn operations() -> Vec<CatalogueOperation> {
    let mut all = views();
    all.extend(joins());
    all.extend(indexing());
    all.extend(writes_and_embeddings());
    all
}
