//! The equations of one step, forward and backward, on vectors: those of [`Cell`].

use pellucid_ir::kernel::Cell;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::math::Real;
use pellucid_simd::vector::{FloatVector, lanes};
use pellucid_simd::{Float, VectorWork};
use std::ops::Range;

/// The sequences that a step does not leave as they are.
#[derive(Clone, Copy)]
pub(super) struct Active<'a> {
    pub(super) step: usize,
    pub(super) lengths: Option<&'a [i64]>,
}

impl Active<'_> {
    #[inline(always)]
    pub(super) fn contains(&self, row: usize) -> bool {
        self.lengths.is_none_or(|lengths| (self.step as i64) < lengths[row])
    }
}

/// A step of some rows: gates come to what they are, and the next states follow. Arrays are those of the step, whole.
pub(super) struct Forward<'a, T> {
    pub(super) cell: Cell,
    pub(super) width: usize,
    pub(super) rows: Range<usize>,
    pub(super) active: Active<'a>,
    /// Sums of what inputs and states give, `[N, B·H]`.
    pub(super) gates: SharedPtr<T>,
    pub(super) bias: SharedPtr<T>,
    /// The states before the step, as wide as a cell: for [`Cell::Gru`].
    pub(super) before: SharedPtr<T>,
    /// c before and after the step: for [`Cell::Lstm`].
    pub(super) cells: [SharedPtr<T>; 2],
    /// The next states, before they are projected.
    pub(super) after: SharedPtr<T>,
}

/// The way back through a step of some rows.
pub(super) struct Backward<'a, T> {
    pub(super) cell: Cell,
    pub(super) width: usize,
    pub(super) rows: Range<usize>,
    pub(super) active: Active<'a>,
    pub(super) gates: SharedPtr<T>,
    pub(super) before: SharedPtr<T>,
    pub(super) cells: [SharedPtr<T>; 2],
    /// The gradients of the next states, before they were projected.
    pub(super) grads: SharedPtr<T>,
    /// Those of the gates.
    pub(super) to: SharedPtr<T>,
    /// What arrives at the states before the step past the gates: for [`Cell::Gru`].
    pub(super) past: SharedPtr<T>,
    /// The gradients of c after the step, which become those before it: for [`Cell::Lstm`].
    pub(super) carry: SharedPtr<T>,
}

/// Calls a block function for two vectors, one, and a part of one, along a row.
macro_rules! along {
    ($V:ident, $width:expr, $f:path, $at:expr) => {{
        let (at, mut j, all) = ($at, 0, $V::mask($V::LANES));
        while $width - j >= 2 * $V::LANES {
            $f(&at, Block::<$V, 2, true> { j, mask: all });
            j += 2 * $V::LANES;
        }
        while $width - j >= $V::LANES {
            $f(&at, Block::<$V, 1, true> { j, mask: all });
            j += $V::LANES;
        }
        if j < $width {
            $f(&at, Block::<$V, 1, false> { j, mask: $V::mask($width - j) });
        }
    }};
}

impl<T: Float> VectorWork<T> for Forward<'_, T> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        debug_assert!(
            self.active.lengths.is_none_or(|lengths| self.rows.end <= lengths.len()),
            "a length for each row"
        );
        let (h, blocks) = (self.width, self.cell.blocks());
        for row in self.rows.clone().filter(|&row| self.active.contains(row)) {
            let (narrow, wide) = ((row * h) as isize, (row * blocks * h) as isize);
            let at = ForwardRow {
                width: h,
                gates: self.gates.at(wide),
                bias: self.bias.get(),
                before: self.before.at(narrow),
                cells: self.cells.map(|c| c.at(narrow)),
                after: self.after.at(narrow),
            };
            // SAFETY: the caller's; blocks lie within the row.
            unsafe {
                match self.cell {
                    Cell::Tanh => along!(V, h, ForwardRow::tanh, at),
                    Cell::Relu => along!(V, h, ForwardRow::relu, at),
                    Cell::Gru => along!(V, h, ForwardRow::gru, at),
                    Cell::Lstm => along!(V, h, ForwardRow::lstm, at),
                }
            }
        }
    }
}

