//! Bessel functions in `f32`. For orders 0, ±1 and ±2 and on the usual range, they are computed in `f64` without
//! branches. The functions of [`bessel`] compute other orders and operands.
//!
//! The results are rounded once. The error before this rounding is below 10⁻¹², relative to the result, or to the
//! amplitude √(2/πx) where J and Y oscillate.

mod coefficients;

use super::FunctionOfOrder;
use crate::math::bessel;
use crate::math::double::{exp, ln, polynomial, sin_and_cos_fast};
use coefficients::{I_FAR, I_NEAR, J_NEAR, K_FAR, K_NEAR, P, Q, Y_NEAR};
use std::f64::consts::{FRAC_1_PI, FRAC_2_PI};

/// 1/√π.
const FRAC_1_SQRT_PI: f64 = 0.564_189_583_547_756_3;

/// The smallest x at which J, Y and I are computed from their asymptotic forms.
const FAR: f64 = 8.0;

/// The largest x at which sine and cosine are computed without branches.
const TRIG_LIMIT: f32 = 1e8;

/// An order from −2 to 2.
#[derive(Clone, Copy)]
struct LowOrder {
    /// The magnitude of the order.
    n: usize,
    /// −1 for order −1, otherwise 1: J and Y of order −n are (−1)ⁿ times J and Y of order n.
    sign: f64,
}

impl LowOrder {
    /// Returns the order, or `None` unless it is an integer from −2 to 2.
    #[inline(always)]
    fn new(order: f32) -> Option<LowOrder> {
        let n = [0.0, 1.0, 2.0].into_iter().position(|n| n == order.abs())?;
        Some(LowOrder { n, sign: if order == -1.0 { -1.0 } else { 1.0 } })
    }

    /// Returns xⁿ.
    #[inline(always)]
    fn power(self, x: f64) -> f64 {
        let power = if self.n == 1 { x } else { 1.0 };
        if self.n == 2 { x * x } else { power }
    }

    /// Returns the value at x of a function with the parity of its order. y is the value for the order's magnitude at
    /// |x|.
    #[inline(always)]
    fn with_parity(self, is_negative: bool, y: f64) -> f64 {
        let y = y * self.sign;
        if self.n == 1 && is_negative { -y } else { y }
    }
}

/// The asymptotic form of J_n and Y_n.
#[derive(Clone, Copy)]
struct Hankel {
    p: [f64; 9],
    q: [f64; 9],
    /// The coefficients of P·(sin x + cos x) − Q·(sin x − cos x) and of P·(sin x − cos x) + Q·(sin x + cos x).
    phase: [f64; 2],
}

impl Hankel {
    /// Returns the form for order n. `quarter_turns` is n for J_n, and n + 1 for Y_n.
    #[inline(always)]
    fn new(n: usize, quarter_turns: usize) -> Hankel {
        let phase = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]][quarter_turns % 4];
        Hankel { p: P[n], q: Q[n], phase }
    }

    /// Returns the value at x ≥ [`FAR`].
    #[inline(always)]
    fn at(&self, x: f64) -> f64 {
        let z = 1.0 / x;
        let u = z * z;
        let (p, q) = (polynomial(u, self.p), z * polynomial(u, self.q));
        let (sine, cosine) = sin_and_cos_fast(x);
        let (sum, difference) = (sine + cosine, sine - cosine);
        let [even, odd] = self.phase;
        let (even, odd) = (even * p.mul_add(sum, -(q * difference)), odd * p.mul_add(difference, q * sum));
        (even + odd) * (FRAC_1_SQRT_PI * z.sqrt())
    }
}

/// J_n, the Bessel function of the first kind, for |x| < 10⁸.
#[derive(Clone, Copy)]
pub struct BesselJ {
    order: LowOrder,
    near: [f64; 15],
    asymptotic: Hankel,
}

impl FunctionOfOrder for BesselJ {
    #[inline(always)]
    fn of_order(n: f32) -> Option<BesselJ> {
        let order = LowOrder::new(n)?;
        Some(BesselJ { order, near: J_NEAR[order.n], asymptotic: Hankel::new(order.n, order.n) })
    }

    #[inline(always)]
    fn at(&self, x: f32) -> f32 {
        let a = x.abs() as f64;
        let near = polynomial((a * a).mul_add(1.0 / 32.0, -1.0), self.near) * self.order.power(a);
        self.order.with_parity(x.is_sign_negative(), if a < FAR { near } else { self.asymptotic.at(a) }) as f32
    }

    #[inline(always)]
    fn is_rare(x: f32) -> bool {
        x.abs() >= TRIG_LIMIT || x.is_nan()
    }

    #[inline(never)]
    fn exact(n: f32, x: f32) -> f32 {
        bessel::bessel_j(n as f64, x as f64) as f32
    }
}

/// Y_n, the Bessel function of the second kind, for 0 < x < 10⁸.
///
/// For x < 8 it is (2/π)·ln x·J_n(x), plus poles, plus xⁿ times a polynomial in x².
#[derive(Clone, Copy)]
pub struct BesselY {
    order: LowOrder,
    near: [f64; 15],
    near_j: [f64; 15],
    /// The coefficients of 1, 1/x and 1/x².
    poles: [f64; 3],
    asymptotic: Hankel,
}

