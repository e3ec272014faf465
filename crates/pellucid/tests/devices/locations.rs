//! The error of a read inside a captured step names the line of the caller, not a line of the library.

use crate::gpus;
use pellucid::nn::optim::{Lbfgs, LbfgsOptions, Optimizer};
use pellucid::prelude::*;
use pellucid::{Captured, capture_local};
use std::cell::Cell;

/// A read, with the line of its call.
type Read = (u32, fn(&Tensor) -> Result<()>);

/// Draws random numbers on the CPU, inside a step on another device.
fn on_cpu(x: &Tensor) -> Tensor {
    let row = Tensor::from([1.0f32, 2.0]);
    (&row * 2.0 + Tensor::rand([2], DType::F32)).exp() + x.shape()[0] as f64
}

fn check_reads(device: Device, reads: &[Read]) {
    for (line, read) in reads {
        let x = Tensor::from([1.0f32, 2.0]).to(device);
        let checked = Cell::new(false);
        let step = |inputs: &[Tensor]| {
            let error = read(&inputs[0]).expect_err("a read inside a captured step must be an error");
            match error {
                Error::ReadInCapture { location, .. } => {
                    assert!(location.file().ends_with("locations.rs"), "line {line}, {device}: {location}");
                    assert_eq!(location.line(), *line, "{device}");
                }
                other => panic!("line {line}, {device}: {other}"),
            }
            checked.set(true);
            &inputs[0] + 1.0
        };
        // A step with kernels on two devices is rejected after its recording.
        drop(capture_local(step, &[&x]));
        assert!(checked.get(), "line {line}, {device}");
    }
}

#[test]
fn a_read_in_a_captured_step_names_its_line() {
    #[rustfmt::skip]
    let reads: [Read; 11] = [
        (line!(), |x| x.sum(..).try_item::<f32>().map(drop)),
        (line!(), |x| x.try_to_vec::<f32>().map(drop)),
        (line!(), |x| x.try_to_vec::<i64>().map(drop)),
        (line!(), |x| x.try_to_bytes().map(drop)),
        (line!(), |x| ops::nonzero(x).map(drop)),
        (line!(), |x| ops::masked_select(x, &x.gt(0.0)).map(drop)),
        (line!(), |x| ops::unique(x, Default::default()).map(drop)),
        (line!(), |x| ops::bincount(&x.to_dtype(DType::I64), None, 0).map(drop)),
        (line!(), |x| x.try_i(x.gt(0.0)).map(drop)),
        (line!(), |x| x.detach().try_set(x.gt(0.0), Tensor::from([1.0f32, 2.0]))),
        (line!(), |x| Lbfgs::new(vec![Parameter::new(Tensor::zeros([1], DType::F32))], LbfgsOptions::default()).try_step_with(&mut || x.sum(..)).map(drop)),
    ];
    for device in gpus(15).into_iter().chain([Device::cpu()]) {
        check_reads(device, &reads);
    }
}

#[test]
fn a_tensor_of_another_device_in_a_captured_step_names_its_line() {
    #[rustfmt::skip]
    let reads: [Read; 8] = [
        (line!(), |x| on_cpu(x).try_to(x.device()).map(drop)),
        (line!(), |x| ops::add(x, on_cpu(x)).map(drop)),
        (line!(), |x| ops::concatenate(&[x, &on_cpu(x)], 0).map(drop)),
        (line!(), |x| ops::where_(&x.gt(0.0), on_cpu(x), x).map(drop)),
        (line!(), |x| ops::copy_(x, &on_cpu(x))),
        (line!(), |x| x.detach().try_set(0..2, on_cpu(x))),
        (line!(), |x| x.try_i(on_cpu(x).to_dtype(DType::I64)).map(drop)),
        (line!(), |x| ops::matmul(x, &on_cpu(x)).map(drop)),
    ];
    for device in gpus(15) {
        check_reads(device, &reads);
    }
}

/// Methods and operators panic with the error, which `capture` returns.
#[test]
fn the_error_of_a_panicking_read_names_its_line() {
    let x = Tensor::from([1.0f32, 2.0]);
    let expect = |result: Result<Captured>, line: u32| match result {
        Err(Error::ReadInCapture { location, .. }) => assert_eq!((location.file(), location.line()), (file!(), line)),
        other => panic!("line {line}: {:?}", other.err()),
    };
    expect(capture(|inputs: &[Tensor]| &inputs[0] * f64::from(inputs[0].sum(..).item::<f32>()), &[&x]), line!());
    expect(capture(|inputs: &[Tensor]| inputs[0].masked_select(&inputs[0].gt(0.0)), &[&x]), line!());
    expect(capture(|inputs: &[Tensor]| inputs[0].i(inputs[0].gt(1.0)), &[&x]), line!());
    for device in gpus(15) {
        let x = x.to(device);
        expect(capture(|inputs: &[Tensor]| &inputs[0] + on_cpu(&inputs[0]), &[&x]), line!());
        expect(capture(|inputs: &[Tensor]| on_cpu(&inputs[0]) * &inputs[0], &[&x]), line!());
        expect(capture(|inputs: &[Tensor]| inputs[0].maximum(on_cpu(&inputs[0])), &[&x]), line!());
    }
}