impl<T: Float> VectorWork<T> for Backward<'_, T> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        debug_assert!(
            self.active.lengths.is_none_or(|lengths| self.rows.end <= lengths.len()),
            "a length for each row"
        );
        let (h, blocks) = (self.width, self.cell.blocks());
        for row in self.rows.clone().filter(|&row| self.active.contains(row)) {
            let (narrow, wide) = ((row * h) as isize, (row * blocks * h) as isize);
            let at = BackwardRow {
                width: h,
                gates: self.gates.at(wide),
                before: self.before.at(narrow),
                cells: self.cells.map(|c| c.at(narrow)),
                grads: self.grads.at(narrow),
                to: self.to.at(wide),
                past: self.past.at(narrow),
                carry: self.carry.at(narrow),
            };
            // SAFETY: the caller's; blocks lie within the row.
            unsafe {
                match self.cell {
                    Cell::Tanh => along!(V, h, BackwardRow::tanh, at),
                    Cell::Relu => along!(V, h, BackwardRow::relu, at),
                    Cell::Gru => along!(V, h, BackwardRow::gru, at),
                    Cell::Lstm => along!(V, h, BackwardRow::lstm, at),
                }
            }
        }
    }
}

/// R vectors of a row from number j on, or, of one vector, the lanes of the mask.
#[derive(Clone, Copy)]
struct Block<V: FloatVector, const R: usize, const WHOLE: bool> {
    j: usize,
    mask: V::Mask,
}

/// R vectors, each an expression of its number; not a closure, which might not be inlined.
macro_rules! each {
    (|$r:ident| $e:expr) => {{
        let mut all = [V::zero(); R];
        for $r in 0..R {
            all[$r] = $e;
        }
        all
    }};
}

impl<V: FloatVector, const R: usize, const WHOLE: bool> Block<V, R, WHOLE> {
    /// # Safety
    /// As for [`Work::run`]; `from` is a row.
    #[inline(always)]
    unsafe fn load(self, from: *const V::Scalar) -> [V; R] {
        // SAFETY: the caller's.
        unsafe {
            let from = from.add(self.j);
            each!(|r| match WHOLE {
                true => V::load(from.add(r * V::LANES)),
                false => V::load_part(from, self.mask),
            })
        }
    }

    /// # Safety
    /// As for [`Work::run`]; `to` is a row.
    #[inline(always)]
    unsafe fn store(self, v: [V; R], to: *mut V::Scalar) {
        // SAFETY: the caller's.
        unsafe {
            let to = to.add(self.j);
            for (r, v) in v.into_iter().enumerate() {
                if WHOLE { v.store(to.add(r * V::LANES)) } else { v.store_part(to, self.mask) }
            }
        }
    }
}

/// # Safety
/// As for [`Work::run`], and all that follow.
#[inline(always)]
unsafe fn sigmoid<V: FloatVector, const R: usize>(mut v: [V; R]) -> [V; R] {
    // One loop over all lanes, so that the compiler keeps them in registers.
    lanes(&mut v).iter_mut().for_each(|x| *x = x.sigmoid());
    v
}

#[inline(always)]
unsafe fn tanh<V: FloatVector, const R: usize>(mut v: [V; R]) -> [V; R] {
    // SAFETY: the caller's; vectors are their numbers.
    unsafe {
        match V::tanh(v) {
            Some(y) => y,
            None => {
                lanes(&mut v).iter_mut().for_each(|x| *x = x.tanh());
                v
            }
        }
    }
}

