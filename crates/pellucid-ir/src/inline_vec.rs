//! [`InlineVec`], a vector that stores short lists inline: shapes, strides, the parameters of a kernel.

use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// A list of `Copy` values that stores up to `N` values inline; longer lists are on the heap.
///
/// Every operation copies shapes and parameters and moves structures that contain them. An inline list is copied as one
/// block; a general small vector would be cloned value by value and dropped by a loop.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct InlineVec<T, const N: usize>(Values<T, N>);

#[derive(Clone, Eq)]
enum Values<T, const N: usize> {
    /// The length of the list, and its values, at most `N`.
    Inline(u8, [T; N]),
    Heap(Box<[T]>),
}

impl<T: PartialEq, const N: usize> PartialEq for Values<T, N> {
    #[inline]
    fn eq(&self, other: &Values<T, N>) -> bool {
        match (self, other) {
            // This is an explicit loop, because `==` of slices calls `memcmp` even for a few values.
            (Values::Inline(m, a), Values::Inline(n, b)) => {
                m == n && a.iter().zip(b).take(*m as usize).all(|(a, b)| a == b)
            }
            (Values::Heap(a), Values::Heap(b)) => a == b,
            _ => false,
        }
    }
}

impl<T: Hash, const N: usize> Hash for Values<T, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Values::Inline(len, values) => values[..*len as usize].hash(state),
            Values::Heap(values) => values.hash(state),
        }
    }
}

impl<T: Copy + Default, const N: usize> InlineVec<T, N> {
    /// Creates an empty list.
    #[inline]
    pub fn new() -> InlineVec<T, N> {
        InlineVec::default()
    }

    /// Creates a list of `len` copies of `value`.
    #[inline]
    pub fn repeated(value: T, len: usize) -> InlineVec<T, N> {
        if len <= N {
            let mut inline = [T::default(); N];
            inline[..len].fill(value);
            InlineVec(Values::Inline(len as u8, inline))
        } else {
            InlineVec(Values::Heap(vec![value; len].into()))
        }
    }
}

impl<T: Copy + Default, const N: usize> Default for InlineVec<T, N> {
    #[inline]
    fn default() -> InlineVec<T, N> {
        InlineVec(Values::Inline(0, [T::default(); N]))
    }
}

impl<T, const N: usize> Deref for InlineVec<T, N> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Values::Inline(len, values) => &values[..*len as usize],
            Values::Heap(values) => values,
        }
    }
}

impl<T, const N: usize> DerefMut for InlineVec<T, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Values::Inline(len, values) => &mut values[..*len as usize],
            Values::Heap(values) => values,
        }
    }
}

impl<T: Copy + Default, const N: usize> From<&[T]> for InlineVec<T, N> {
    #[inline]
    fn from(values: &[T]) -> InlineVec<T, N> {
        if values.len() <= N {
            let mut inline = [T::default(); N];
            inline.iter_mut().zip(values).for_each(|(to, from)| *to = *from);
            InlineVec(Values::Inline(values.len() as u8, inline))
        } else {
            InlineVec(Values::Heap(values.into()))
        }
    }
}

impl<T: Copy + Default, const N: usize, const M: usize> From<[T; M]> for InlineVec<T, N> {
    #[inline]
    fn from(values: [T; M]) -> InlineVec<T, N> {
        values.as_slice().into()
    }
}

impl<T: Copy + Default, const N: usize> FromIterator<T> for InlineVec<T, N> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> InlineVec<T, N> {
        let (mut len, mut inline, mut heap) = (0, [T::default(); N], Vec::new());
        for value in values {
            if len < N {
                inline[len] = value;
            } else {
                if len == N {
                    heap.extend_from_slice(&inline);
                }
                heap.push(value);
            }
            len += 1;
        }
        InlineVec(if len <= N { Values::Inline(len as u8, inline) } else { Values::Heap(heap.into()) })
    }
}

impl<T: std::fmt::Debug, const N: usize> std::fmt::Debug for InlineVec<T, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_any_length_are_stored_and_compared() {
        for len in 0..12 {
            let values: Vec<usize> = (1..=len).collect();
            let held: InlineVec<usize, 6> = values.as_slice().into();
            assert_eq!(*held, *values);
            assert_eq!(held, values.iter().copied().collect());
            assert_eq!(held.clone(), held);
            let mut other = InlineVec::repeated(0, len);
            assert!(other.iter().all(|&v| v == 0) && other.len() == len);
            assert!(len == 0 || other != held);
            other.copy_from_slice(&values);
            assert_eq!(other, held);
            assert_ne!(held, InlineVec::repeated(0, len + 1));
        }
    }
}
