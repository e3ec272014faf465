//! Implementations of [`Module`] and [`Visit`] for collections, pointers, tuples, plain values and options of
//! operations.

use crate::module::Module;
use crate::visit::{ModulePart, Visit, Visitor};
use pellucid_tensor::ops::{AvgPoolDivisor, InterpolationMode, PaddingMode, PoolOptions, Resize, ScatterReduceOp};
use pellucid_tensor::{DType, Device, Scalar, Shape};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

impl<M: Visit> Visit for [M] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (index, part) in self.iter().enumerate() {
            visitor.field(index, part);
        }
    }
}

impl<M: Visit> Visit for Vec<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }
}

impl<M: Visit, const N: usize> Visit for [M; N] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }
}

impl<M: Visit> Visit for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(part) = self {
            part.visit(visitor);
        }
    }
}

impl<M: Visit> Visit for OnceLock<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(part) = self.get() {
            part.visit(visitor);
        }
    }
}

/// Modules by name; [`ModuleDict`](crate::ModuleDict) keeps the order of insertion instead.
impl<K: Display + Send + Sync, M: Visit> Visit for BTreeMap<K, M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (name, part) in self {
            visitor.field(name, part);
        }
    }
}

/// Modules by name, in sorted order, since the order of a `HashMap` differs from run to run.
impl<K: Display + Ord + Send + Sync, M: Visit, S: Send + Sync> Visit for HashMap<K, M, S> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        let mut parts: Vec<(&K, &M)> = self.iter().collect();
        parts.sort_unstable_by_key(|(name, _)| *name);
        for (name, part) in parts {
            visitor.field(name, part);
        }
    }
}

// A pointer to a module adds no part to the names of parameters.
macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<M: Visit + ?Sized> Visit for $pointer {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                (**self).visit(visitor);
            }
        }
    )*};
}
pointers!(Box<M>, Arc<M>, &M, &mut M);

/// Collections and pointers of modules are modules.
macro_rules! modules {
    ($([$($generics:tt)*] $module:ty;)*) => {$(
        impl<$($generics)*> Module for $module {}
    )*};
}
modules! {
    [M: Module] [M];
    [M: Module] Vec<M>;
    [M: Module, const N: usize] [M; N];
    [M: Module] Option<M>;
    [M: Module] OnceLock<M>;
    [K: Display + Send + Sync, M: Module] BTreeMap<K, M>;
    [K: Display + Ord + Send + Sync, M: Module, S: Send + Sync] HashMap<K, M, S>;
    [M: Module + ?Sized] Box<M>;
    [M: Module + ?Sized] Arc<M>;
    [M: Module + ?Sized] &M;
    [M: Module + ?Sized] &mut M;
    [] ();
}

// Plain values have no parameters; they are printed with the model.
macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Visit for $t {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                visitor.part(ModulePart::Setting(self));
            }
        }
    )*};
}
plain!(bool, char, u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64);
plain!(String, &'static str, DType, Device, Shape, Scalar);
plain!(AvgPoolDivisor, PaddingMode, Resize, InterpolationMode, ScatterReduceOp);

impl Visit for PoolOptions {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.setting("size", &self.size);
        if let Some(stride) = &self.stride {
            visitor.setting("stride", stride);
        }
        visitor.setting("padding", &self.padding);
        visitor.setting("dilation", &self.dilation);
        if self.ceil {
            visitor.setting("ceil", &self.ceil);
        }
    }
}

impl Visit for () {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

impl<T: ?Sized + Send + Sync> Visit for PhantomData<T> {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

macro_rules! tuples {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Module),*> Module for ($($name,)*) {}

        impl<$($name: Visit),*> Visit for ($($name,)*) {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                $(visitor.field($index, &self.$index);)*
            }
        }
    };
}
tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
