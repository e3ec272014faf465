//! Types, constants and the arithmetic of floats in WGSL.
//!
//! `i32` and `f32` are the WGSL types of these names, and a mask is a `bool`. An `i64` is a `vec2<u32>` whose x is the
//! lower word. An `f64` is the `vec2<u32>` of its bits; its arithmetic uses integers, so every adapter supports it.

use super::template::named_value;
use super::{ShaderBuilder, has_function};
use pellucid_ir::Compute;

/// Returns the WGSL type of a compute type.
pub(crate) fn wgsl_type(compute: Compute) -> &'static str {
    match compute {
        Compute::Mask => "bool",
        Compute::I32 => "i32",
        Compute::I64 | Compute::F64 => "vec2<u32>",
        Compute::F32 => "f32",
    }
}

/// Returns the number of words of a value.
pub(crate) fn words(compute: Compute) -> usize {
    compute.size().div_ceil(4)
}

/// Returns the expression of a value from its words. `word` returns the expression of each word.
pub(crate) fn value_of_words(compute: Compute, word: impl Fn(usize) -> String) -> String {
    match compute {
        Compute::Mask => format!("({} != 0u)", word(0)),
        Compute::I32 => format!("bitcast<i32>({})", word(0)),
        Compute::F32 => format!("bitcast<f32>({})", word(0)),
        Compute::I64 | Compute::F64 => format!("vec2<u32>({}, {})", word(0), word(1)),
    }
}

/// Returns the expression that converts an unsigned word to an `i64`.
pub(crate) fn i64_from_word(word: &str) -> String {
    format!("vec2<u32>({word}, 0u)")
}

/// Returns a literal of 64 bits as a pair of words.
pub(crate) fn u64_literal(bits: u64) -> String {
    format!("vec2<u32>({:#x}u, {:#x}u)", bits as u32, bits >> 32)
}

/// Returns the prefix of the library functions of a float type.
pub(crate) fn float_prefix(compute: Compute) -> &'static str {
    if compute == Compute::F64 { "d" } else { "f" }
}

/// The operations of `f32` or `f64` as WGSL, with the functions of the library.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WgslFloat(pub(crate) Compute);

impl WgslFloat {
    /// Returns the name of the type.
    pub(crate) fn ty(self) -> &'static str {
        wgsl_type(self.0)
    }

    /// Returns the call of a function of the library or of the translated sources.
    pub(crate) fn call(self, name: &str, args: &[&str]) -> String {
        format!("{}_{name}({})", float_prefix(self.0), args.join(", "))
    }

    /// Returns a + b.
    pub(crate) fn add(self, a: &str, b: &str) -> String {
        self.call("add", &[a, b])
    }

    /// Returns a − b.
    pub(crate) fn sub(self, a: &str, b: &str) -> String {
        self.call("sub", &[a, b])
    }

    /// Returns a·b.
    pub(crate) fn mul(self, a: &str, b: &str) -> String {
        self.call("mul", &[a, b])
    }

    /// Returns a·b + c, rounded once.
    pub(crate) fn mul_add(self, a: &str, b: &str, c: &str) -> String {
        self.call("fma", &[a, b, c])
    }

    /// Returns 0.
    pub(crate) fn zero(self) -> &'static str {
        if self.0 == Compute::F64 { "vec2<u32>(0u, 0u)" } else { "0.0" }
    }

    /// Returns 1.
    pub(crate) fn one(self) -> &'static str {
        if self.0 == Compute::F64 { "vec2<u32>(0u, 0x3ff00000u)" } else { "1.0" }
    }

    /// Returns ∞ as an expression. In `f32` it is not a constant expression, because WGSL rejects infinite constants.
    pub(crate) fn infinity(self) -> &'static str {
        if self.0 == Compute::F64 { "vec2<u32>(0u, 0x7ff00000u)" } else { "bitcast<f32>(0x7f800000u ^ zero)" }
    }

    /// Returns −∞.
    pub(crate) fn negative_infinity(self) -> &'static str {
        if self.0 == Compute::F64 { "vec2<u32>(0u, 0xfff00000u)" } else { "bitcast<f32>(0xff800000u ^ zero)" }
    }

    /// Adds the lines of a template. In addition to `values`, the template can use the constants of the type, and calls
    /// of functions: `$add($zero, x)`.
    pub(crate) fn template(self, shader: &mut ShaderBuilder, source: &str, values: &[(&str, &str)]) {
        shader.fill_template(source, |name| {
            let constant = match name {
                "real" => self.ty(),
                "zero" => self.zero(),
                "one" => self.one(),
                "infinity" => self.infinity(),
                "negative_infinity" => self.negative_infinity(),
                _ => "",
            };
            let function = || Some(format!("{}_{name}", float_prefix(self.0))).filter(|name| has_function(name));
            let constant = Some(constant.to_string()).filter(|constant| !constant.is_empty());
            named_value(values, name).or(constant).or_else(function)
        });
    }
}
