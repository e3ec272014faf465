//! The bits of every operation: `bits.txt` has a hash of the results and gradients of each row. They are equal on every
//! processor and instruction set, so the list detects a processor with different results, and a change of any bit.
//! `UPDATE_BITS=1 cargo test -p pellucid-tensor --test suite -- table::bits` writes the list.

use super::data::{Stream, operands, tensor, values};
use super::nd::Nd;
use super::row::{Case, Gradient, Row};
use super::rows;
use pellucid_tensor::{DType, Generator, GradOptions, Result, Tensor, grad};
use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

/// Operations that compute their elements by functions of the C library, whose last bits depend on its version.
const HOST_FUNCTIONS: [&str; 3] = ["geomspace", "logspace", "signal_window"];

/// The 64-bit FNV-1a hash of a sequence of words.
struct Hash(u64);

impl Hash {
    fn add(&mut self, word: u64) {
        for byte in word.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Adds dtype, shape and elements of a tensor. All NaNs are equal, because their payload is unspecified.
    fn add_tensor(&mut self, x: &Tensor) {
        let dtype = DType::ALL.iter().position(|d| *d == x.dtype()).expect("the list must have all dtypes");
        self.add(dtype as u64);
        x.shape().iter().for_each(|&length| self.add(length as u64));
        values(x).into_iter().for_each(|v| self.add(if v.is_nan() { u64::MAX } else { v.to_bits() }));
    }
}

/// Returns the gradients of the number inputs for random gradients of the outputs.
fn gradients(row: &Row, case: &Case, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let track = |(i, t): (usize, &Tensor)| t.detach().requires_grad_(case.inputs[i].is_number());
    let leaves: Vec<Tensor> = inputs.iter().enumerate().map(track).collect();
    let outputs: Vec<Tensor> = (case.call)(&leaves)?.into_iter().filter(Tensor::requires_grad).collect();
    let mut stream = Stream::new(row.name);
    let mut weight = |y: &Tensor| Some(tensor(&Nd::from_fn(y.shape(), |_| stream.next()), y.dtype()));
    let grad_outputs = outputs.iter().map(&mut weight).collect();
    let wanted: Vec<&Tensor> = leaves.iter().filter(|x| x.requires_grad()).collect();
    grad(&outputs.iter().collect::<Vec<_>>(), &wanted, GradOptions { grad_outputs, ..Default::default() })
}

/// Returns the hash of a row: of the results of all cases in three dtypes, and of the gradients in `f32`.
fn hash(row: &Row) -> Result<u64> {
    let _random = Generator::new(7).scope();
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    for case in &row.cases {
        let is_defined = |dtype: &DType| row.rules.iter().all(|rule| rule.result(*dtype).is_some());
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::I32].into_iter().filter(is_defined) {
            if !case.dtypes && !matches!(dtype, DType::F32 | DType::F64) {
                continue;
            }
            let (_, inputs) = operands(row.name, case, &[dtype]);
            (case.call)(&inputs)?.iter().for_each(|y| hash.add_tensor(y));
            let has_gradient = !case.values_only && row.gradient != Gradient::Untracked && dtype == DType::F32;
            if has_gradient && case.inputs.iter().any(|input| input.is_number()) {
                gradients(row, case, &inputs)?.iter().for_each(|g| hash.add_tensor(g));
            }
        }
    }
    Ok(hash.0)
}

#[test]
fn every_operation_has_the_same_bits_on_every_processor() {
    let mut found = BTreeMap::new();
    let is_listed = |row: &&Row| !HOST_FUNCTIONS.contains(&row.name);
    for row in rows::all().iter().filter(is_listed) {
        let hash = hash(row).unwrap_or_else(|error| panic!("{}: {error}", row.name));
        found.insert(row.name.to_string(), format!("{hash:016x}"));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/table/bits.txt");
    if env::var_os("UPDATE_BITS").is_some() {
        let list: String = found.iter().map(|(name, hash)| format!("{hash} {name}\n")).collect();
        return fs::write(path, list).expect("writing the list of hashes must succeed");
    }
    let list = fs::read_to_string(path).expect("the list of hashes must be readable");
    let expected: BTreeMap<String, String> =
        list.lines().filter_map(|line| line.split_once(' ')).map(|(hash, name)| (name.into(), hash.into())).collect();
    let differs = |name: &&String| found.get(*name) != expected.get(*name);
    let wrong: Vec<&String> = found.keys().chain(expected.keys()).filter(differs).collect();
    assert!(wrong.is_empty(), "the bits of these operations must be those of bits.txt (see its module): {wrong:?}");
}
