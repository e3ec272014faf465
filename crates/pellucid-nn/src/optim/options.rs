//! [`options!`]: the table of the options of an optimizer.

/// Defines a struct of options from a table with one row for each option: its documentation, type, default and range.
///
/// The macro adds the default to the documentation of an option. The range is the name of an
/// [`OptionRange`](pellucid_tensor::OptionRange); for a tuple, the indices of the checked elements follow. The macro
/// implements `Default`, and the method `check_ranges(op)`, whose errors name the optimizer `op`, the option and its
/// default.
macro_rules! options {
    (
        $(#[$attribute:meta])*
        $name:ident {
            $($(#[doc = $doc:literal])+ $option:ident: $ty:ty = $default:expr
                $(=> $range:ident $(($($part:tt),+))?)?;)+
        }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $(
                $(#[doc = $doc])+
                #[doc = concat!("Default: `", stringify!($default), "`.")]
                pub $option: $ty,
            )+
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($option: $default),+ }
            }
        }

        impl $name {
            /// Returns an error of `op` for an option outside its range.
            fn check_ranges(&self, op: &'static str) -> pellucid_tensor::Result<()> {
                let defaults = $name::default();
                $($($crate::optim::options::check_option!(op, self, defaults, $option, $range $(, $($part),+)?);)?)+
                Ok(())
            }
        }
    };
}
pub(super) use options;

/// Returns an error from the calling function unless an option, or each listed part of it, is in a range.
macro_rules! check_option {
    ($op:expr, $options:expr, $defaults:expr, $option:ident, $range:ident) => {
        ::pellucid_tensor::OptionRange::$range.check($op, stringify!($option), $options.$option, $defaults.$option)?
    };
    ($op:expr, $options:expr, $defaults:expr, $option:ident, $range:ident, $($part:tt),+) => {
        $(::pellucid_tensor::OptionRange::$range.check(
            $op,
            concat!(stringify!($option), ".", stringify!($part)),
            $options.$option.$part,
            $defaults.$option.$part,
        )?;)+
    };
}
pub(super) use check_option;

/// Implements `name` and the listed methods of [`Rule`](super::Rule). `lr`, `maximize` and `momentum` return the
/// options of these names (no momentum if it is 0), `betas` implements `momentum`, whose value is β₁, `weight_decay`
/// implements `without_decay`, `check` checks only the ranges of the table, and `step_clock` implements a clock that
/// counts the steps.
macro_rules! rule_methods {
    ($name:literal: $($method:ident),+) => {
        fn name(&self) -> &'static str {
            $name
        }
        $($crate::optim::options::rule_methods!(@ $method);)+
    };
    (@ check) => {
        fn check(&self) -> pellucid_tensor::Result<()> {
            self.check_ranges(self.name())
        }
    };
    (@ lr) => {
        fn lr(&self) -> f64 {
            self.lr
        }
    };
    (@ betas) => {
        fn momentum(&self) -> Option<$crate::optim::Momentum> {
            Some($crate::optim::Momentum::Mean(self.betas.0))
        }
    };
    (@ momentum) => {
        fn momentum(&self) -> Option<$crate::optim::Momentum> {
            (self.momentum > 0.0).then_some($crate::optim::Momentum::Kept(self.momentum))
        }
    };
    (@ maximize) => {
        fn maximize(&self) -> bool {
            self.maximize
        }
    };
    (@ step_clock) => {
        fn clock(&self) -> Vec<(&'static str, f64)> {
            vec![("step", 0.0)]
        }
    };
    (@ weight_decay) => {
        fn without_decay(&self) -> Option<Self> {
            Some(Self { weight_decay: 0.0, ..*self })
        }
    };
}
pub(super) use rule_methods;
