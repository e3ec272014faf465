//! The fallible forms that `docs/errors.md` lists.

use pellucid::data::Batches;
use pellucid::nn::optim::{AdamW, AdamWOptions, Optimizer};
use pellucid::nn::{Conv2d, Layer, Linear, Module, init};
use pellucid::prelude::*;
use pellucid::{Result, nn};

const PAGE: &str = include_str!("../../../docs/errors.md");

/// Runs each form, and fails if the page does not contain its source text.
macro_rules! forms {
    ($($text:literal => $form:expr;)*) => {$(
        assert!(PAGE.contains($text), "docs/errors.md must list `{}`", $text);
        let _ = $form;
    )*};
}

#[test]
fn the_forms_of_the_page_exist() -> Result<()> {
    let [mut x, y] = [(); 2].map(|()| Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]));
    let (model, leaf) = (Linear::new(2, 2), Tensor::from(2.0f32).requires_grad_(true));
    let (parameters, options) = (model.parameters(), AdamWOptions::default());
    let optimizer = AdamW::new(model.parameters(), options);
    let mut batches = Batches::new(&[&x, &y], 32);
    let loss = leaf.square();
    forms! {
        "`ops::matmul(&x, &y)`" => ops::matmul(&x, &y)?;
        "`ops::sum(&x, ..)`" => ops::sum(&x, ..)?;
        "`ops::add(&x, &y)`" => ops::add(&x, &y)?;
        "`ops::neg(&x)`" => ops::neg(&x)?;
        "`x = ops::add(&x, &y)?`" => { x = ops::add(&x, &y)?; };
        "`ops::zeros`" => ops::zeros([2], DType::F32)?;
        "`ops::randn`" => ops::randn([2], DType::F32)?;
        "`Tensor::arange(0, 5, 1)`" => Tensor::arange(0, 5, 1);
        "`ops::arange(0, 5, 1, DType::I64)`" => ops::arange(0, 5, 1, DType::I64)?;
        "`ops::eye(3, 3, dtype)`" => ops::eye(3, 3, DType::F32)?;
        "`Tensor::try_new(data, shape)`" => Tensor::try_new(vec![1.0f32; 4], [2, 2])?;
        "`Tensor::try_from_nested([[1.0], [2.0]])`" => Tensor::try_from_nested([[1.0], [2.0]])?;
        "`x.try_item()`" => x.try_item::<f32>().unwrap_err();
        "`x.try_to_vec()`" => x.try_to_vec::<f32>()?;
        "`x.try_i(..)`" => x.try_i(0)?;
        "`x.try_set(..)`" => x.try_set(0, 1.0)?;
        "`loss.try_backward()`" => loss.try_backward()?;
        "`Linear::try_new(784, 10)?`" => Linear::try_new(784, 10)?;
        "`Conv2d::try_new(4, 8, 3)?.try_groups(4)?`" => Conv2d::try_new(4, 8, 3)?.try_groups(4)?;
        "`model.try_forward(&x)`" => model.try_forward(&x)?;
        "`loss.try_forward(&x, &y)`" => nn::loss::MseLoss::default().try_forward(&x, &y)?;
        "`model.try_parameters()`" => model.try_parameters()?;
        "`model.try_state_dict()`" => model.try_state_dict()?;
        "`x.try_to(\"gpu\")`, `leaf.try_to_(device)`, `leaf.try_to_dtype_(dtype)`" => {
            x.try_to("cpu")?;
            x.copy().try_to_(Device::cpu())?;
            x.copy().try_to_dtype_(DType::F64)?;
        };
        "`init::try_kaiming_normal(..)`" => init::try_kaiming_normal([2, 2], init::Fan::In, init::Nonlinearity::Relu)?;
        "`AdamW::try_new(parameters, options)`" => AdamW::try_new(parameters, options)?;
        "`optimizer.try_set_lr(0.1)`" => optimizer.try_set_lr(0.1)?;
        "`Batches::try_new(&[&x, &y], 32)`" => Batches::try_new(&[&x, &y], 32)?;
        "`batches.try_epoch()`" => batches.try_epoch()?.try_for_each(|batch| batch.map(drop))?;
    }
    cross_entropy(&model.forward(&x), &Tensor::from([0i64, 1])).backward();
    forms! { "`optimizer.try_step()`" => optimizer.try_step()?; }
    Ok(())
}
