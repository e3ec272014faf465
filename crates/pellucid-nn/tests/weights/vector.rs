//! Parameters as one vector, and back.

use crate::bits;
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Tensor, capture};

fn parameters() -> Vec<Parameter> {
    vec![
        Parameter::new(Tensor::from([[1.0f32, 2.0], [3.0, 4.0]])),
        Parameter::new(Tensor::from([5.0f32])),
        Parameter::new(Tensor::scalar(6.0, DType::F32)),
    ]
}

#[test]
fn elements_are_in_the_order_of_the_parameters() {
    let parameters = parameters();
    let vector = parameters_to_vector(&parameters).unwrap();
    assert_eq!(vector.to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    (vector.square() * 0.5).sum(..).backward();
    for parameter in &parameters {
        assert_eq!(parameter.grad().unwrap().to_bytes(), parameter.to_bytes());
    }
    vector_to_parameters(&(vector * 2.0), &parameters).unwrap();
    assert_eq!(parameters[0].to_vec::<f32>(), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!((parameters[1].item::<f32>(), parameters[2].item::<f32>()), (10.0, 12.0));
    assert!(parameters.iter().all(|parameter| parameter.requires_grad() && parameter.creator().is_none()));
}

#[test]
fn a_rejected_vector_changes_nothing() {
    let parameters = parameters();
    let before = bits(parameters.iter().map(Parameter::tensor));
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype);
    for (vector, text) in [
        (zeros(&[5], DType::F32), "one axis of length 6"),
        (zeros(&[6, 1], DType::F32), "one axis of length 6"),
        (zeros(&[6], DType::F64), "to_dtype(DType::F32)"),
    ] {
        let error = vector_to_parameters(&vector, &parameters).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(bits(parameters.iter().map(Parameter::tensor)), before);
    assert!(matches!(parameters_to_vector(&[]), Err(Error::InvalidArgument { .. })));
    let mixed = [Parameter::new(Tensor::from([1.0f32])), Parameter::new(Tensor::from([1.0f64]))];
    assert!(matches!(parameters_to_vector(&mixed), Err(Error::DTypeMismatch { .. })));
}

/// A captured step may read and write the vector.
#[test]
fn a_captured_step_writes_parameters() {
    let parameters = parameters();
    let factor = Tensor::scalar(2.0, DType::F32);
    let mut step = capture(
        |inputs| {
            let vector = parameters_to_vector(&parameters)? * &inputs[0];
            vector_to_parameters(&vector, &parameters)?;
            Ok(vector.detach())
        },
        &[&factor],
    )
    .unwrap();
    for expected in [2.0, 4.0] {
        step.launch(&[&factor]).unwrap();
        assert_eq!(parameters[0].to_vec::<f32>()[0], expected);
    }
}
