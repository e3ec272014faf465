//! Matrix products of cuBLASLt.

use crate::harness::{TestedDevice, device, device_with};
use pellucid_ir::backend::{Backend, Storage, View};
use pellucid_ir::kernel::{Gather, Index, Kernel, MatMul};
use pellucid_ir::plan::{Launch, Plan, SlotView};
use pellucid_ir::{DType, Element, Layout, bf16, f16};
use std::process::Command;
use std::sync::Arc;

/// A product [m, k] times [k, n] that is large enough for the library.
const SIZES: [usize; 3] = [257, 260, 264];

/// Numbers of both signs with few bits, for which products and their sums are exact in `f32`.
fn numbers(len: usize, seed: usize) -> Vec<f64> {
    (0..len).map(|k| ((k * 37 + seed * 11) % 23) as f64 / 8.0 - 1.25).collect()
}

/// A dtype whose values have bytes.
trait NativeBytes: Element {
    fn native_bytes(self) -> Vec<u8>;
}

macro_rules! native_bytes {
    ($($ty:ty),*) => {
        $(impl NativeBytes for $ty {
            fn native_bytes(self) -> Vec<u8> {
                self.to_ne_bytes().into()
            }
        })*
    };
}

native_bytes!(f32, f64, f16, bf16, i64);

fn upload<T: NativeBytes>(device: &TestedDevice, values: &[T], to: &Arc<Storage>) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.native_bytes()).collect();
    device.gpu().upload(&bytes, to).unwrap();
}

fn storage_of<T: NativeBytes>(device: &TestedDevice, values: &[f64]) -> Arc<Storage> {
    let elements: Vec<T> = values.iter().map(|&x| T::from_scalar(x.into())).collect();
    let storage = device.gpu().storage(size_of_val(&*elements)).unwrap();
    upload(device, &elements, &storage);
    storage
}

fn elements<T: Element>(device: &TestedDevice, storage: &Storage) -> Vec<T> {
    let mut bytes = vec![0; storage.buffer().bytes()];
    device.gpu().download(storage, 0, &mut bytes).unwrap();
    T::from_bytes(&bytes)
}

/// Returns the products of the library so far, or `None` on a GPU.
fn products(device: &TestedDevice) -> Option<u64> {
    device.symbols().map(|symbols| symbols.counter("products"))
}

/// Returns `batch` exact products in the order of rows. B is the same for all if `is_shared` is true.
fn reference(a: &[f64], b: &[f64], [m, n, k]: [usize; 3], batch: usize, is_shared: bool) -> Vec<f64> {
    let mut result = vec![0.0; batch * m * n];
    for (row, sums) in result.chunks_exact_mut(n).enumerate() {
        let first = if is_shared { 0 } else { row / m * k * n };
        for (x, b_row) in a[row * k..][..k].iter().zip(b[first..].chunks_exact(n)) {
            sums.iter_mut().zip(b_row).for_each(|(sum, y)| *sum += x * y);
        }
    }
    result
}

/// Multiplies two matrices with these layouts of the factors.
fn multiply<T: Element>(device: &TestedDevice, [a, b]: [(&Storage, &Layout); 2], shape: &[usize]) -> Vec<T> {
    let layout = &Layout::contiguous(shape.into());
    let y = device.gpu().storage(layout.shape().size() * T::DTYPE.size()).unwrap();
    let view = |storage, layout| View { storage, layout, dtype: T::DTYPE };
    let inputs = [view(a.0, a.1), view(b.0, b.1)];
    device.gpu().run(&Kernel::MatMul(MatMul::default()), &inputs, &[view(&y, layout)]).unwrap();
    elements(device, &y)
}

/// Compares a product with the exact one, which is rounded once.
fn check_product<T: NativeBytes + PartialEq>(device: &TestedDevice) {
    let [m, n, k] = SIZES;
    let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
    let (x, w) = (storage_of::<T>(device, &a), storage_of::<T>(device, &b));
    let layouts = [[m, k], [k, n]].map(|shape| Layout::contiguous(shape.into()));
    let before = products(device);
    let found = multiply::<T>(device, [(&x, &layouts[0]), (&w, &layouts[1])], &[m, n]);
    assert_eq!(products(device), before.map(|count| count + 1), "{}: the library must compute the product", T::DTYPE);
    let expected = reference(&a, &b, SIZES, 1, false);
    assert!(found.iter().zip(&expected).all(|(y, &x)| *y == T::from_scalar(x.into())), "{}", T::DTYPE);
}