/// g where y > 0, else 0.
#[inline(always)]
unsafe fn where_positive<V: FloatVector, const R: usize>(mut g: [V; R], mut y: [V; R]) -> [V; R] {
    let (numbers, y) = (lanes(&mut g), lanes(&mut y));
    for (g, y) in numbers.iter_mut().zip(y) {
        *g = if *y > <V::Scalar as Real>::ZERO { *g } else { <V::Scalar as Real>::ZERO };
    }
    g
}

#[inline(always)]
unsafe fn sum<V: FloatVector, const R: usize>(a: [V; R], b: [V; R]) -> [V; R] {
    // SAFETY: the caller's.
    unsafe { each!(|r| a[r].add(b[r])) }
}

#[inline(always)]
unsafe fn product<V: FloatVector, const R: usize>(a: [V; R], b: [V; R]) -> [V; R] {
    // SAFETY: the caller's.
    unsafe { each!(|r| a[r].mul(b[r])) }
}

/// a·b + c
#[inline(always)]
unsafe fn mul_add<V: FloatVector, const R: usize>(a: [V; R], b: [V; R], c: [V; R]) -> [V; R] {
    // SAFETY: the caller's.
    unsafe { each!(|r| a[r].mul_add(b[r], c[r])) }
}

/// 1 − a·b
#[inline(always)]
unsafe fn rest<V: FloatVector, const R: usize>(a: [V; R], b: [V; R]) -> [V; R] {
    // SAFETY: the caller's; a pointer to one number.
    unsafe {
        let one = V::splat(&<V::Scalar as Real>::ONE);
        each!(|r| a[r].neg().mul_add(b[r], one))
    }
}

/// g·y·(1 − y): the gradient before a logistic function that came to y.
#[inline(always)]
unsafe fn through_sigmoid<V: FloatVector, const R: usize>(g: [V; R], y: [V; R]) -> [V; R] {
    // SAFETY: the caller's; a pointer to one number.
    unsafe {
        let one = V::splat(&<V::Scalar as Real>::ONE);
        each!(|r| g[r].mul(y[r]).mul(one.sub(y[r])))
    }
}

/// The arrays of a step at one row.
struct ForwardRow<T> {
    width: usize,
    gates: *mut T,
    bias: *mut T,
    before: *mut T,
    cells: [*mut T; 2],
    after: *mut T,
}

/// # Safety of the methods
/// As for [`Work::run`]; the block lies in the row.
impl<T: Float> ForwardRow<T> {
    /// Block b of the gates, with its bias.
    #[inline(always)]
    unsafe fn gate<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(
        &self,
        at: Block<V, R, W>,
        b: usize,
    ) -> [V; R] {
        // SAFETY: the caller's.
        unsafe { sum(at.load(self.gates.add(b * self.width)), at.load(self.bias.add(b * self.width))) }
    }

    #[inline(always)]
    unsafe fn tanh<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, at: Block<V, R, W>) {
        // SAFETY: the caller's.
        unsafe {
            let y = tanh(self.gate(at, 0));
            at.store(y, self.gates);
            at.store(y, self.after);
        }
    }

    #[inline(always)]
    unsafe fn relu<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, at: Block<V, R, W>) {
        // SAFETY: the caller's; vectors are their numbers.
        unsafe {
            let mut y = self.gate(at, 0);
            lanes(&mut y).iter_mut().for_each(|x| *x = x.max(<T as Real>::ZERO));
            at.store(y, self.gates);
            at.store(y, self.after);
        }
    }

    #[inline(always)]
    unsafe fn gru<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, at: Block<V, R, W>) {
        // SAFETY: the caller's.
        unsafe {
            let (r, z, u) = (sigmoid(self.gate(at, 0)), sigmoid(self.gate(at, 1)), self.gate(at, 3));
            let n = tanh(mul_add(r, u, self.gate(at, 2)));
            let h = at.load(self.before);
            at.store(mul_add(z, each!(|k| h[k].sub(n[k])), n), self.after);
            for (b, v) in [r, z, n, u].into_iter().enumerate() {
                at.store(v, self.gates.add(b * self.width));
            }
        }
    }

    #[inline(always)]
    unsafe fn lstm<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, at: Block<V, R, W>) {
        // SAFETY: the caller's.
        unsafe {
            let (i, f, o) = (sigmoid(self.gate(at, 0)), sigmoid(self.gate(at, 1)), sigmoid(self.gate(at, 3)));
            let g = tanh(self.gate(at, 2));
            let c = mul_add(f, at.load(self.cells[0]), product(i, g));
            at.store(c, self.cells[1]);
            at.store(product(o, tanh(c)), self.after);
            for (b, v) in [i, f, g, o].into_iter().enumerate() {
                at.store(v, self.gates.add(b * self.width));
            }
        }
    }
}

