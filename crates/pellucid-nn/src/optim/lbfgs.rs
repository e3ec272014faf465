//! L-BFGS.

use super::line_search::{SearchPoint, SearchResult, strong_wolfe};
use super::optimizer_core::listed_twice;
use super::options::options;
use super::param_group::{ParamGroup, check_lr};
use super::parameter_list::ParameterList;
use super::{Optimizer, check_closure};
use crate::parameter::Parameter;
use crate::state::{StateDict, StateLoad, StateMismatch, whole_number};
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, enable_grad, formula, lock, no_grad, ops, unwrap};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

options! {
    /// Options of [`Lbfgs`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    LbfgsOptions {
        /// The learning rate η, the initial length of a step along a direction.
        lr: f64 = 1.0 => NONNEGATIVE;
        /// The maximum number of iterations in a call of `step`.
        max_iter: usize = 20;
        /// The maximum number of evaluations of the loss in a call of `step`; `None` means 5/4 of `max_iter`.
        max_eval: Option<usize> = None;
        /// The iterations stop when no element of the gradient has a magnitude above this number.
        tolerance_grad: f64 = 1e-7 => NONNEGATIVE;
        /// The iterations stop when no parameter changes by more than this number, when the loss changes by less, or
        /// when the slope of the loss along the direction has a smaller magnitude.
        tolerance_change: f64 = 1e-9 => NONNEGATIVE;
        /// The maximum number of previous steps from which the inverse Hessian is approximated.
        history_size: usize = 100;
        /// Whether to search for the step length (strong Wolfe conditions).
        line_search: bool = false;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

/// L-BFGS, the quasi-Newton method with limited memory (Liu & Nocedal 1989), as in PyTorch. Directions are
/// −H·g, where g is the gradient, and H approximates the inverse Hessian from the last steps and gradient changes.
///
/// A step evaluates the loss several times and depends on its values. It therefore needs a closure,
/// [`step_with`](Optimizer::step_with), returns an error without one, and cannot be captured.
///
/// ```
/// use pellucid::nn::Parameter;
/// use pellucid::nn::optim::{Lbfgs, LbfgsOptions, Optimizer};
/// use pellucid::Tensor;
///
/// let p = Parameter::new(Tensor::from([-1.2f64, 1.0]));
/// let mut optimizer = Lbfgs::new(vec![p.clone()], LbfgsOptions { line_search: true, max_iter: 100,
/// ..Default::default() });
/// optimizer.step_with(&mut || {
///     let (x, y) = (p.i(0), p.i(1));
///     let rosenbrock = (&y - x.square()).square() * 100.0 + (1.0 - &x).square();
///     rosenbrock.backward();
///     rosenbrock
/// });
/// assert!((p.to_vec::<f64>()[0] - 1.0).abs() < 1e-3);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "LBFGS")]
pub struct Lbfgs {
    parameters: Arc<[Parameter]>,
    options: LbfgsOptions,
    group: ParamGroup,
    progress: Mutex<LbfgsProgress>,
}

/// The progress that is stored between steps.
#[derive(Default)]
struct LbfgsProgress {
    memory: Option<LbfgsMemory>,
    iterations: usize,
    evaluations: usize,
}

/// The data that is stored between iterations.
struct LbfgsMemory {
    direction: Tensor,
    t: f64,
    gradient: Tensor,
    hessian: Hessian,
}

/// The approximation of the inverse Hessian H.
struct Hessian {
    /// The changes of gradients y, the steps s, and 1/(y·s); oldest first.
    history: VecDeque<(Tensor, Tensor, f64)>,
    /// The factor of the identity in the initial H, before the history is applied.
    diagonal: f64,
}

impl Lbfgs {
    /// Creates an optimizer of these parameters, which are all `f32` or all `f64`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for options out of range, an empty list of parameters, or a parameter listed twice;
    /// [`Error::DTypeMismatch`].
    #[panicking_form]
    pub fn try_new(parameters: impl Into<ParameterList>, options: LbfgsOptions) -> Result<Lbfgs> {
        let op = "lbfgs";
        options.check_ranges(op)?;
        let (names, parameters): (Vec<String>, Vec<Parameter>) = parameters.into().into_named(0).into_iter().unzip();
        let Some(dtype) = parameters.first().map(|p| p.dtype()) else {
            return Err(Error::invalid(
                op,
                "the list of parameters must not be empty; use the parameters() of a model",
            ));
        };
        let mut seen = HashMap::new();
        for (name, parameter) in names.iter().zip(&parameters) {
            if let Some(first) = seen.insert(parameter.id(), name) {
                return Err(Error::invalid(op, listed_twice(first, name)));
            }
        }
        if !matches!(dtype, DType::F32 | DType::F64) || parameters.iter().any(|p| p.dtype() != dtype) {
            let dtypes = parameters.iter().map(|p| p.dtype());
            return Err(Error::dtypes(
                op,
                dtypes,
                "the parameters must be all f32 or all f64; convert the model with to_dtype_()",
            ));
        }
        let group = ParamGroup::try_new(options.lr, None, DType::F64)?;
        Ok(Lbfgs { parameters: parameters.into(), options, group, progress: Mutex::default() })
    }

    /// Runs up to `max_iter` iterations and returns the first loss.
    #[track_caller]
    fn iterate(&self, closure: &mut dyn FnMut() -> Tensor) -> Result<f64> {
        let _guard = no_grad();
        let options = LbfgsOptions { lr: self.group.try_lr()?, ..self.options };
        let mut taken = TakenProgress { of: self, progress: std::mem::take(&mut *self.progress()) };
        let progress = &mut taken.progress;
        let max_eval = options.max_eval.unwrap_or(options.max_iter.saturating_add(options.max_iter / 4));
        let sign = if options.maximize { -1.0 } else { 1.0 };
        let parameters = self.parameters.clone();
        let dtype = parameters[0].dtype();
        if let Some(before) = progress.memory.as_ref().map(|memory| memory.gradient.dtype()).filter(|&b| b != dtype) {
            let help = "the parameters were converted after a step; create the optimizer after \
                        converting the model with to_dtype_()";
            return Err(Error::dtypes("lbfgs", [before, dtype], help));
        }
        let mut evaluate = || -> Result<(f64, Tensor)> {
            let loss = {
                clear_gradients(&parameters);
                let _on = enable_grad();
                closure().try_item::<f64>()?
            };
            check_closure("lbfgs", &parameters)?;
            Ok((sign * loss, flat_gradient(&parameters, sign)?))
        };
        let (mut loss, mut gradient) = evaluate()?;
        let first = sign * loss;
        progress.evaluations += 1;
        if max_abs(&gradient)? <= options.tolerance_grad {
            return Ok(first);
        }
        let mut evaluations = 1;
        for iteration in 1..=options.max_iter {
            progress.iterations += 1;
            let (direction, hessian) = progress.direction(&gradient, options.history_size)?;
            let t = match progress.iterations {
                1 => options.lr * (1.0 / ops::sum(&ops::abs(&gradient)?, ..)?.try_item::<f64>()?).min(1.0),
                _ => options.lr,
            };
            let slope: f64 = ops::dot(&gradient, &direction)?.try_item()?;
            let memory = LbfgsMemory { direction, t, gradient: gradient.clone(), hessian };
            let LbfgsMemory { direction, .. } = &*progress.memory.insert(memory);
            if slope > -options.tolerance_change {
                break;
            }
            let (before, mut used, mut t) = (loss, 0, t);
            if options.line_search {
                let here: Vec<Tensor> =
                    self.parameters.iter().map(|p| ops::copy(&p.detach())).collect::<Result<_>>()?;
                let start = SearchPoint { t: 0.0, loss, gradient: gradient.clone(), slope };
                let along = |t: f64| {
                    with_restored(&parameters, &here, || {
                        advance(&parameters, direction, t)?;
                        evaluate()
                    })
                };
                let max_evaluations = max_eval.saturating_sub(evaluations);
                let search = strong_wolfe(along, &start, direction, t, options.tolerance_change, max_evaluations)?;
                let SearchResult { point, evaluations: search_evaluations } = search;
                (loss, gradient, t, used) = (point.loss, point.gradient, point.t, search_evaluations);
                advance(&self.parameters, direction, t)?;
            } else {
                advance(&self.parameters, direction, t)?;
                if iteration != options.max_iter {
                    (loss, gradient) = evaluate()?;
                    used = 1;
                }
            }
            let moved = max_abs(direction)? * t.abs();
            progress.memory.as_mut().expect("the memory must exist because it was stored above").t = t;
            evaluations += used;
            progress.evaluations += used;
            let is_done = evaluations >= max_eval
                || max_abs(&gradient)? <= options.tolerance_grad
                || moved <= options.tolerance_change
                || (loss - before).abs() < options.tolerance_change;
            if is_done {
                break;
            }
        }
        Ok(first)
    }
}

/// Calls `f`, and then writes `values` into the parameters, even if `f` fails or panics.
fn with_restored<R>(parameters: &[Parameter], values: &[Tensor], f: impl FnOnce() -> Result<R>) -> Result<R> {
    let result = catch_unwind(AssertUnwindSafe(f));
    parameters.iter().zip(values).try_for_each(|(p, x)| ops::copy_(p, x))?;
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Clears the gradients of the last evaluation. Existing gradients keep their memory, since a captured loss may write
/// to it; a gradient that cannot be overwritten is removed.
fn clear_gradients(parameters: &[Parameter]) {
    let zero = Tensor::from(0.0f32);
    for parameter in parameters.iter().filter(|p| p.requires_grad()) {
        if parameter.grad().is_some_and(|gradient| ops::copy_(&gradient, &zero).is_err()) {
            parameter.zero_grad();
        }
    }
}

/// The progress during a step. It is not locked, because the closure may call methods of the optimizer.
struct TakenProgress<'a> {
    of: &'a Lbfgs,
    progress: LbfgsProgress,
}

impl Drop for TakenProgress<'_> {
    fn drop(&mut self) {
        *self.of.progress() = std::mem::take(&mut self.progress);
    }
}

