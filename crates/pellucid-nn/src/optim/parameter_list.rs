//! [`ParameterList`]: the parameters that an optimizer receives.

use crate::parameter::Parameter;

pub(super) type NamedParameters = Vec<(String, Parameter)>;

/// The parameters of an optimizer: [`Module::parameters`](crate::Module::parameters), or
/// [`Module::named_parameters`](crate::Module::named_parameters), whose names the state dict uses.
///
/// A parameter without a name is named by its index in the optimizer. `ParameterList::default()` has no parameters.
#[derive(Clone, Debug)]
pub struct ParameterList(ListedParameters);

#[derive(Clone, Debug)]
enum ListedParameters {
    Named(NamedParameters),
    Unnamed(Vec<Parameter>),
}

impl ParameterList {
    /// Returns the parameters with their names. Unnamed parameters are named by their index, counted from `first`.
    pub(super) fn into_named(self, first: usize) -> NamedParameters {
        match self.0 {
            ListedParameters::Named(named) => named,
            ListedParameters::Unnamed(all) => {
                all.into_iter().enumerate().map(|(i, p)| ((first + i).to_string(), p)).collect()
            }
        }
    }
}

impl Default for ParameterList {
    fn default() -> ParameterList {
        ParameterList(ListedParameters::Named(Vec::new()))
    }
}

impl From<Vec<Parameter>> for ParameterList {
    fn from(parameters: Vec<Parameter>) -> ParameterList {
        ParameterList(ListedParameters::Unnamed(parameters))
    }
}

impl From<Vec<(String, Parameter)>> for ParameterList {
    fn from(parameters: Vec<(String, Parameter)>) -> ParameterList {
        ParameterList(ListedParameters::Named(parameters))
    }
}
