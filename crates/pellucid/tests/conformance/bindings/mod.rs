//! The bindings: maps each operation name of the test data to an operation of Pellucid.

mod activation;
mod contract;
mod create;
mod elementwise;
mod linalg;
mod loss;
mod masked;
mod normalize;
mod reduce;
mod select;
mod shape;
mod siblings;
mod special;
mod statistics;
mod window;

use crate::call::Call;
use pellucid::{Result, Tensor};
use std::collections::BTreeMap;

/// A call of the operation.
pub(crate) type Binding = Box<dyn Fn(&Call) -> Result<Vec<Tensor>> + Send + Sync>;

/// Every binding, by the name of the operation in the test data (with its variant).
pub(crate) type Table = BTreeMap<&'static str, Binding>;

/// Returns the functions that call the operations of the test data, by name.
pub(crate) fn all() -> Table {
    let mut table = Table::new();
    for bind in [
        activation::bind,
        contract::bind,
        create::bind,
        elementwise::bind,
        linalg::bind,
        loss::bind,
        masked::bind,
        normalize::bind,
        reduce::bind,
        select::bind,
        shape::bind,
        siblings::bind,
        special::bind,
        statistics::bind,
        window::bind,
    ] {
        bind(&mut Binder(&mut table));
    }
    table
}

/// The table to which an area adds its bindings.
struct Binder<'a>(&'a mut Table);

impl Binder<'_> {
    /// Binds a call with any number of outputs.
    fn many(&mut self, name: &'static str, f: impl Fn(&Call) -> Result<Vec<Tensor>> + Send + Sync + 'static) {
        let twice = self.0.insert(name, Box::new(f)).is_some();
        assert!(!twice, "the operation {name} must not have two bindings");
    }

    /// Binds a call with one output.
    fn one(&mut self, name: &'static str, f: impl Fn(&Call) -> Result<Tensor> + Send + Sync + 'static) {
        self.many(name, move |c| Ok(vec![f(c)?]));
    }

    /// Binds a call with two outputs.
    fn two(&mut self, name: &'static str, f: impl Fn(&Call) -> Result<(Tensor, Tensor)> + Send + Sync + 'static) {
        self.many(name, move |c| f(c).map(|(a, b)| vec![a, b]));
    }

    /// Binds a function of the input alone.
    fn unary(&mut self, name: &'static str, f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) {
        self.one(name, move |c| f(c.x()?));
    }

    /// Binds a function of two tensors.
    fn binary(&mut self, name: &'static str, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static) {
        self.one(name, move |c| f(c.x()?, c.y()?));
    }
}
