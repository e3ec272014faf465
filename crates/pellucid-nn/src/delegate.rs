//! Methods that delegate to another value.

/// Implements methods that delegate to `$target`, such as `[**self]` for a pointer.
macro_rules! delegate {
    ([$target:expr]
        $($(#[$attribute:meta])* fn $method:ident($self:ident: $own:ty $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*
    ) => {$(
        $(#[$attribute])*
        fn $method($self: $own $(, $argument: $type)*) $(-> $result)? {
            $target.$method($($argument),*)
        }
    )*};
}
pub(crate) use delegate;