impl Lbfgs {
    fn progress(&self) -> MutexGuard<'_, LbfgsProgress> {
        lock(&self.progress)
    }
}

impl LbfgsProgress {
    /// Returns −H·g by the two-loop recursion (Nocedal 1980), and the updated approximation of H.
    fn direction(&mut self, gradient: &Tensor, history_size: usize) -> Result<(Tensor, Hessian)> {
        let add = formula!(add |q, y; k| q + k * y);
        let Some(LbfgsMemory { direction, t, gradient: before, hessian }) = self.memory.take() else {
            return Ok((ops::neg(gradient)?, Hessian { history: VecDeque::new(), diagonal: 1.0 }));
        };
        let Hessian { mut history, mut diagonal } = hessian;
        let (y, s) = (ops::sub(gradient, &before)?, ops::mul(&direction, t)?);
        let curvature: f64 = ops::dot(&y, &s)?.try_item()?;
        if curvature > 1e-10 {
            // A loaded history may be longer.
            while history.len() >= history_size.max(1) {
                history.pop_front();
            }
            diagonal = curvature / ops::dot(&y, &y)?.try_item::<f64>()?;
            if history_size > 0 {
                history.push_back((y, s, 1.0 / curvature));
            }
        }
        let q = ops::neg(gradient)?;
        let mut alphas = Vec::with_capacity(history.len());
        for (y, s, inverse) in history.iter().rev() {
            let alpha = ops::dot(s, &q)?.try_item::<f64>()? * inverse;
            ops::update(add, &[&q], &[y], &[(-alpha).into()])?;
            alphas.push(alpha);
        }
        let r = ops::mul(&q, diagonal)?;
        for ((y, s, inverse), alpha) in history.iter().zip(alphas.iter().rev()) {
            let beta = ops::dot(y, &r)?.try_item::<f64>()? * inverse;
            ops::update(add, &[&r], &[s], &[(alpha - beta).into()])?;
        }
        Ok((r, Hessian { history, diagonal }))
    }
}

