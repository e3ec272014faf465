//! Scatter: `y[index] = combine(y[index], values)` in place, in row-major order of the values.
//!
//! The order is what makes repeated indices deterministic, so the work is only ever cut along an
//! axis that is not indexed: there, different parts meet different elements of `y`.

use super::{Pairs, check_indices, check_shapes, is_empty, located};
use crate::family::CpuFamily;
use crate::number::{Number, Wide};
use crate::operand::{Array, Operand};
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::{Combine, Index, Scatter};
use pellucid_ir::{DType, Layout, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{GRAIN, SharedPtr, split};
use pellucid_simd::Isa;
use pellucid_simd::math::half::{BF16, F16};
use pellucid_simd::per_isa;
use pellucid_simd::vector::prefetch;

impl CpuFamily for Scatter {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        check_shapes("scatter", &self.index, &outputs[0], &inputs[0], &inputs[1..])
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, values, indices, y) = (self, &inputs[0], &inputs[1..], &outputs[0]);
        check_indices("scatter", &kernel.index, y, indices)?;
        if is_empty(values.shape()) {
            return Ok(());
        }
        let combine = match (kernel.combine, y.dtype) {
            // Of masks, the sum is "or" and the product "and": the larger and the smaller byte.
            (Combine::Add, DType::Bool) => Combine::Max,
            (Combine::Mul, DType::Bool) => Combine::Min,
            (combine, _) => combine,
        };
        let (first, layout, width) = (values.first(), values.layout, y.dtype.size());
        let task = Task { index: &kernel.index, first, layout, indices: &located(indices), width };
        let accumulates = matches!(combine, Combine::Add | Combine::Mul);
        match y.dtype {
            _ if combine == Combine::Set => {
                with_width!(y.dtype.size(), T => task.run(y.layout, y.first(), set::<T>(Isa::best())))
            }
            DType::F16 if accumulates => task.in_f32::<F16>(combine, y)?,
            DType::BF16 if accumulates => task.in_f32::<BF16>(combine, y)?,
            dtype => with_number!(dtype, T => task.combine::<T, T>(combine, y.layout, y.first())),
        }
        Ok(())
    }
}

struct Task<'a> {
    index: &'a Index,
    /// The values, of whatever type.
    first: SharedPtr<u8>,
    layout: &'a Layout,
    indices: &'a [(SharedPtr<i64>, &'a Layout)],
    /// Bytes of an element of y.
    width: usize,
}

/// Combines values with what lies at places of y: `(y, values, places in y, places in values, rest)`.
type Block<S, V> = unsafe fn(*mut S, *const V, &[isize], &[isize], &IndexSpace<2>);

impl<'a> Task<'a> {
    /// Accumulates in `f32`, so that repeated indices round once and not at every step.
    fn in_f32<T: Number<Wide = f32>>(&self, combine: Combine, y: &Operand<'_>) -> Result<()> {
        let wide = CpuBuffer::scratch(y.shape().size() * size_of::<f32>())?;
        let first = SharedPtr(wide.ensure()?.as_ptr().cast::<f32>());
        let layout = Layout::contiguous(y.shape().clone());
        let space = IndexSpace::new(axes(y.shape(), [y.layout, &layout]));
        let steps = space.step();
        let each = |f: &dyn Fn(*mut T, *mut f32)| {
            space.runs(0..space.len(), |at, n| {
                (0..n as isize).for_each(|i| f(y.first().at(at[0] + i * steps[0]), first.at(at[1] + i * steps[1])));
            });
        };
        // SAFETY: the space is that of y and of the scratch array, which is of its shape.
        each(&|narrow, wide| unsafe { *wide = (*narrow).widen() });
        self.combine::<T, f32>(combine, &layout, first);
        // SAFETY: as above.
        each(&|narrow, wide| unsafe { *narrow = T::narrow(*wide) });
        Ok(())
    }

    fn combine<V: Number<Wide = S::Wide>, S: Number>(&self, combine: Combine, layout: &Layout, y: SharedPtr<S>) {
        let isa = Isa::best();
        self.run::<S, V>(
            layout,
            y,
            match combine {
                Combine::Mul => meet::<S, V, Product>(isa),
                Combine::Max => meet::<S, V, Larger>(isa),
                Combine::Min => meet::<S, V, Smaller>(isa),
                _ => meet::<S, V, Sum>(isa),
            },
        );
    }

