//! Test cases that are skipped, because Pellucid differs from PyTorch deliberately or the result of PyTorch is wrong.

/// An operation, the key of its case (`g3` for the third order of every case, `s0.g3` for the third order of one), and
/// the reason.
type Difference = (&'static str, &'static str, &'static str);

const DELIBERATE: &[Difference] = &[
    (
        "logcumsumexp",
        "g3",
        "PyTorch returns NaN after a value of 1e4; the derivatives with respect to the negligible elements are 0",
    ),
    ("mean", "e0", "PyTorch rejects the mean of integers; Pellucid returns f32"),
    (
        "nn.functional.normalize",
        "s2",
        "vectors of one element: every derivative is zero, and the derivative of PyTorch is rounding error",
    ),
    (
        "nn.functional.layer_norm",
        "g3",
        "the result of PyTorch is wrong: finite differences of the definition, in 100 digits, agree with Pellucid",
    ),
    ("native_layer_norm", "g3", "the same reason as for nn.functional.layer_norm"),
    ("nn.functional.pdist", "s2.g3", "PyTorch returns NaN; the third derivative of |a − b| is 0"),
    ("neg", "e0", "PyTorch rejects booleans; in Pellucid, booleans count as integers in arithmetic"),
];

/// Returns true for a skipped case, or for an order that is not compared.
pub(crate) fn is_deliberate(operation: &str, key: &str) -> bool {
    DELIBERATE.iter().any(|&(name, case, _)| name == operation && case == key)
}

/// Operations that read values, directly or in their bindings, and therefore fail in a captured step.
const READERS: &[&str] = &[
    "argwhere",
    "bincount",
    "linspace.tensor_overload",
    "logspace.tensor_overload",
    "masked_select",
    "nn.functional.one_hot",
    "nonzero",
    "nonzero_static",
    "repeat_interleave",
    "tensor_split",
    "tril_indices",
    "triu_indices",
    "unique",
    "unique_consecutive",
];

/// Operations that read the values of a boolean mask index.
const MASK_READERS: &[&str] = &["__getitem__", "index_put"];

/// Returns true for an operation that reads values, for arguments with or without a mask.
pub(crate) fn reads(operation: &str, with_mask: bool) -> bool {
    READERS.contains(&operation)
        || operation.contains("_polynomial_")
        || (with_mask && MASK_READERS.contains(&operation))
}