#[test]
fn the_library_computes_large_products_of_all_float_dtypes() {
    let Some(device) = device() else { return };
    check_product::<f32>(&device);
    check_product::<f64>(&device);
    check_product::<f16>(&device);
    check_product::<bf16>(&device);
}

#[test]
fn products_that_the_library_refuses_are_kernels() {
    for (value, states_reason) in [("missing", true), ("refused", false)] {
        let Some(device) = device_with(&[("products", value)]) else { return };
        if device.symbols().is_none() {
            return;
        }
        let [m, n, k] = SIZES;
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let (x, w) = (storage_of::<f32>(&device, &a), storage_of::<f32>(&device, &b));
        let layouts = [[m, k], [k, n]].map(|shape| Layout::contiguous(shape.into()));
        let before = products(&device);
        for _ in 0..2 {
            let found = multiply::<f32>(&device, [(&x, &layouts[0]), (&w, &layouts[1])], &[m, n]);
            let expected = reference(&a, &b, SIZES, 1, false);
            assert!(found.iter().zip(&expected).all(|(y, &x)| *y == x as f32), "{value}");
        }
        assert_eq!(products(&device), before, "{value}");
        let notice = device.gpu().take_notice();
        assert_eq!(notice.is_some_and(|notice| notice.contains("its own kernels")), states_reason, "{value}");
        assert_eq!(device.gpu().take_notice(), None, "{value}: the reason is stated once");
    }
}

#[test]
fn small_products_and_products_of_integers_are_kernels() {
    let Some(device) = device() else { return };
    let before = products(&device);
    let layout = &Layout::contiguous([127, 127].into());
    let x = storage_of::<f32>(&device, &numbers(127 * 127, 3));
    multiply::<f32>(&device, [(&x, layout); 2], &[127, 127]);
    assert_eq!(products(&device), before);
}

#[test]
fn factors_of_all_layouts_and_batches_have_the_same_product() {
    let Some(device) = device() else { return };
    let [m, n, k] = SIZES;
    let (a, b) = (numbers(2 * m * k, 4), numbers(2 * k * n, 5));
    let (x, w) = (storage_of::<f32>(&device, &a), storage_of::<f32>(&device, &b));
    let plain = |batch, rows, columns| Layout::contiguous([batch, rows, columns].into());
    let expected = |is_shared| reference(&a, &b, SIZES, 2, is_shared).into_iter().map(|x| x as f32).collect::<Vec<_>>();

    let found = multiply::<f32>(&device, [(&x, &plain(2, m, k)), (&w, &plain(2, k, n))], &[2, m, n]);
    assert_eq!(found, expected(false));
    // The first matrix of B stands for both.
    for shared in [plain(1, k, n), Layout::contiguous([k, n].into())] {
        let found = multiply::<f32>(&device, [(&x, &plain(2, m, k)), (&w, &shared)], &[2, m, n]);
        assert_eq!(found, expected(true));
    }
    // Transposed matrices in memory, and an offset that is not aligned.
    let transposed: Vec<f64> = (0..2 * m * k).map(|i| a[i / (m * k) * m * k + i % m * k + i % (m * k) / m]).collect();
    let columns = storage_of::<f32>(&device, &transposed);
    let found =
        multiply::<f32>(&device, [(&columns, &plain(2, k, m).permute(&[0, 2, 1])), (&w, &plain(2, k, n))], &[2, m, n]);
    assert_eq!(found, expected(false));
    let shifted: Vec<f64> = [7.0].into_iter().chain(a.iter().copied()).collect();
    let shifted = storage_of::<f32>(&device, &shifted);
    let layout = Layout::contiguous_from([2, m, k].into(), 1);
    let found = multiply::<f32>(&device, [(&shifted, &layout), (&w, &plain(2, k, n))], &[2, m, n]);
    assert_eq!(found, expected(false));
    // Aligned offsets, which differ.
    let before = products(&device);
    let shifted = |values: &[f64], by: usize, shape: [usize; 3]| {
        let values: Vec<f64> = std::iter::repeat_n(7.0, by).chain(values.iter().copied()).collect();
        (storage_of::<f32>(&device, &values), Layout::contiguous_from(shape.into(), by))
    };
    let (x, w) = (shifted(&a, 64, [2, m, k]), shifted(&b, 192, [2, k, n]));
    let found = multiply::<f32>(&device, [(&x.0, &x.1), (&w.0, &w.1)], &[2, m, n]);
    assert_eq!(found, expected(false));
    assert_eq!(products(&device), before.map(|count| count + 1), "the library must compute the product");
}