impl Optimizer for Lbfgs {
    fn parameters(&self) -> Arc<[Parameter]> {
        self.parameters.clone()
    }

    fn groups(&self) -> &[ParamGroup] {
        std::slice::from_ref(&self.group)
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        let scalar_f64 = |x: f64| Tensor::scalar(x, DType::F64);
        let progress = self.progress();
        let mut state = vec![
            ("lr".to_string(), self.group.lr_tensor().clone()),
            ("iterations".to_string(), scalar_f64(progress.iterations as f64)),
            ("evaluations".to_string(), scalar_f64(progress.evaluations as f64)),
        ];
        if let Some(LbfgsMemory { direction, t, gradient, hessian: Hessian { history, diagonal } }) = &progress.memory {
            state.push(("direction".into(), direction.clone()));
            state.push(("t".into(), scalar_f64(*t)));
            state.push(("gradient".into(), gradient.clone()));
            state.push(("diagonal".into(), scalar_f64(*diagonal)));
            for (i, (y, s, inverse)) in history.iter().enumerate() {
                state.push((format!("history.{i}.change"), y.clone()));
                state.push((format!("history.{i}.step"), s.clone()));
                state.push((format!("history.{i}.inverse"), scalar_f64(*inverse)));
            }
        }
        state
    }

    fn try_step_scaled(&self, _: Option<&Tensor>, _: Option<&Tensor>) -> Result<()> {
        let help = "step() cannot run L-BFGS, which evaluates the loss several times, depending on values; call \
                    try_step_with() outside a captured step, with a closure that may launch a captured loss with its \
                    gradients; a Trainer runs it as the train_step() of a TrainingTask";
        Err(Error::invalid("lbfgs", help))
    }

