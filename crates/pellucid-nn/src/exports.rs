//! The macro that re-exports the public layers, losses and optimizers, and lists their names.

/// Re-exports types, and lists the names before `and` in a constant. Tests compare the constant with the types that
/// they cover, so they fail for a listed type that no test covers. A type that is not listed cannot be named outside
/// its module.
macro_rules! exports {
    (
        $(#[$doc:meta])*
        $list:ident:
        $($module:ident::{$($name:ident),* $(,)?} $(and {$($other:ident),* $(,)?})?;)*
    ) => {
        $(pub use $module::{$($name,)* $($($other),*)?};)*

        $(#[$doc])*
        #[doc(hidden)]
        pub const $list: &[&str] = &[$($(stringify!($name),)*)*];
    };
}
pub(crate) use exports;
