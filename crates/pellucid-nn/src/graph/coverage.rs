//! Checks that the optimizer of a training step updates all parameters that require a gradient.

use crate::loss::Loss;
use crate::module::{DynModule, as_dyn};
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use crate::visit::{ModulePart, Visit};
use pellucid_tensor::{Error, Result};
use std::collections::HashSet;

/// Returns the name that identifies the loss among the parts of a model: `loss`, or if the model has a part of that
/// name, the first unused of `loss_1`, `loss_2`, ..
pub fn loss_part_name(model: &(impl Visit + ?Sized)) -> String {
    unused_loss_name(as_dyn(&model))
}

fn unused_loss_name(model: &dyn DynModule) -> String {
    let mut used = HashSet::new();
    model.walk(&mut |name, part| {
        let first = name.split('.').next().unwrap_or(name);
        if first.starts_with("loss") && !matches!(part, ModulePart::Setting(_)) {
            used.insert(first.to_string());
        }
    });
    let mut name = "loss".to_string();
    for number in 1.. {
        if !used.contains(&name) {
            break;
        }
        name = format!("loss_{number}");
    }
    name
}

/// Returns the parameters of model and loss, by name. The first batch builds lazy layers of the model, but lazy layers
/// of the loss must already be built.
fn parameters_of(model: &dyn DynModule, loss: &dyn Loss) -> Result<Vec<(String, Parameter)>> {
    let mut seen = HashSet::new();
    let prefix = unused_loss_name(model);
    let of_loss = as_dyn(&loss).built_parameters()?.into_iter().map(|(name, p)| (format!("{prefix}.{name}"), p));
    Ok(model.parameters().into_iter().chain(of_loss).filter(|(_, p)| seen.insert(p.id())).collect())
}

/// Returns the parameters of model and loss that require a gradient, by name.
fn trained_parameters(model: &dyn DynModule, loss: &dyn Loss) -> Result<Vec<(String, Parameter)>> {
    let mut trained = parameters_of(model, loss)?;
    trained.retain(|(_, p)| p.requires_grad());
    Ok(trained)
}

/// Adds the parameters of model and loss that require a gradient to an optimizer without parameters. Returns true if it
/// added any.
///
/// # Errors
/// [`Error::InvalidArgument`] for an optimizer with several groups, and for one that is not a
/// [`RuleOptimizer`](crate::optim::RuleOptimizer).
pub(super) fn fill_optimizer(model: &dyn DynModule, loss: &dyn Loss, optimizer: &dyn Optimizer) -> Result<bool> {
    let trained = if optimizer.parameters().is_empty() { trained_parameters(model, loss)? } else { Vec::new() };
    if trained.is_empty() {
        return Ok(false);
    }
    let deferred = optimizer.deferred_parameters().ok_or_else(|| {
        let reason = "parameters cannot be added to this optimizer; create the optimizer with the model's parameters()";
        Error::invalid("fill_optimizer", reason)
    })?;
    deferred.add(trained).map(|()| true)
}

/// The parameters that are frozen when a step is recorded, and must stay frozen because the step would not train them.
pub(super) struct FrozenParameters {
    /// Frozen parameters that do not belong to the optimizer.
    others: Vec<(String, Parameter)>,
    /// Frozen parameters of the optimizer that have no state, because they were frozen when it was created.
    stateless: Vec<(String, Parameter)>,
}

impl FrozenParameters {
    /// Returns the parameters that must stay frozen, or an error if a parameter requires a gradient but has no state in
    /// the optimizer, or does not belong to the optimizer although `is_untrained_allowed` is false.
    pub(super) fn checked(
        op: &'static str,
        model: &dyn DynModule,
        loss: &dyn Loss,
        optimizer: &dyn Optimizer,
        is_untrained_allowed: bool,
    ) -> Result<FrozenParameters> {
        let ids = |parameters: &[Parameter]| parameters.iter().map(|p| p.id()).collect::<HashSet<_>>();
        let stateless_ids = ids(&optimizer.stateless_parameters());
        let mut stateless = if stateless_ids.is_empty() { Vec::new() } else { parameters_of(model, loss)? };
        stateless.retain(|(_, p)| stateless_ids.contains(&p.id()));
        check_stateless(op, &stateless)?;
        if is_untrained_allowed {
            return Ok(FrozenParameters { others: Vec::new(), stateless });
        }
        let updated = optimizer.parameters();
        if updated.is_empty() && trained_parameters(model, loss)?.is_empty() {
            let reason = "the model has no parameters that require a gradient, so nothing would be trained; unfreeze() \
                          some of them, or add a layer with parameters";
            return Err(Error::invalid(op, reason));
        }
        let (given, ids) = (updated.len(), ids(&updated));
        let (updated, mut others): (Vec<_>, Vec<_>) =
            parameters_of(model, loss)?.into_iter().partition(|(_, p)| ids.contains(&p.id()));
        let untrained = names_of_trained(&others);
        if untrained.is_empty() {
            others.retain(|(_, p)| !p.requires_grad());
            return Ok(FrozenParameters { others, stateless });
        }
        let help = match (updated.is_empty(), given) {
            (true, 0) => {
                "the optimizer has no parameters: build() lazy layers, then create it with the model's parameters()"
                    .into()
            }
            (true, _) => format!(
                "the {given} parameters of the optimizer belong to another model, or were replaced in this model: \
                 create the optimizer with the parameters() of this model"
            ),
            _ => "create the optimizer with all parameters() of the model, freeze() the others, or set \
                  allow_untrained_parameters if other optimizers update them"
                .into(),
        };
        Err(Error::UntrainedParameters { op, parameters: untrained, help })
    }

    /// Returns an error if one of the frozen parameters requires a gradient now.
    pub(super) fn check(&self) -> Result<()> {
        check_stateless("launch", &self.stateless)?;
        let thawed = names_of_trained(&self.others);
        if thawed.is_empty() {
            return Ok(());
        }
        let help = "these parameters were frozen when the step was recorded: create the optimizer with them (frozen \
                    parameters are skipped) and record the step again, or set allow_untrained_parameters";
        Err(Error::UntrainedParameters { op: "launch", parameters: thawed, help: help.into() })
    }
}

/// Returns the names of the parameters that require a gradient.
fn names_of_trained(parameters: &[(String, Parameter)]) -> Vec<String> {
    parameters.iter().filter(|(_, p)| p.requires_grad()).map(|(name, _)| name.clone()).collect()
}

/// Returns an error if one of the parameters without state requires a gradient.
fn check_stateless(op: &'static str, stateless: &[(String, Parameter)]) -> Result<()> {
    let parameters = names_of_trained(stateless);
    if parameters.is_empty() {
        return Ok(());
    }
    let help = "these parameters were frozen when the optimizer was created, so it has no state for them: create the \
                optimizer before freezing, or call ensure_initialized() of the optimizer before it moves into a trainer";
    Err(Error::UntrainedParameters { op, parameters, help: help.into() })
}
