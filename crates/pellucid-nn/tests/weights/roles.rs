//! Functions for entire models find layers by the role that they declare, not by the name of their type.

use pellucid_nn::optim::update_bn;
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Result, Tensor, no_grad, ops};

/// A batch normalization of the user, which is found by its role.
#[derive(Clone, Debug, Module)]
#[module(role = BatchNorm)]
struct Centered {
    mean: Buffer,
    variance: Buffer,
    count: Buffer,
}

impl Layer for Centered {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let _off = no_grad();
        ops::copy_(&self.count, &ops::add(&self.count, 1)?)?;
        let difference = ops::sub(&ops::mean(x, 0)?, &self.mean)?;
        ops::copy_(
            &self.mean,
            &ops::add(&self.mean, &ops::div(&difference, &ops::to_dtype(&self.count, x.dtype())?)?)?,
        )?;
        ops::sub(x, &self.mean)
    }
}

/// A layer without a role, with the name and the number of buffers of one.
#[derive(Clone, Debug, Module)]
struct BatchNormStatistics {
    a: Buffer,
    b: Buffer,
    c: Buffer,
}

impl Layer for BatchNormStatistics {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

/// A pruned layer of the user with a scaled mask.
#[derive(Clone, Debug, Module)]
#[module(role = Pruned)]
struct Masked {
    weight_orig: Parameter,
    weight_mask: Buffer,
    inner: Linear,
}

/// A layer of the user with the names of [`Lora`].
#[derive(Clone, Debug)]
struct Adapter {
    a: Parameter,
    b: Parameter,
    rest: Parameter,
}

impl Module for Adapter {}

impl Visit for Adapter {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.role(ModuleRole::Lora);
        visitor.module(self, None);
        visitor.field("lora_A", &self.a);
        visitor.field("rest", &self.rest);
        visitor.field("lora_B", &self.b);
    }
}

fn buffer(value: f64) -> Buffer {
    Buffer::new(Tensor::full([2], value, DType::F32))
}

#[test]
fn layers_of_the_user_take_part_by_their_role() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let centered =
        Centered { mean: buffer(7.0), variance: buffer(1.0), count: Buffer::new(Tensor::full((), 5i64, DType::I64)) };
    let other = BatchNormStatistics { a: buffer(3.0), b: buffer(4.0), c: buffer(5.0) };
    let model = sequential![BatchNorm1d::new(2), centered.clone(), other.clone(), BatchNorm1d::new(2).affine(false)];
    let roles: Vec<_> = model.named_modules().iter().map(|(_, info)| info.role()).collect();
    let norm = Some(ModuleRole::BatchNorm);
    assert_eq!(roles, [None, norm, norm, None, norm]);
    let x = Tensor::randn([8, 2], DType::F32);
    update_bn(&model, [x.clone(), x]).unwrap();
    assert_eq!(centered.count.item::<i64>(), 2, "the count must start at 0");
    for (buffer, value) in [(&other.a, 3.0), (&other.b, 4.0), (&other.c, 5.0)] {
        assert_eq!(buffer.to_vec::<f32>(), [value; 2]);
    }

    let weight = Parameter::new(Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]));
    let mask = Buffer::new(Tensor::ones([2, 2], DType::F32));
    let masked = Masked { weight_orig: weight, weight_mask: mask, inner: Linear::new(2, 2) };
    prune::l1_unstructured(&(masked.clone(), Linear::new(2, 2)), 2usize).unwrap();
    assert_eq!(masked.weight_mask.to_vec::<f32>(), [0.0, 0.0, 1.0, 1.0]);
    assert!(matches!(prune::sparsity(&masked.inner), Err(Error::InvalidArgument { .. })));

    let parameter = || Parameter::new(Tensor::ones([2], DType::F32));
    let adapter = Adapter { a: parameter(), b: parameter(), rest: parameter() };
    let model = (adapter, Lora::new(Linear::new(2, 2), 1));
    let names: Vec<String> = lora_state_dict(&model).unwrap().into_keys().collect();
    assert_eq!(names, ["0.lora_A", "0.lora_B", "1.lora_A", "1.lora_B"]);
}