/// Returns a plan that gathers rows of slot 0 at the indices of slot 1 to slot 2, and multiplies slot 2 by slot 3 to
/// slot 4.
fn plan() -> Plan {
    let [m, n, k] = SIZES;
    let slot = |slot, shape: &[usize], dtype| SlotView { slot, layout: Layout::contiguous(shape.into()), dtype };
    let float = |k, shape: &[usize]| slot(k, shape, DType::F32);
    let gather = Kernel::Gather(Gather { op: "gather", from_end: true, index: Index::Axes([0].into_iter().collect()) });
    let launches = vec![
        Launch::new(gather, vec![float(0, &[m, k]), slot(1, &[m], DType::I64)], vec![float(2, &[m, k])]),
        Launch::new(
            Kernel::MatMul(MatMul::default()),
            vec![float(2, &[m, k]), float(3, &[k, n])],
            vec![float(4, &[m, n])],
        ),
    ];
    Plan { slots: vec![4 * m * k, 8 * m, 4 * m * k, 4 * k * n, 4 * m * n], launches, ..Plan::default() }
}

#[test]
fn plans_contain_products_and_follow_memory_that_moves() {
    let Some(device) = device() else { return };
    let [m, n, k] = SIZES;
    let (a, b, c) = (numbers(m * k, 6), numbers(k * n, 7), numbers(k * n, 8));
    let indices = |last: i64| (0..m as i64).map(|row| if row + 1 == m as i64 { last } else { row }).collect::<Vec<_>>();
    let upload_indices = |to: &Arc<Storage>, last| upload(&device, &indices(last), to);
    let index = device.gpu().storage(8 * m).unwrap();
    upload_indices(&index, m as i64 - 1);
    let empty = |bytes| device.gpu().storage(bytes).unwrap();
    let mut slots = vec![
        storage_of::<f32>(&device, &a),
        index,
        empty(4 * m * k),
        storage_of::<f32>(&device, &b),
        storage_of::<f32>(&device, &vec![7.0; m * n]),
    ];
    let compiled = device.gpu().prepare(&plan()).unwrap().expect("the plan must be compiled");
    let expected = |b: &[f64]| reference(&a, b, SIZES, 1, false).into_iter().map(|x| x as f32).collect::<Vec<_>>();
    let before = products(&device);
    for _ in 0..2 {
        compiled.run(&slots).unwrap();
        assert_eq!(elements::<f32>(&device, &slots[4]), expected(&b));
    }
    assert_eq!(products(&device), before.map(|count| count + 1), "the graph must contain the product");
    slots[3] = storage_of::<f32>(&device, &c);
    compiled.run(&slots).unwrap();
    assert_eq!(elements::<f32>(&device, &slots[4]), expected(&c));

    // After a failed check, the product changes no slot.
    slots[3] = storage_of::<f32>(&device, &b);
    upload_indices(&slots[1], m as i64);
    compiled.run(&slots).unwrap_err();
    assert_eq!(elements::<f32>(&device, &slots[4]), expected(&c));
    upload_indices(&slots[1], m as i64 - 1);
    compiled.run(&slots).unwrap();
    assert_eq!(elements::<f32>(&device, &slots[4]), expected(&b));
}

/// A product whose factors have more bits than TF32. The test below runs this one in processes with and without the
/// variable that allows TF32.
#[test]
#[ignore = "runs in processes of another test"]
fn product_of_long_factors() {
    let Some(device) = device() else { return };
    let [m, n, k] = SIZES;
    let layouts = [[m, k], [k, n]].map(|shape| Layout::contiguous(shape.into()));
    let x = storage_of::<f32>(&device, &vec![1.0 + 2f64.powi(-20); m * k]);
    let ones = storage_of::<f32>(&device, &vec![1.0; k * n]);
    let found = multiply::<f32>(&device, [(&x, &layouts[0]), (&ones, &layouts[1])], &[m, n]);
    println!("is rounded: {}", found[0] == k as f32);
}

#[test]
fn factors_are_rounded_to_tf32_only_if_it_is_allowed() {
    if device().is_none() {
        return;
    }
    for (value, is_rounded) in [("0", false), ("1", true)] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "products::product_of_long_factors", "--ignored", "--nocapture"])
            .env("PELLUCID_CUDA_TF32", value)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&format!("is rounded: {is_rounded}")), "PELLUCID_CUDA_TF32={value}: {text}");
    }
}