    /// Runs `block` over everything, in parts along the longest axis that is not indexed.
    fn run<S, V>(&self, layout: &Layout, y: SharedPtr<S>, block: Block<S, V>) {
        let (values, first) = (self.layout, SharedPtr(self.first.get().cast::<V>()));
        let places = self.indices[0].1.shape().rank();
        // The axis in y, and in the values (and, for `Along`, the indices).
        let free = |a: usize| match self.index {
            Index::Along(axis) => (a != *axis).then_some((a, a)),
            Index::Axes(axes) => {
                (!axes.contains(&a)).then(|| (a, places + a - axes.iter().filter(|&&i| i < a).count()))
            }
        };
        let cut = (0..layout.shape().rank()).filter_map(free).max_by_key(|&(_, v)| values.shape()[v]);
        let Some((in_y, in_values)) = cut else {
            return self.part(layout, y, values, first, self.indices, None, block);
        };
        let total = values.shape()[in_values];
        let work = values.shape().size() / total * self.width;
        split(total, GRAIN / work, |range| {
            let moved = |l: &Layout, axis: usize| l.strides()[axis] * range.start as isize;
            let along = matches!(self.index, Index::Along(_));
            let index = |&(first, l): &(SharedPtr<i64>, &'a Layout)| {
                (SharedPtr(first.at(if along { moved(l, in_values) } else { 0 })), l)
            };
            let indices: List<(SharedPtr<i64>, &Layout), 4> = self.indices.iter().map(index).collect();
            let y = SharedPtr(y.at(moved(layout, in_y)));
            let first = SharedPtr(first.at(moved(values, in_values)));
            self.part(layout, y, values, first, &indices, Some((in_y, range.len())), block);
        });
    }

    /// Runs `block` over everything, or over so much of an axis as `cut` says, see [`Pairs::new`].
    fn part<S, V>(
        &self,
        layout: &Layout,
        y: SharedPtr<S>,
        values: &Layout,
        first: SharedPtr<V>,
        indices: &[(SharedPtr<i64>, &Layout)],
        cut: Option<(usize, usize)>,
        block: Block<S, V>,
    ) {
        let pairs = Pairs::new(self.index, layout, values, indices, cut);
        pairs.blocks(0..pairs.places.len(), |in_y, in_values| {
            // SAFETY: the offsets are those of elements of y and the values (`check`), no other
            // part has these elements of y, and the isa is this machine's.
            unsafe { block(y.get(), first.get(), in_y, in_values, &pairs.rest) }
        });
    }
}

/// What becomes of an element that meets a value.
trait Meet {
    fn meet<W: Wide>(there: W, value: W) -> W;
}

macro_rules! meets {
    ($($name:ident: $method:ident),*) => {$(
        struct $name;
        impl Meet for $name {
            #[inline(always)]
            fn meet<W: Wide>(there: W, value: W) -> W {
                there.$method(value)
            }
        }
    )*};
}
meets!(Sum: plus, Product: times, Larger: larger, Smaller: smaller);

per_isa! {
    fn meet[S: Number, V: Number<Wide = S::Wide>, M: Meet][S, V, M](y: *mut S, values: *const V, in_y: &[isize], in_values: &[isize], rest: &IndexSpace<2>) {
        // SAFETY: the caller vouches for the places.
        unsafe { each(y, values, in_y, in_values, rest, #[inline(always)] |y: &mut S, v: &V| *y = S::narrow(M::meet(y.widen(), v.widen()))) }
    }
}

per_isa! {
    fn set[T: Copy][T](y: *mut T, values: *const T, in_y: &[isize], in_values: &[isize], rest: &IndexSpace<2>) {
        // SAFETY: the caller vouches for the places.
        unsafe { each(y, values, in_y, in_values, rest, #[inline(always)] |y: &mut T, v: &T| *y = *v) }
    }
}

/// Bytes of the next row that are asked for.
const AHEAD: usize = 512;

/// Calls `f` for every element of y and the value that it meets, in order.
///
/// # Safety
/// At all places, the rest included, are elements of y and the values, and nobody else uses those of y.
#[inline(always)]
unsafe fn each<S, V: Copy>(
    y: *mut S,
    values: *const V,
    in_y: &[isize],
    in_values: &[isize],
    rest: &IndexSpace<2>,
    f: impl Fn(&mut S, &V),
) {
    debug_assert_eq!(in_y.len(), in_values.len(), "a value for every place");
    let [y_step, v_step] = rest.step();
    for (k, (&place, &in_values)) in in_y.iter().zip(in_values).enumerate() {
        // Where the next value goes nobody can guess, and a row is often a page: its beginning is asked for early.
        if let Some(&next) = in_y.get(k + 1).filter(|_| y_step == 1 && rest.len() * size_of::<S>() >= AHEAD) {
            for line in (0..AHEAD).step_by(64) {
                prefetch(y.wrapping_offset(next).cast::<u8>().wrapping_add(line));
            }
        }
        // SAFETY: the caller's.
        unsafe {
            let (y, values) = (y.offset(place), values.offset(in_values));
            if rest.len() == 1 {
                f(&mut *y, &*values);
            } else if rest.run() == rest.len() && y_step == 1 && v_step == 1 {
                (0..rest.len()).for_each(|i| f(&mut *y.add(i), &*values.add(i)));
            } else if rest.run() == rest.len() && y_step == 1 && v_step == 0 {
                // One value for all, as the gradient of a sum is.
                let value = *values;
                (0..rest.len()).for_each(|i| f(&mut *y.add(i), &value));
            } else {
                rest.runs(0..rest.len(), |at, n| {
                    (0..n as isize)
                        .for_each(|i| f(&mut *y.offset(at[0] + i * y_step), &*values.offset(at[1] + i * v_step)));
                });
            }
        }
    }
}