/// The arrays of a step's gradient at one row.
struct BackwardRow<T> {
    width: usize,
    gates: *mut T,
    before: *mut T,
    cells: [*mut T; 2],
    grads: *mut T,
    to: *mut T,
    past: *mut T,
    carry: *mut T,
}

/// # Safety of the methods
/// As for [`Work::run`]; the block lies in the row.
impl<T: Float> BackwardRow<T> {
    /// What block b of the gates came to.
    #[inline(always)]
    unsafe fn gate<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(
        &self,
        at: Block<V, R, W>,
        b: usize,
    ) -> [V; R] {
        // SAFETY: the caller's.
        unsafe { at.load(self.gates.add(b * self.width)) }
    }

    #[inline(always)]
    unsafe fn tanh<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, at: Block<V, R, W>) {
        // SAFETY: the caller's.
        unsafe {
            let y = self.gate(at, 0);
            at.store(product(at.load(self.grads), rest(y, y)), self.to);
        }
    }

    #[inline(always)]
    unsafe fn relu<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, at: Block<V, R, W>) {
        // SAFETY: the caller's.
        unsafe { at.store(where_positive(at.load(self.grads), self.gate(at, 0)), self.to) }
    }

    #[inline(always)]
    unsafe fn gru<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, at: Block<V, R, W>) {
        // SAFETY: the caller's; a pointer to one number.
        unsafe {
            let one = V::splat(&<T as Real>::ONE);
            let [r, z, n, u] = [self.gate(at, 0), self.gate(at, 1), self.gate(at, 2), self.gate(at, 3)];
            let (h, dh) = (at.load(self.before), at.load(self.grads));
            let dn = product(each!(|k| dh[k].mul(one.sub(z[k]))), rest(n, n));
            let dz = product(dh, each!(|k| h[k].sub(n[k])));
            at.store(product(dh, z), self.past);
            let all = [through_sigmoid(product(dn, u), r), through_sigmoid(dz, z), dn, product(dn, r)];
            for (b, v) in all.into_iter().enumerate() {
                at.store(v, self.to.add(b * self.width));
            }
        }
    }

    #[inline(always)]
    unsafe fn lstm<V: FloatVector<Scalar = T>, const R: usize, const W: bool>(&self, at: Block<V, R, W>) {
        // SAFETY: the caller's.
        unsafe {
            let [i, f, g, o] = [self.gate(at, 0), self.gate(at, 1), self.gate(at, 2), self.gate(at, 3)];
            let (dh, y) = (at.load(self.grads), tanh(at.load(self.cells[1])));
            let dc = mul_add(product(dh, o), rest(y, y), at.load(self.carry));
            at.store(product(dc, f), self.carry);
            let all = [
                through_sigmoid(product(dc, g), i),
                through_sigmoid(product(dc, at.load(self.cells[0])), f),
                product(product(dc, i), rest(g, g)),
                through_sigmoid(product(dh, y), o),
            ];
            for (b, v) in all.into_iter().enumerate() {
                at.store(v, self.to.add(b * self.width));
            }
        }
    }
}
