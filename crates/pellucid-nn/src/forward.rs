//! Methods of a pointer that call those of its target.

/// Implements methods of a pointer by those of its target.
macro_rules! forward {
    ($($(#[$attribute:meta])* fn $method:ident($self:ident: $own:ty $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {$(
        $(#[$attribute])*
        fn $method($self: $own $(, $argument: $type)*) -> $result {
            (**$self).$method($($argument),*)
        }
    )*};
}
pub(crate) use forward;
