//! Packed weights: right factors, in the products of compiled plans, whose values usually do not change between
//! launches.
//!
//! The panels of such a factor are packed at the first launch. All plans that multiply by the same matrix share the
//! panels, which are freed with the last of these plans. Panels are valid for one version of the storage: after a write
//! to it, the next launch packs the factor again.

use crate::operand::Operand;
use pellucid_gemm::{Gemm, OwnedPanels, PackedPanels, Strided, uses_packed_panels};
use pellucid_ir::backend::Storage;
use pellucid_ir::{DType, Layout, Result, lock};
use pellucid_simd::{Element, Isa};
use std::any::Any;
use std::sync::{Arc, Mutex, Weak};

/// The largest number of rows of a product whose right factor is packed beforehand. Packing takes less than 1 % of the
/// time of a product with more rows.
const MAX_ROWS: usize = 1024;

/// The panels of one matrix, in one version of its storage.
pub(crate) struct PackedWeight {
    /// The storage of the matrix. While this weak handle exists, no other storage can have the same address.
    storage: Weak<Storage>,
    version: u64,
    layout: Layout,
    panels: Panels,
}

/// The panels for the dtype of the matrix.
enum Panels {
    F32(OwnedPanels<f32>),
    F64(OwnedPanels<f64>),
}

/// The packed weights of all plans.
static PACKED_WEIGHTS: Mutex<Vec<Weak<PackedWeight>>> = Mutex::new(Vec::new());

/// The packed right factor of a product in a compiled plan, packed at the first launch.
#[derive(Default)]
pub(crate) struct WeightOfProduct(Mutex<Option<Arc<PackedWeight>>>);

impl WeightOfProduct {
    /// Returns an unpacked `WeightOfProduct` for a product of a plan, or `None` if the product cannot use packed panels
    /// of `b` or would not be faster with them. The addresses of the operands are not used.
    pub(crate) fn for_product(a: &Operand<'_>, b: &Operand<'_>, outputs: &[Operand<'_>]) -> Option<WeightOfProduct> {
        let (rank, out) = (a.shape().rank(), outputs.first()?);
        let single = b.shape().iter().rev().skip(2).all(|&len| len == 1);
        let has_adjacent_columns = |o: &Operand<'_>| o.layout.strides().last() == Some(&1);
        if !single || out.shape().size() == 0 || !outputs.iter().all(has_adjacent_columns) {
            return None;
        }
        let (m, k) = (a.shape()[rank - 2], a.shape()[rank - 1]);
        let [.., n] = out.shape()[..] else { return None };
        // `uses_packed_panels` does not depend on the strides of A and B.
        let gemm =
            Gemm { m, n, k, a_strides: (0, 0), b_strides: (0, 0), c_strides: (n as isize, 1), accumulate: false };
        let is_faster = match b.dtype {
            DType::F32 => uses_packed_panels::<f32>(Isa::best(), &gemm),
            DType::F64 => uses_packed_panels::<f64>(Isa::best(), &gemm),
            _ => false,
        };
        (is_faster && out.shape().size() / n <= MAX_ROWS).then(WeightOfProduct::default)
    }

    /// Returns the panels of the current version of the matrix `b`, whose storage the caller has borrowed for reading.
    ///
    /// # Errors
    /// Returns an error if the memory of the panels cannot be allocated.
    pub(crate) fn packed(&self, storage: &Arc<Storage>, b: &Operand<'_>) -> Result<Arc<PackedWeight>> {
        let mut last = lock(&self.0);
        match &*last {
            Some(weight) if weight.is_current_for(storage, b.layout) => Ok(weight.clone()),
            _ => {
                *last = None;
                let weight = PackedWeight::shared(storage, b)?;
                *last = Some(weight.clone());
                Ok(weight)
            }
        }
    }
}

impl PackedWeight {
    /// Returns the panels that another plan has packed, or packs the matrix.
    fn shared(storage: &Arc<Storage>, b: &Operand<'_>) -> Result<Arc<PackedWeight>> {
        let mut weights = lock(&PACKED_WEIGHTS);
        weights.retain(|weight| weight.strong_count() > 0);
        if let Some(found) =
            weights.iter().filter_map(Weak::upgrade).find(|weight| weight.is_current_for(storage, b.layout))
        {
            return Ok(found);
        }
        let panels = match b.dtype {
            DType::F32 => Panels::F32(pack(b)?),
            _ => Panels::F64(pack(b)?),
        };
        let (storage, version) = (Arc::downgrade(storage), storage.version());
        let weight = Arc::new(PackedWeight { storage, version, layout: b.layout.clone(), panels });
        weights.push(Arc::downgrade(&weight));
        Ok(weight)
    }

    fn is_current_for(&self, storage: &Arc<Storage>, layout: &Layout) -> bool {
        std::ptr::addr_eq(self.storage.as_ptr(), Arc::as_ptr(storage))
            && self.version == storage.version()
            && self.layout == *layout
    }

