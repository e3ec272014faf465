//! Methods that call those of another value.

/// Implements methods by those of `$target`, such as `[**self]` for a pointer.
macro_rules! forward {
    ([$target:expr]
        $($(#[$attribute:meta])* fn $method:ident($self:ident: $own:ty $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*
    ) => {$(
        $(#[$attribute])*
        fn $method($self: $own $(, $argument: $type)*) $(-> $result)? {
            $target.$method($($argument),*)
        }
    )*};
}
pub(crate) use forward;