impl FunctionOfOrder for BesselY {
    #[inline(always)]
    fn of_order(n: f32) -> Option<BesselY> {
        let order = LowOrder::new(n)?;
        let poles = [[0.0; 3], [0.0, -FRAC_2_PI, 0.0], [-FRAC_1_PI, 0.0, -4.0 * FRAC_1_PI]][order.n];
        let asymptotic = Hankel::new(order.n, order.n + 1);
        Some(BesselY { order, near: Y_NEAR[order.n], near_j: J_NEAR[order.n], poles, asymptotic })
    }

    #[inline(always)]
    fn at(&self, x: f32) -> f32 {
        let a = x as f64;
        let t = (a * a).mul_add(1.0 / 32.0, -1.0);
        let (rest, j) = (polynomial(t, self.near), polynomial(t, self.near_j));
        let z = 1.0 / a;
        let smooth = (FRAC_2_PI * ln(a)).mul_add(j, rest) * self.order.power(a);
        let near = smooth + polynomial(z, self.poles);
        self.order.with_parity(false, if a < FAR { near } else { self.asymptotic.at(a) }) as f32
    }

    #[inline(always)]
    fn is_rare(x: f32) -> bool {
        x <= 0.0 || x >= TRIG_LIMIT || x.is_nan()
    }

    #[inline(never)]
    fn exact(n: f32, x: f32) -> f32 {
        bessel::bessel_y(n as f64, x as f64) as f32
    }
}

/// I_n, the modified Bessel function of the first kind, or e^(−|x|)·I_n if SCALED, for finite x.
#[derive(Clone, Copy)]
pub struct BesselI<const SCALED: bool> {
    order: LowOrder,
    near: [f64; 15],
    asymptotic: [f64; 16],
}

impl<const SCALED: bool> FunctionOfOrder for BesselI<SCALED> {
    #[inline(always)]
    fn of_order(n: f32) -> Option<BesselI<SCALED>> {
        let order = LowOrder { sign: 1.0, ..LowOrder::new(n)? };
        Some(BesselI { order, near: I_NEAR[order.n], asymptotic: I_FAR[order.n] })
    }

    #[inline(always)]
    fn at(&self, x: f32) -> f32 {
        let a = x.abs() as f64;
        let near = polynomial((a * a).mul_add(1.0 / 32.0, -1.0), self.near) * self.order.power(a);
        let z = 1.0 / a;
        let asymptotic = polynomial(z.mul_add(16.0, -1.0), self.asymptotic) * z.sqrt();
        let is_near = a < FAR;
        let exponent = if SCALED == is_near { a } else { 0.0 };
        let y = if is_near { near } else { asymptotic } * exp(if SCALED { -exponent } else { exponent });
        self.order.with_parity(x < 0.0, y) as f32
    }

    #[inline(always)]
    fn is_rare(x: f32) -> bool {
        !x.is_finite()
    }

    #[inline(never)]
    fn exact(n: f32, x: f32) -> f32 {
        let f = if SCALED { bessel::bessel_ie } else { bessel::bessel_i };
        f(n as f64, x as f64) as f32
    }
}

/// K_n, the modified Bessel function of the second kind, or eˣ·K_n if SCALED, for x > 0.
///
/// For x ≤ 2 it is (−1)ⁿ⁺¹·ln(x/2)·I_n(x), plus poles, plus xⁿ times a polynomial in x².
#[derive(Clone, Copy)]
pub struct BesselK<const SCALED: bool> {
    order: LowOrder,
    near: [f64; 9],
    near_i: [f64; 15],
    /// The coefficients of 1, 1/x and 1/x².
    poles: [f64; 3],
    asymptotic: [f64; 17],
}

impl<const SCALED: bool> FunctionOfOrder for BesselK<SCALED> {
    #[inline(always)]
    fn of_order(n: f32) -> Option<BesselK<SCALED>> {
        let order = LowOrder::new(n)?;
        let poles = [[0.0; 3], [0.0, 1.0, 0.0], [-0.5, 0.0, 2.0]][order.n];
        Some(BesselK { order, near: K_NEAR[order.n], near_i: I_NEAR[order.n], poles, asymptotic: K_FAR[order.n] })
    }

    #[inline(always)]
    fn at(&self, x: f32) -> f32 {
        let a = x as f64;
        let z = 1.0 / a;
        let square = a * a;
        let i = polynomial(square.mul_add(1.0 / 32.0, -1.0), self.near_i);
        let rest = polynomial(square.mul_add(0.5, -1.0), self.near);
        let log = ln(0.5 * a);
        let smooth = if self.order.n == 1 { log } else { -log }.mul_add(i, rest) * self.order.power(a);
        let near = smooth + polynomial(z, self.poles);
        let asymptotic = polynomial(z.mul_add(4.0, -1.0), self.asymptotic) * z.sqrt();
        let is_near = a <= 2.0;
        let exponent = if SCALED == is_near { a } else { 0.0 };
        (if is_near { near } else { asymptotic } * exp(if SCALED { exponent } else { -exponent })) as f32
    }

    #[inline(always)]
    fn is_rare(x: f32) -> bool {
        x <= 0.0 || x.is_nan()
    }

    #[inline(never)]
    fn exact(n: f32, x: f32) -> f32 {
        let f = if SCALED { bessel::bessel_ke } else { bessel::bessel_k };
        f(n as f64, x as f64) as f32
    }
}
