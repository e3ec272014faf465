//! Implementations of [`Module`] for collections, pointers, tuples, plain values and options of operations.

use crate::module::Module;
use crate::visit::{ModulePart, Visitor};
use pellucid_tensor::ops::{AvgPoolDivisor, InterpolationMode, PaddingMode, PoolOptions, Resize, ScatterReduceOp};
use pellucid_tensor::{DType, Device, Scalar, Shape};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

impl<M: Module> Module for [M] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (index, part) in self.iter().enumerate() {
            visitor.field(index, part);
        }
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(part) = self {
            part.visit(visitor);
        }
    }
}

impl<M: Module> Module for OnceLock<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(part) = self.get() {
            part.visit(visitor);
        }
    }
}

/// Modules by name; [`ModuleDict`](crate::ModuleDict) keeps the order of insertion instead.
impl<K: Display + Send + Sync, M: Module> Module for BTreeMap<K, M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (name, part) in self {
            visitor.field(name, part);
        }
    }
}

/// Modules by name, in sorted order, since the order of a `HashMap` differs from run to run.
impl<K: Display + Ord + Send + Sync, M: Module, S: Send + Sync> Module for HashMap<K, M, S> {
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
        impl<M: Module + ?Sized> Module for $pointer {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                (**self).visit(visitor);
            }
        }
    )*};
}
pointers!(Box<M>, Arc<M>, &M, &mut M);

// Plain values have no parameters; they are shown in the text of a model.
macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Module for $t {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                visitor.part(ModulePart::Setting(self));
            }
        }
    )*};
}
plain!(bool, char, u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64);
plain!(String, &'static str, DType, Device, Shape, Scalar);
plain!(AvgPoolDivisor, PaddingMode, Resize, InterpolationMode, ScatterReduceOp);

impl Module for PoolOptions {
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

impl Module for () {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

impl<T: ?Sized + Send + Sync> Module for PhantomData<T> {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

macro_rules! tuples {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Module),*> Module for ($($name,)*) {
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
