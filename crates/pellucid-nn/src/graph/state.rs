//! The parameters and buffers of a model, and whether they are still the same tensors when a step is launched.

use crate::module::{Module, identity, walk};
use crate::visit::Part;
use pellucid_tensor::{Error, Result, Tensor};
use std::ops::Deref;
use std::rc::Rc;

/// Shows a tensor with its name.
type Meet<'a> = &'a mut dyn FnMut(&str, &Tensor);

/// The state of a model that a step was recorded with.
pub(super) struct State<'f> {
    walk: Box<dyn Fn(Meet<'_>) + 'f>,
    /// What the walk has met, in order.
    known: Vec<(usize, usize)>,
}

impl<'f> State<'f> {
    pub(super) fn of(model: Rc<impl Deref<Target: Module> + 'f>) -> State<'f> {
        let walk = move |meet: Meet<'_>| {
            walk(&**model, |name, part| match part {
                Part::Parameter(parameter) => meet(name, parameter.tensor()),
                Part::Buffer(buffer) => meet(name, buffer.tensor()),
                Part::Module(_) | Part::Training(_) | Part::Choice(_) => (),
            });
        };
        let mut known = Vec::new();
        walk(&mut |_, tensor| known.push(identity(tensor)));
        State { walk: Box::new(walk), known }
    }

    /// Every parameter and buffer with its name; a shared one under each of its names.
    pub(super) fn each(&self, mut f: impl FnMut(&str, &Tensor)) {
        (self.walk)(&mut f);
    }

    /// Refuses a model that has another tensor in the place of one.
    pub(super) fn check(&self) -> Result<()> {
        let (mut known, mut replaced) = (self.known.iter(), None);
        self.each(|name, tensor| {
            if known.next() != Some(&identity(tensor)) && replaced.is_none() {
                replaced = Some(format!("`{name}` of the model"));
            }
        });
        if known.next().is_some() && replaced.is_none() {
            replaced = Some("the last parameter or buffer of the model".into());
        }
        replaced.map_or(Ok(()), |slot| Err(Error::Rebound { slot }))
    }
}
