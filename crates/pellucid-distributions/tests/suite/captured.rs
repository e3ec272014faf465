//! Captured steps with samples and densities are bit-identical to eager steps.

use pellucid::distributions::*;
use pellucid::nn::Parameter;
use pellucid::nn::optim::{Optimizer, Sgd, SgdOptions};
use pellucid::{Generator, Result, Tensor, capture};

/// One step: samples of several families, their densities and a divergence.
fn loss(mean: &Tensor, width: &Tensor) -> Result<Tensor> {
    let scale = width.exp();
    let normal = Normal::try_new(mean, &scale)?;
    let z = normal.try_rsample([8])?;
    let gamma = Gamma::try_new(&scale, 2.0f32)?;
    let share = Beta::try_new(&scale, 1.5f32)?.try_rsample(())?;
    let ratio = FisherSnedecor::try_new(&scale, 9.0f32)?.try_rsample(())?;
    let class = Categorical::try_from_logits(mean)?;
    let drawn = class.try_sample([5])?;
    let counts = Poisson::try_new(&scale)?.try_sample([4])?;
    let angles = VonMises::try_new(mean, &scale)?.try_sample(())?;
    let prior = Normal::try_new(0.0f32, 1.0f32)?;
    Ok((&z * &z).mean(..)
        + gamma.try_rsample(())?.sum(..)
        + gamma.try_log_prob(&z.detach().exp())?.mean(..)
        + share.sum(..)
        + ratio.sum(..)
        + class.try_log_prob(&drawn)?.mean(..)
        + Poisson::try_new(&scale)?.try_log_prob(&counts)?.mean(..)
        + angles.cos().sum(..)
        + kl_divergence(&normal, &prior)?.sum(..))
}

fn parameters() -> (Parameter, Parameter) {
    (Parameter::new(Tensor::from([0.5f32, -1.0, 2.0])), Parameter::new(Tensor::from([0.1f32, -0.5, 0.7])))
}

#[test]
fn a_captured_step_has_the_bits_of_an_eager_one() -> Result<()> {
    let run = |captured: bool| -> Result<Vec<f32>> {
        let _seed = Generator::new(11).scope();
        let (mean, width) = parameters();
        let optimizer = Sgd::try_new(vec![mean.clone(), width.clone()], SgdOptions { lr: 0.01, ..Default::default() })?;
        let step = {
            let (mean, width, optimizer) = (mean.clone(), width.clone(), optimizer);
            move |_: &[Tensor]| -> Result<Tensor> {
                optimizer.zero_grad();
                let loss = loss(&mean, &width)?;
                loss.try_backward()?;
                optimizer.try_step()?;
                Ok(loss.detach())
            }
        };
        let mut values = Vec::new();
        if captured {
            let mut step = capture(step, &[])?;
            for _ in 0..4 {
                values.push(step.launch(&[])?.tensors()[0].item::<f32>());
            }
        } else {
            for _ in 0..4 {
                values.push(step(&[])?.item::<f32>());
            }
        }
        values.extend(mean.to_vec::<f32>());
        values.extend(width.to_vec::<f32>());
        Ok(values)
    };
    let (eager, captured) = (run(false)?, run(true)?);
    assert!(eager.iter().all(|value| value.is_finite()), "{eager:?}");
    assert_eq!(
        eager.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
        captured.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
    );
    Ok(())
}
