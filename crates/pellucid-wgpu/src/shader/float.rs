//! [`FloatText`]: the arithmetic of a float type as text.

use super::program::type_text;
use pellucid_ir::Compute;

/// The operations of `f32` or `f64` as WGSL, with the functions of the library.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FloatText(pub(crate) Compute);

impl FloatText {
    /// Returns the name of the type.
    pub(crate) fn ty(self) -> &'static str {
        type_text(self.0)
    }

    /// Returns the call of a function of the library or of the translated sources.
    pub(crate) fn call(self, name: &str, args: &[&str]) -> String {
        let prefix = if self.0 == Compute::F64 { "d" } else { "f" };
        format!("{prefix}_{name}({})", args.join(", "))
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

    /// Returns ∞. The compiler of the driver must not see the constant.
    pub(crate) fn infinity(self) -> &'static str {
        if self.0 == Compute::F64 { "vec2<u32>(0u, 0x7ff00000u)" } else { "bitcast<f32>(0x7f800000u ^ zero)" }
    }

    /// Returns −∞.
    pub(crate) fn negative_infinity(self) -> &'static str {
        if self.0 == Compute::F64 { "vec2<u32>(0u, 0xfff00000u)" } else { "bitcast<f32>(0xff800000u ^ zero)" }
    }
}
