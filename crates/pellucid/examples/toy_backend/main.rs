//! A backend of another crate: registers a device, and trains a model on it.
//!
//! ```text
//! cargo run --release --example toy_backend
//! ```

#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

mod backend;

use pellucid::prelude::*;

fn main() -> Result<()> {
    Device::register(backend::ToyDriver)?;
    let model = sequential![Linear::new(2, 16), Relu, Linear::new(16, 1)].to("toy:0")?;
    let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() });
    // Host values are free tensors: the operations of the model copy them to its device.
    let x = Tensor::rand([64, 2], DType::F32);
    let y = x.select(1, 0) * x.select(1, 1);
    for step in 0..200 {
        let loss = mse_loss(&model.forward(&x), &y.unsqueeze(1));
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
        if step % 50 == 0 {
            println!("step {step}: loss {:.5} on {}", loss.item::<f32>(), loss.device());
        }
    }
    Ok(())
}
