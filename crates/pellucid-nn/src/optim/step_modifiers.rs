//! Modifiers of a rule's formula for a step: scaled gradients, skipped steps and half precision. They are
//! added to the formula of any rule.

use pellucid_tensor::formula::Input;
use pellucid_tensor::{DType, Formula, lock};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

/// The modifiers of an update.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct StepModifiers {
    /// The dtype of the half-precision parameter, which is the last target; the first target is its `f32` copy.
    pub(super) half: Option<DType>,
    /// Whether the gradient is negated.
    pub(super) negates_gradient: bool,
    /// Whether the gradient is multiplied by a scale, which is the last input before the mask.
    pub(super) has_scale: bool,
    /// Whether the last input is a mask; where it is true, the targets are unchanged.
    pub(super) can_skip: bool,
}

/// The key of a modified formula. A formula is identified by its address, since it is never freed.
#[derive(PartialEq, Eq, Hash)]
enum FormulaKey {
    Update(usize, usize, StepModifiers),
    Tick(usize, usize, bool),
}

/// Returns the formula of a key; creates it at the first call.
fn cached_formula(written: FormulaKey, make: impl FnOnce() -> Formula) -> &'static Formula {
    static KNOWN: LazyLock<Mutex<HashMap<FormulaKey, &'static Formula>>> = LazyLock::new(Mutex::default);
    let mut known = lock(&KNOWN);
    known.entry(written).or_insert_with(|| Box::leak(Box::new(make().leak())))
}

fn address(formula: &'static Formula) -> usize {
    std::ptr::from_ref(formula).addr()
}

/// Extends a formula of (targets.., g, ..) to one of (targets.., [half], g, .., [scale], [skip]). Brackets
/// mark optional operands.
///
/// If the half-precision parameter is not the rounded `f32` copy, it was written since the last step, and its value
/// replaces the copy.
pub(super) fn with_modifiers(formula: &'static Formula, targets: usize, modifiers: StepModifiers) -> &'static Formula {
    if modifiers == StepModifiers::default() {
        return formula;
    }
    cached_formula(FormulaKey::Update(address(formula), targets, modifiers), || {
        let mut inputs = formula.inputs().to_vec();
        if modifiers.half.is_some() {
            inputs.insert(targets, Input::NUMBER);
        }
        inputs.extend(modifiers.has_scale.then_some(Input::NUMBER));
        inputs.extend(modifiers.can_skip.then_some(Input::MASK));
        Formula::new(formula.name(), &inputs, formula.params(), |inputs, params| {
            let mut rule_inputs = inputs.to_vec();
            let skip = modifiers.can_skip.then(|| rule_inputs.pop().expect("the last input must be the mask"));
            let scale =
                modifiers.has_scale.then(|| rule_inputs.pop().expect("the input before the mask must be the scale"));
            if let Some(dtype) = modifiers.half {
                let half = rule_inputs.remove(targets);
                rule_inputs[0] = rule_inputs[0].round_to(dtype).eq(half).select(rule_inputs[0], half);
            }
            if modifiers.negates_gradient {
                rule_inputs[targets] = -rule_inputs[targets];
            }
            if let Some(scale) = scale {
                rule_inputs[targets] = rule_inputs[targets] * scale;
            }
            let mut outputs = formula.call(&rule_inputs, params);
            if let Some(skip) = skip {
                outputs.iter_mut().zip(&rule_inputs).for_each(|(new, &old)| *new = skip.select(old, *new));
            }
            if modifiers.half.is_some() {
                outputs.push(outputs[0]);
            }
            outputs
        })
    })
}

/// Extends a tick, a formula that maps (clock.., η, momentum) to (clock.., rates..), to an update of clock and rates,
/// whose inputs are (clock.., rates.., η, momentum, [skip]). A skipped step does not advance the clock.
pub(super) fn clock_update(formula: &'static Formula, clock: usize, skip: bool) -> &'static Formula {
    cached_formula(FormulaKey::Tick(address(formula), clock, skip), || {
        let rates = formula.outputs().len() - clock;
        let mut inputs = formula.inputs().to_vec();
        inputs.splice(clock..clock, vec![Input::NUMBER; rates]);
        inputs.extend(skip.then_some(Input::MASK));
        Formula::new(formula.name(), &inputs, formula.params(), |inputs, params| {
            let mut tick_inputs = inputs.to_vec();
            let skip = skip.then(|| tick_inputs.pop().expect("the last input must be the mask"));
            tick_inputs.drain(clock..clock + rates);
            let mut outputs = formula.call(&tick_inputs, params);
            if let Some(skip) = skip {
                outputs[..clock].iter_mut().zip(&tick_inputs).for_each(|(new, &old)| *new = skip.select(old, *new));
            }
            outputs
        })
    })
}