    #[track_caller]
    fn try_step_with(&self, closure: &mut dyn FnMut() -> Tensor) -> Result<f64> {
        self.iterate(closure)
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let (size, dtype) = (self.parameters.iter().map(|p| p.size()).sum::<usize>(), self.parameters[0].dtype());
        let (flat, scalar) = (Shape::from([size]), Shape::scalar());
        let mut expected: Vec<(String, &Shape)> =
            ["lr", "iterations", "evaluations"].map(|n| (n.to_string(), &scalar)).into();
        let steps = state.keys().filter(|name| name.starts_with("history.") && name.ends_with(".inverse")).count();
        let is_begun = state.contains_key("direction");
        if is_begun {
            let memory = [("direction", &flat), ("t", &scalar), ("gradient", &flat), ("diagonal", &scalar)];
            expected.extend(memory.map(|(name, shape)| (name.to_string(), shape)));
            for i in 0..steps {
                let parts = [("change", &flat), ("step", &flat), ("inverse", &scalar)];
                expected.extend(parts.map(|(part, shape)| (format!("history.{i}.{part}"), shape)));
            }
        }
        let expected = expected.iter().map(|(name, shape)| (name.as_str(), *shape));
        let missing =
            expected.clone().filter(|(name, _)| !state.contains_key(*name)).map(|(name, _)| name.into()).collect();
        let mismatch = StateMismatch::new(expected, missing, state);
        if !mismatch.is_empty() {
            return Err(mismatch.into_error("load_state_dict"));
        }
        let read_f64 = |name: &str| state[name].try_item::<f64>();
        let flat = |name: &str| ops::copy(&ops::to_dtype(&state[name].detach(), dtype)?);
        let step = |i: usize| {
            let part = |part: &str| format!("history.{i}.{part}");
            Ok((flat(&part("change"))?, flat(&part("step"))?, read_f64(&part("inverse"))?))
        };
        let memory = || {
            Ok(LbfgsMemory {
                direction: flat("direction")?,
                t: read_f64("t")?,
                gradient: flat("gradient")?,
                hessian: Hessian {
                    history: (0..steps).map(step).collect::<Result<_>>()?,
                    diagonal: read_f64("diagonal")?,
                },
            })
        };
        let memory = is_begun.then(memory).transpose()?;
        let count = |name: &str| whole_number("lbfgs", state, name);
        let progress = LbfgsProgress { memory, iterations: count("iterations")?, evaluations: count("evaluations")? };
        let lr = read_f64("lr")?;
        check_lr("load_state_dict", lr)?;
        Ok(StateLoad::default().then(move || {
            self.group.try_set_lr(lr)?;
            *self.progress() = progress;
            Ok(())
        }))
    }
}

/// Returns all gradients concatenated, times a sign; zeros for a parameter that is frozen or has no gradient.
fn flat_gradient(parameters: &[Parameter], sign: f64) -> Result<Tensor> {
    let flat = |p: &Parameter| match p.grad().filter(|_| p.requires_grad()) {
        Some(g) => ops::reshape(&g, [p.size()]),
        None => ops::zeros([p.size()], p.dtype()),
    };
    let parts: Vec<Tensor> = parameters.iter().map(flat).collect::<Result<_>>()?;
    ops::mul(&ops::concatenate(&parts, 0)?, sign)
}

/// Adds t times the matching part of a flat direction to each parameter.
fn advance(parameters: &[Parameter], direction: &Tensor, t: f64) -> Result<()> {
    let mut from = 0;
    for p in parameters {
        let part = ops::reshape(&ops::narrow(direction, 0, from, p.size())?, p.shape())?;
        ops::update(formula!(|p, d; t| p + t * d), &[p], &[&part], &[t.into()])?;
        from += p.size();
    }
    Ok(())
}

fn max_abs(flat: &Tensor) -> Result<f64> {
    if flat.size() == 0 {
        return Ok(0.0);
    }
    ops::max(&ops::abs(flat)?, ..)?.try_item()
}

impl fmt::Debug for Lbfgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters = self.parameters.len();
        f.debug_struct("Lbfgs").field("parameters", &parameters).field("options", &self.options).finish()
    }
}