    /// Returns the panels if the matrix has elements of type `T`.
    pub(super) fn panels<T: Element>(&self) -> Option<PackedPanels<T>> {
        let panels: &dyn Any = match &self.panels {
            Panels::F32(panels) => &**panels,
            Panels::F64(panels) => &**panels,
        };
        panels.downcast_ref().copied()
    }
}

/// Packs the matrix B[.., k, n], whose other axes have length 1. `T` is the type of the elements.
fn pack<T: Element>(b: &Operand<'_>) -> Result<OwnedPanels<T>> {
    let (rank, strides) = (b.shape().rank(), b.layout.strides());
    let from = Strided { data: b.first::<T>().get().cast_const(), lane: strides[rank - 1], depth: strides[rank - 2] };
    // SAFETY: *Range*: the operand is in its buffer with all elements that its layout addresses, and the caller of
    // `packed` has borrowed its storage for reading. *Isa*: the processor has `Isa::best()`.
    unsafe { OwnedPanels::new(Isa::best(), from, (b.shape()[rank - 1], b.shape()[rank - 2])) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;
    use crate::operand;
    use pellucid_ir::Shape;
    use pellucid_ir::backend::Backend;

    /// Returns a storage of the `f32` values 0, 1, ..
    fn storage_of_range(count: u8) -> Arc<Storage> {
        let values: Vec<f32> = (0..count).map(f32::from).collect();
        let storage = Cpu.storage(values.len() * 4).unwrap();
        Cpu.upload(bytemuck::cast_slice(&values), &storage).unwrap();
        storage
    }

    fn operand<'a>(storage: &Storage, layout: &'a Layout) -> Operand<'a> {
        let base = operand::cpu_buffer("test", storage).unwrap().ensure().unwrap().as_ptr();
        Operand { base, layout, dtype: DType::F32 }
    }

    fn is_held(storage: &Arc<Storage>) -> bool {
        lock(&PACKED_WEIGHTS)
            .iter()
            .any(|weight| weight.upgrade().is_some_and(|w| w.storage.ptr_eq(&Arc::downgrade(storage))))
    }

    #[test]
    fn plans_share_the_panels_of_a_matrix_until_it_is_written() {
        let storage = storage_of_range(200);
        let layout = Layout::contiguous([10, 20].into());
        let b = operand(&storage, &layout);
        let (first, second) = (WeightOfProduct::default(), WeightOfProduct::default());
        let before = first.packed(&storage, &b).unwrap();
        assert!(Arc::ptr_eq(&before, &second.packed(&storage, &b).unwrap()), "two plans must share the panels");
        let transposed = Layout::contiguous([20, 10].into()).permute(&[1, 0]);
        let other = WeightOfProduct::default().packed(&storage, &operand(&storage, &transposed)).unwrap();
        assert!(!Arc::ptr_eq(&before, &other), "another view of the storage must have other panels");
        assert!(before.panels::<f32>().is_some() && before.panels::<f64>().is_none());
        storage.bump();
        let after = second.packed(&storage, &b).unwrap();
        assert!(!Arc::ptr_eq(&before, &after), "a write must invalidate the panels");
        assert!(Arc::ptr_eq(&after, &first.packed(&storage, &b).unwrap()));
        assert!(is_held(&storage));
        drop((first, second, before, after, other));
        assert!(!is_held(&storage), "the last plan must free the panels");
    }

    #[test]
    fn panels_serve_products_of_several_rows_with_one_matrix() {
        let serves = |a: &[usize], b: &[usize], out: &[usize], dtype| {
            let [a, b, out] = [a, b, out].map(|shape| Layout::contiguous(Shape::from(shape)));
            let operand = |layout| Operand { base: std::ptr::null_mut(), layout, dtype };
            WeightOfProduct::for_product(&operand(&a), &operand(&b), &[operand(&out)]).is_some()
        };
        assert!(serves(&[16, 32], &[32, 48], &[16, 48], DType::F32));
        assert!(serves(&[4, 16, 32], &[32, 48], &[4, 16, 48], DType::F64));
        assert!(serves(&[4, 16, 32], &[1, 32, 48], &[4, 16, 48], DType::F32));
        assert!(!serves(&[4, 16, 32], &[4, 32, 48], &[4, 16, 48], DType::F32), "several matrices");
        assert!(!serves(&[1, 32], &[32, 48], &[1, 48], DType::F32), "one row");
        assert!(!serves(&[16, 32], &[32, 1], &[16, 1], DType::F32), "one column");
        assert!(!serves(&[2048, 32], &[32, 48], &[2048, 48], DType::F32), "more than MAX_ROWS rows");
        assert!(!serves(&[16, 32], &[32, 48], &[16, 48], DType::I64), "integers");
    }
}
