//! [`Integer`] and [`from_integers!`](crate::from_integers): the integer types in which users write shapes, axes and
//! counts.

/// An integer type in which users write lengths, axes and counts.
pub trait Integer: Copy {
    /// Returns the number as `isize`. A number outside the range of `isize` becomes the nearest limit.
    fn to_isize(self) -> isize;
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Integer for $t {
            #[inline]
            fn to_isize(self) -> isize {
                #[allow(unused_comparisons)]
                isize::try_from(self).unwrap_or(if self < 0 { isize::MIN } else { isize::MAX })
            }
        }
    )*};
}
integers!(isize, usize, i32, i64, u32, u64);

/// Implements `From` for one integer (`2`) and for lists of integers: `[2, 3]`, `(2, 3)`, slices, vectors and `()`, the
/// empty list. `number` is a function that converts one `isize` to the target type, and `list` a function that converts
/// an iterator of `isize` values.
#[doc(hidden)]
#[macro_export]
macro_rules! from_integers {
    ($target:ty, number: $number:expr, list: $list:expr) => {
        $crate::from_integers!(@numbers $target, $number; isize usize i32 i64 u32 u64);

        impl<T: $crate::Integer, const N: usize> From<[T; N]> for $target {
            #[inline]
            fn from(list: [T; N]) -> Self {
                $list(list.into_iter().map(T::to_isize))
            }
        }
        impl<T: $crate::Integer> From<&[T]> for $target {
            #[inline]
            fn from(list: &[T]) -> Self {
                $list(list.iter().copied().map(T::to_isize))
            }
        }
        impl<T: $crate::Integer, const N: usize> From<&[T; N]> for $target {
            #[inline]
            fn from(list: &[T; N]) -> Self {
                Self::from(&list[..])
            }
        }
        impl<T: $crate::Integer> From<Vec<T>> for $target {
            #[inline]
            fn from(list: Vec<T>) -> Self {
                Self::from(&list[..])
            }
        }
        impl<T: $crate::Integer> From<&Vec<T>> for $target {
            #[inline]
            fn from(list: &Vec<T>) -> Self {
                Self::from(&list[..])
            }
        }
        impl From<()> for $target {
            #[inline]
            fn from((): ()) -> Self {
                $list(std::iter::empty())
            }
        }
        $crate::from_integers!(@tuples $target, $list; {A} {A B} {A B C} {A B C D} {A B C D E} {A B C D E F});
    };

    (@numbers $target:ty, $number:expr; $($t:ty)*) => {$(
        impl From<$t> for $target {
            #[inline]
            fn from(number: $t) -> Self {
                $number($crate::Integer::to_isize(number))
            }
        }
    )*};

    (@tuples $target:ty, $list:expr; $({$($name:ident)+})*) => {$(
        impl<$($name: $crate::Integer),+> From<($($name,)+)> for $target {
            #[inline]
            #[allow(non_snake_case)]
            fn from(($($name,)+): ($($name,)+)) -> Self {
                $list([$($crate::Integer::to_isize($name)),+].into_iter())
            }
        }
    )*};
}
