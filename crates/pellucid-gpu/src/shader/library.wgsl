// The functions that generated shaders call. `library_for` copies only the functions that a shader uses, so each
// function starts at the beginning of a line and ends with a line that contains only a closing brace.
//
// Prefixes: `f_` for f32, `i_` for i32, `l_` for 64-bit integers in two words (x is the lower word), `h_` for bit
// patterns of half precision, `d_` for bit patterns of double precision in two words, `t_` for sums of two f32.

// Returns x unchanged. The compiler of the driver cannot see that `zero` is 0, so it neither contracts a product and a
// sum to one operation nor reassociates sums.
fn keep(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ zero);
}

fn f_add(a: f32, b: f32) -> f32 {
    return keep(a + b);
}

fn f_sub(a: f32, b: f32) -> f32 {
    return keep(a - b);
}

fn f_mul(a: f32, b: f32) -> f32 {
    return keep(a * b);
}

fn f_div(a: f32, b: f32) -> f32 {
    return keep(a / b);
}

fn f_recip(x: f32) -> f32 {
    return keep(1.0 / x);
}

fn f_neg(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ 0x80000000u);
}

fn f_abs(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0x7fffffffu);
}

fn f_copysign(x: f32, s: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(s) & 0x80000000u));
}

fn f_is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn f_is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

// Maps floats other than NaN to integers in the same order; both zeros map to 0.
fn f_order(x: f32) -> i32 {
    let bits = bitcast<i32>(x);
    return select(bits, -(bits & 0x7fffffff), bits < 0);
}

fn f_lt(a: f32, b: f32) -> bool {
    return f_order(a) < f_order(b) && !f_is_nan(a) && !f_is_nan(b);
}

fn f_le(a: f32, b: f32) -> bool {
    return f_order(a) <= f_order(b) && !f_is_nan(a) && !f_is_nan(b);
}

fn f_eq(a: f32, b: f32) -> bool {
    return f_order(a) == f_order(b) && !f_is_nan(a) && !f_is_nan(b);
}

fn f_max(a: f32, b: f32) -> f32 {
    return select(b, a, f_lt(b, a) || f_is_nan(a));
}

fn f_min(a: f32, b: f32) -> f32 {
    return select(b, a, f_lt(a, b) || f_is_nan(a));
}

fn f_signum(x: f32) -> f32 {
    let magnitude = bitcast<u32>(x) & 0x7fffffffu;
    return select(f_copysign(1.0, x), x, magnitude == 0u || magnitude > 0x7f800000u);
}

// A magnitude of 2^23 or more is an integer, infinite or NaN.
fn f_floor(x: f32) -> f32 {
    return select(f_copysign(floor(x), x), x, (bitcast<u32>(x) & 0x7fffffffu) >= 0x4b000000u);
}

fn f_ceil(x: f32) -> f32 {
    return select(f_copysign(ceil(x), x), x, (bitcast<u32>(x) & 0x7fffffffu) >= 0x4b000000u);
}

fn f_trunc(x: f32) -> f32 {
    return select(f_copysign(trunc(x), x), x, (bitcast<u32>(x) & 0x7fffffffu) >= 0x4b000000u);
}

fn f_round(x: f32) -> f32 {
    return select(f_copysign(round(x), x), x, (bitcast<u32>(x) & 0x7fffffffu) >= 0x4b000000u);
}

fn f_sqrt(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7fffffffu) == 0u || bits == 0x7f800000u || f_is_nan(x)) {
        return x;
    }
    if (bits >= 0x80000000u) {
        return bitcast<f32>(0x7fc00000u ^ zero);
    }
    return keep(sqrt(x));
}

// Returns the upper 12 bits of the significand.
fn f_upper(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}

// Returns a + b and its rounding error (Knuth 1969).
fn f_two_sum(a: f32, b: f32) -> vec2<f32> {
    let s = keep(a + b);
    let t = keep(s - a);
    return vec2<f32>(s, keep(keep(a - keep(s - t)) + keep(b - t)));
}

// Returns the product of a and b and its rounding error (Dekker 1971); the factors are split by their bits.
fn f_two_product(a: f32, b: f32) -> vec2<f32> {
    let p = keep(a * b);
    let ah = f_upper(a);
    let al = keep(a - ah);
    let bh = f_upper(b);
    let bl = keep(b - bh);
    let e = keep(keep(keep(ah * bh) - p) + keep(ah * bl));
    return vec2<f32>(p, keep(keep(e + keep(al * bh)) + keep(al * bl)));
}

// Returns a b + c rounded once, if neither the product nor its error leaves the range of f32. The small terms are added
// with rounding to odd (Boldo & Melquiond 2008).
fn f_fma_in_range(a: f32, b: f32, c: f32) -> f32 {
    let u = f_two_product(a, b);
    let t = f_two_sum(c, u.y);
    let v = f_two_sum(u.x, t.x);
    let w = f_two_sum(t.y, v.y);
    var bits = bitcast<u32>(w.x);
    if ((bitcast<u32>(w.y) & 0x7fffffffu) != 0u && (bits & 1u) == 0u) {
        let away = ((bits ^ bitcast<u32>(w.y)) & 0x80000000u) == 0u;
        bits = select(bits - 1u, bits + 1u, away);
    }
    return keep(v.x + bitcast<f32>(bits));
}

// Returns a b + c rounded once, without a fused instruction.
fn f_fma_by_parts(a: f32, b: f32, c: f32) -> f32 {
    let ea = (bitcast<u32>(a) >> 23u) & 255u;
    let eb = (bitcast<u32>(b) >> 23u) & 255u;
    let ec = (bitcast<u32>(c) >> 23u) & 255u;
    if (ec == 255u && ea != 255u && eb != 255u) {
        return c;
    }
    // The exponents have a bias of 127. From an exponent of 130 on, the product overflows for every finite c.
    if (ea == 255u || eb == 255u || ea == 0u || eb == 0u) {
        return keep(keep(a * b) + c);
    }
    if (ea + eb >= 384u) {
        return keep(a * b);
    }
    let swap = ea < eb;
    let big = select(a, b, swap);
    let small = select(b, a, swap);
    // 5.421010862427522e-20 is 2^-64.
    if (ea + eb < 194u) {
        if (ec >= 187u) {
            return c;
        }
        let y = f_fma_in_range(big, keep(small * 18446744073709551616.0), keep(c * 18446744073709551616.0));
        return keep(y * 5.421010862427522e-20);
    }
    if (ea + eb > 350u || ec > 250u) {
        let y = f_fma_in_range(keep(big * 5.421010862427522e-20), small, keep(c * 5.421010862427522e-20));
        return keep(y * 18446744073709551616.0);
    }
    return f_fma_in_range(a, b, c);
}

// Returns the remainder of the truncated division a / b, which is exact.
fn f_fmod(a: f32, b: f32) -> f32 {
    let nan = bitcast<f32>(0x7fc00000u ^ zero);
    let x = bitcast<u32>(a) & 0x7fffffffu;
    let y = bitcast<u32>(b) & 0x7fffffffu;
    if (x >= 0x7f800000u || y > 0x7f800000u || y == 0u) {
        return nan;
    }
    if (x < y) {
        return a;
    }
    var ex = i32(x >> 23u);
    var ey = i32(y >> 23u);
    var mx = x & 0x7fffffu;
    var my = y & 0x7fffffu;
    if (ex == 0) {
        ex = 1;
    } else {
        mx = mx | 0x800000u;
    }
    // A subnormal divisor is shifted until its leading bit is bit 23, so that one subtraction for each bit is enough.
    if (ey == 0) {
        let shift = i32(countLeadingZeros(my)) - 8;
        my = my << u32(shift);
        ey = 1 - shift;
    } else {
        my = my | 0x800000u;
    }
    if (ey == 255) {
        return a;
    }
    while (ex > ey) { // at most 277 iterations
        if (mx >= my) {
            mx = mx - my;
        }
        mx = mx << 1u;
        ex = ex - 1;
    }
    if (mx >= my) {
        mx = mx - my;
    }
    var bits = 0u;
    if (mx != 0u) {
        // The remainder is a multiple of the smallest subnormal number.
        mx = mx >> u32(max(1 - ey, 0));
        ey = max(ey, 1);
        let shift = min(i32(countLeadingZeros(mx)) - 8, ey - 1);
        mx = mx << u32(shift);
        ey = ey - shift;
        bits = select(mx, (mx & 0x7fffffu) | (u32(ey) << 23u), (mx & 0x800000u) != 0u);
    }
    return bitcast<f32>(bits | (bitcast<u32>(a) & 0x80000000u));
}

fn f_rem(a: f32, b: f32) -> f32 {
    let m = f_fmod(a, b);
    if (f_is_nan(m)) {
        return m;
    }
    if ((bitcast<u32>(m) & 0x7fffffffu) == 0u) {
        return f_copysign(m, b);
    }
    return select(m, keep(m + b), ((bitcast<u32>(m) ^ bitcast<u32>(b)) & 0x80000000u) != 0u);
}

// With the remainder m, a - m is a multiple of b. Rounding a - m to f32 changes a quotient below 2^23 by less than one
// half, so the nearest integer is the exact quotient.
fn f_floor_div(a: f32, b: f32) -> f32 {
    let quotient = keep(a / b);
    if ((bitcast<u32>(b) & 0x7fffffffu) == 0u) {
        return quotient;
    }
    let m = f_fmod(a, b);
    if (f_is_nan(m) || !f_is_finite(quotient)) {
        return keep(quotient + m);
    }
    let is_below = (bitcast<u32>(m) & 0x7fffffffu) != 0u && ((bitcast<u32>(m) ^ bitcast<u32>(b)) & 0x80000000u) != 0u;
    let whole = f_round(keep(keep(a - m) / b));
    let y = keep(whole - select(0.0, 1.0, is_below));
    return select(y, f_copysign(y, quotient), (bitcast<u32>(y) & 0x7fffffffu) == 0u);
}

// Returns |x| 2/pi modulo 4 in 96 bits with the unit 2^-94, upper word first, for |x| >= 2 (Payne & Hanek 1983). The
// significand is multiplied by the 96 bits of 2/pi that affect the result.
fn l_times_two_over_pi(x: f32) -> vec3<u32> {
    var table = array<u32, 8>(
        0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u);
    let bits = bitcast<u32>(x) & 0x7fffffffu;
    // |x| = m 2^e with an integer m < 2^24 and -22 <= e <= 104.
    let e = i32(bits >> 23u) - 150;
    let m = (bits & 0x7fffffu) | 0x800000u;
    // Bit i of 2/pi contributes a multiple of 4 if i <= e - 2.
    let skip = u32(max(e - 2, 0));
    let word = skip / 32u;
    let shift = skip % 32u;
    var w = array<u32, 3>(0u, 0u, 0u);
    for (var i = 0u; i < 3u; i = i + 1u) {
        let low = select(table[word + i + 1u] >> (32u - shift), 0u, shift == 0u);
        w[i] = (table[word + i] << shift) | low;
    }
    // |x| 2/pi = m w 2^(e - skip - 96) modulo 4.
    let p2 = l_mul_words(m, w[2]);
    let p1 = l_add(l_mul_words(m, w[1]), vec2<u32>(p2.y, 0u));
    let p0 = l_add(l_mul_words(m, w[0]), vec2<u32>(p1.y, 0u));
    // The product is p0.y : p0.x : p1.x : p2.x; its unit is 2^(e - skip - 96), so bit 96 + skip - e has weight 1. The
    // shift by at most 32 bits moves it to bit 126, and the two bits of the quadrant to the top.
    let up = u32(30 + e - i32(skip));
    if (up >= 32u) {
        return vec3<u32>(p0.x, p1.x, p2.x);
    }
    let down = 32u - up;
    return vec3<u32>(
        (p0.y << up) | (p0.x >> down), (p0.x << up) | (p1.x >> down), (p1.x << up) | (p2.x >> down));
}

// Returns x mod pi/2 for |x| > 2^16 in (-pi/4, pi/4) as a float, and the quadrant.
fn f_reduce_large(x: f32) -> vec2<f32> {
    let product = l_times_two_over_pi(x);
    let hi = product.x;
    let mid = product.y;
    let low = product.z;
    var quadrant = hi >> 30u;
    var fh = (hi << 2u) | (mid >> 30u);
    var fl = (mid << 2u) | (low >> 30u);
    var negative = false;
    if (fh >= 0x80000000u) {
        quadrant = quadrant + 1u;
        negative = true;
        let n = l_neg(vec2<u32>(fl, fh));
        fh = n.y;
        fl = n.x;
    }
    let n = min(countLeadingZeros(fh), 31u);
    let top = select((fh << n) | (fl >> (32u - n)), fh, n == 0u);
    // top has 32 significant bits; the upper 24 are exact in f32.
    let a = f32(top >> 8u);
    let b = f32(top & 255u);
    let scale = bitcast<f32>((127u - n - 32u) << 23u);
    // pi/2 in two parts.
    let ph = 1.5707964;
    let pl = -4.371139e-8;
    let u = f_two_product(keep(a * 256.0), ph);
    let r = keep(u.x + keep(keep(u.y + keep(keep(a * 256.0) * pl)) + keep(b * ph)));
    var y = keep(r * scale);
    if (negative != (bitcast<u32>(x) >= 0x80000000u)) {
        y = f_neg(y);
    }
    if (bitcast<u32>(x) >= 0x80000000u) {
        quadrant = 4u - (quadrant & 3u);
    }
    return vec2<f32>(y, f32(quadrant & 3u));
}

fn f_sin_large(x: f32) -> f32 {
    if (!f_is_finite(x)) {
        return bitcast<f32>(0x7fc00000u ^ zero);
    }
    let t = f_reduce_large(x);
    let q = u32(t.y);
    let y = select(f_sin_reduced(t.x), f_cos_reduced(t.x), (q & 1u) == 1u);
    return select(y, f_neg(y), q >= 2u);
}

fn f_cos_large(x: f32) -> f32 {
    if (!f_is_finite(x)) {
        return bitcast<f32>(0x7fc00000u ^ zero);
    }
    let t = f_reduce_large(x);
    let q = u32(t.y) + 1u;
    let y = select(f_sin_reduced(t.x), f_cos_reduced(t.x), (q & 1u) == 1u);
    return select(y, f_neg(y), (q & 2u) == 2u);
}

fn f_tan_large(x: f32) -> f32 {
    if (!f_is_finite(x)) {
        return bitcast<f32>(0x7fc00000u ^ zero);
    }
    let t = f_reduce_large(x);
    let s = f_sin_reduced(t.x);
    let c = f_cos_reduced(t.x);
    return select(f_div(s, c), f_div(f_neg(c), s), (u32(t.y) & 1u) == 1u);
}

fn f_sin(x: f32) -> f32 {
    if (f_le(f_abs(x), 65536.0)) {
        return f_sin_fast(x);
    }
    return f_sin_large(x);
}

fn f_cos(x: f32) -> f32 {
    if (f_le(f_abs(x), 65536.0)) {
        return f_cos_fast(x);
    }
    return f_cos_large(x);
}

fn f_tan(x: f32) -> f32 {
    if (f_le(f_abs(x), 65536.0)) {
        return f_tan_fast(x);
    }
    return f_tan_large(x);
}

// Maps floats, whose bits are the upper bits of a word, to unsigned sort keys in the same order; both zeros have the
// same key, and NaN has the largest one. `infinity` is the word of infinity.
fn f_sort_key(bits: u32, infinity: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > infinity) {
        return 0xffffffffu;
    }
    return select(magnitude | 0x80000000u, ~bits, bits > 0x80000000u);
}

fn f_to_i32(x: f32) -> i32 {
    let bits = bitcast<u32>(x);
    let is_large = (bits & 0x7fffffffu) >= 0x4f000000u;
    if (is_large) {
        return select(select(0x7fffffff, i32(-2147483648), bits >= 0x80000000u), 0, f_is_nan(x));
    }
    return i32(x);
}

// Converts to an integer in low..=high with saturation.
fn f_to_range(x: f32, low: i32, high: i32) -> i32 {
    return clamp(f_to_i32(x), low, high);
}

fn f_to_i64(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x);
    let e = i32((bits >> 23u) & 255u) - 150;
    if (f_is_nan(x)) {
        return vec2<u32>(0u, 0u);
    }
    if (e >= 40) {
        return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), bits >= 0x80000000u);
    }
    var m = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
    if (e < -23) {
        return vec2<u32>(0u, 0u);
    }
    if (e < 0) {
        m.x = m.x >> u32(-e);
    } else {
        m = l_shift_left(m, u32(e));
    }
    return select(m, l_neg(m), bits >= 0x80000000u);
}

// Converts the integer to a float: to nearest even, or to odd so that a second rounding to half precision is correct.
fn l_to_float(v: vec2<u32>, odd: bool) -> f32 {
    let is_negative = v.y >= 0x80000000u;
    let m = select(v, l_neg(v), is_negative);
    if ((m.x | m.y) == 0u) {
        return 0.0;
    }
    let zeros = select(countLeadingZeros(m.y), 32u + countLeadingZeros(m.x), m.y == 0u);
    let n = l_shift_left(m, zeros);
    // 24 bits of the significand, and 40 bits that are rounded.
    var top = n.y >> 8u;
    let half = (n.y >> 7u) & 1u;
    let sticky = (n.y & 0x7fu) | n.x;
    if (odd) {
        top = top | select(0u, 1u, (half | sticky) != 0u);
    } else if (half == 1u && (sticky != 0u || (top & 1u) == 1u)) {
        top = top + 1u;
    }
    // A carry out of the significand increments the exponent.
    let bits = ((190u - zeros) << 23u) + (top - 0x800000u);
    return bitcast<f32>(bits | select(0u, 0x80000000u, is_negative));
}

fn l_to_f32(v: vec2<u32>) -> f32 {
    return l_to_float(v, false);
}

fn l_to_f32_odd(v: vec2<u32>) -> f32 {
    return l_to_float(v, true);
}

// WGSL may convert an integer to either of the neighbouring floats, but rounds sums correctly. The conversions of both
// halves and the product are exact.
fn i_to_f32(v: i32) -> f32 {
    return keep(keep(f32(v >> 16u) * 65536.0) + f32(v & 0xffff));
}

fn i_to_i64(v: i32) -> vec2<u32> {
    return vec2<u32>(bitcast<u32>(v), bitcast<u32>(v >> 31u));
}

fn l_to_i32(v: vec2<u32>) -> i32 {
    return bitcast<i32>(v.x);
}

fn h_to_f32_by_bits(h: u32) -> f32 {
    let magnitude = (h & 0x7fffu) << 13u;
    let exponent = magnitude & 0x0f800000u;
    let normal = magnitude + 0x38000000u;
    let special = magnitude + 0x70000000u;
    let small = bitcast<u32>(keep(bitcast<f32>(normal + 0x800000u) - 6.103515625e-5));
    var bits = select(normal, special, exponent == 0x0f800000u);
    bits = select(bits, small, exponent == 0u);
    return bitcast<f32>(bits | ((h & 0x8000u) << 16u));
}

fn h_from_f32_by_bits(x: f32) -> u32 {
    let sign = (bitcast<u32>(x) >> 16u) & 0x8000u;
    let magnitude = bitcast<u32>(x) & 0x7fffffffu;
    let odd = (magnitude >> 13u) & 1u;
    let normal = (magnitude - 0x38000000u + 0xfffu + odd) >> 13u;
    let small = bitcast<u32>(keep(bitcast<f32>(magnitude) + 0.5)) - 0x3f000000u;
    let large = select(0x7c00u, 0x7e00u, magnitude > 0x7f800000u);
    var bits = select(normal, small, magnitude < 0x38800000u);
    bits = select(bits, large, magnitude >= 0x477ff000u);
    return (bits & 0x7fffu) | sign;
}

fn h_brain_to_f32(b: u32) -> f32 {
    return bitcast<f32>(b << 16u);
}

fn h_brain_from_f32(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, (bits >> 16u) | 0x40u, f_is_nan(x));
}

fn h_round_bf16(x: f32) -> f32 {
    return h_brain_to_f32(h_brain_from_f32(x));
}

fn h_pack_bf16(x: f32, y: f32) -> u32 {
    return h_brain_from_f32(x) | (h_brain_from_f32(y) << 16u);
}

fn h_pack_f16(x: f32, y: f32) -> u32 {
    return h_from_f32(x) | (h_from_f32(y) << 16u);
}

// Returns c + a·b for the tiles of a subgroup (`families/shared/tile/matrix_unit.rs`), summed in the order of k.
fn h_multiply_units_bf16(c: vec4<f32>, a: vec4<u32>, b: vec2<u32>, lane: u32) -> vec4<f32> {
    var factors: array<vec2<f32>, 6>;
    for (var k = 0u; k < 4u; k = k + 1u) {
        factors[k] = vec2<f32>(h_brain_to_f32(a[k] & 0xffffu), h_brain_to_f32(a[k] >> 16u));
    }
    for (var k = 0u; k < 2u; k = k + 1u) {
        factors[4u + k] = vec2<f32>(h_brain_to_f32(b[k] & 0xffffu), h_brain_to_f32(b[k] >> 16u));
    }
    return h_multiply_units(c, factors, lane);
}

fn h_multiply_units_f16(c: vec4<f32>, a: vec4<u32>, b: vec2<u32>, lane: u32) -> vec4<f32> {
    var factors: array<vec2<f32>, 6>;
    for (var k = 0u; k < 4u; k = k + 1u) {
        factors[k] = vec2<f32>(h_to_f32(a[k] & 0xffffu), h_to_f32(a[k] >> 16u));
    }
    for (var k = 0u; k < 2u; k = k + 1u) {
        factors[4u + k] = vec2<f32>(h_to_f32(b[k] & 0xffffu), h_to_f32(b[k] >> 16u));
    }
    return h_multiply_units(c, factors, lane);
}

fn h_multiply_units(c: vec4<f32>, factors: array<vec2<f32>, 6>, lane: u32) -> vec4<f32> {
    var own = factors;
    var sum = c;
    let row = (lane >> 2u) * 4u;
    let column = (lane & 3u) * 8u;
    for (var part = 0u; part < 2u; part = part + 1u) {
        for (var member = 0u; member < 4u; member = member + 1u) {
            for (var k = 0u; k < 2u; k = k + 1u) {
                let x = subgroupShuffle(own[2u * part][k], row + member);
                let next_x = subgroupShuffle(own[2u * part + 1u][k], row + member);
                let y = subgroupShuffle(own[4u + part][k], column + member);
                let next_y = subgroupShuffle(own[4u + part][k], column + 4u + member);
                let first_row = vec2<f32>(f_fma(x, y, sum.x), f_fma(x, next_y, sum.y));
                sum = vec4<f32>(first_row, f_fma(next_x, y, sum.z), f_fma(next_x, next_y, sum.w));
            }
        }
    }
    return sum;
}

fn i_floor_div(a: i32, b: i32) -> i32 {
    if (b == 0) {
        return 0;
    }
    if (b == -1) {
        return 0 - a;
    }
    let q = a / b;
    return select(q, q - 1, a != q * b && ((a ^ b) < 0));
}

fn i_rem(a: i32, b: i32) -> i32 {
    if (b == 0 || b == -1) {
        return 0;
    }
    return a - b * i_floor_div(a, b);
}

fn i_pow(a: i32, b: i32) -> i32 {
    if (b < 0) {
        if (a == 1) {
            return 1;
        }
        if (a == -1) {
            return select(-1, 1, (b & 1) == 0);
        }
        return 0;
    }
    var power = 1;
    var square = a;
    var exponent = u32(b);
    while (exponent != 0u) { // at most 32 iterations
        if ((exponent & 1u) == 1u) {
            power = power * square;
        }
        square = square * square;
        exponent = exponent >> 1u;
    }
    return power;
}

fn i_shl(a: i32, b: i32) -> i32 {
    return select(0, a << (u32(b) & 31u), u32(b) < 32u);
}

fn i_shr(a: i32, b: i32) -> i32 {
    return a >> select(31u, u32(b) & 31u, u32(b) < 32u);
}

fn l_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn l_neg(a: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(0u - a.x, ~a.y + select(0u, 1u, a.x == 0u));
}

fn l_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

// Returns the 64-bit product of two words.
fn l_mul_words(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let middle = ah * bl + (low >> 16u);
    let other = al * bh + (middle & 0xffffu);
    return vec2<u32>((low & 0xffffu) | (other << 16u), ah * bh + (middle >> 16u) + (other >> 16u));
}

fn l_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let p = l_mul_words(a.x, b.x);
    return vec2<u32>(p.x, p.y + a.x * b.y + a.y * b.x);
}

fn l_abs(a: vec2<u32>) -> vec2<u32> {
    return select(a, l_neg(a), a.y >= 0x80000000u);
}

fn l_eq(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x == b.x && a.y == b.y;
}

fn l_lt(a: vec2<u32>, b: vec2<u32>) -> bool {
    return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}

fn l_le(a: vec2<u32>, b: vec2<u32>) -> bool {
    return !l_lt(b, a);
}

fn l_max(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, l_lt(b, a));
}

fn l_min(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, l_lt(a, b));
}

fn l_signum(a: vec2<u32>) -> vec2<u32> {
    let positive = vec2<u32>(select(0u, 1u, (a.x | a.y) != 0u), 0u);
    return select(positive, vec2<u32>(0xffffffffu, 0xffffffffu), a.y >= 0x80000000u);
}

// Shifts by less than 64.
fn l_shift_left(a: vec2<u32>, n: u32) -> vec2<u32> {
    if (n == 0u) {
        return a;
    }
    if (n >= 32u) {
        return vec2<u32>(0u, a.x << (n - 32u));
    }
    return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

fn l_shl(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if (b.y != 0u || b.x >= 64u) {
        return vec2<u32>(0u, 0u);
    }
    return l_shift_left(a, b.x);
}

fn l_shr(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let n = select(b.x, 63u, b.y != 0u || b.x >= 64u);
    let high = bitcast<i32>(a.y);
    if (n == 0u) {
        return a;
    }
    if (n >= 32u) {
        return vec2<u32>(bitcast<u32>(high >> (n - 32u)), bitcast<u32>(high >> 31u));
    }
    return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}

// Returns the quotient (x, y) and the remainder (z, w) of unsigned integers, b != 0.
fn l_divide_unsigned(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
    var q = vec2<u32>(0u, 0u);
    var r = vec2<u32>(0u, 0u);
    for (var i = 0u; i < 64u; i = i + 1u) {
        let bit = select(a.x >> (63u - i), a.y >> (31u - i), i < 32u) & 1u;
        let carry = r.y >> 31u;
        r = vec2<u32>((r.x << 1u) | bit, (r.y << 1u) | (r.x >> 31u));
        q = vec2<u32>(q.x << 1u, (q.y << 1u) | (q.x >> 31u));
        if (carry == 1u || r.y > b.y || (r.y == b.y && r.x >= b.x)) {
            r = l_sub(r, b);
            q.x = q.x | 1u;
        }
    }
    return vec4<u32>(q, r);
}

fn l_floor_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if ((b.x | b.y) == 0u) {
        return vec2<u32>(0u, 0u);
    }
    let d = l_divide_unsigned(l_abs(a), l_abs(b));
    if (((a.y ^ b.y) & 0x80000000u) == 0u) {
        return d.xy;
    }
    let up = l_add(d.xy, vec2<u32>(select(0u, 1u, (d.z | d.w) != 0u), 0u));
    return l_neg(up);
}

fn l_rem(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if ((b.x | b.y) == 0u) {
        return vec2<u32>(0u, 0u);
    }
    return l_sub(a, l_mul(b, l_floor_div(a, b)));
}

fn l_pow(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if (b.y >= 0x80000000u) {
        if (a.x == 1u && a.y == 0u) {
            return a;
        }
        if ((a.x & a.y) == 0xffffffffu) {
            return select(a, vec2<u32>(1u, 0u), (b.x & 1u) == 0u);
        }
        return vec2<u32>(0u, 0u);
    }
    var power = vec2<u32>(1u, 0u);
    var square = a;
    var exponent = b;
    while ((exponent.x | exponent.y) != 0u) { // at most 64 iterations
        if ((exponent.x & 1u) == 1u) {
            power = l_mul(power, square);
        }
        square = l_mul(square, square);
        exponent = vec2<u32>((exponent.x >> 1u) | (exponent.y << 31u), exponent.y >> 1u);
    }
    return power;
}

fn d_is_nan(x: vec2<u32>) -> bool {
    let high = x.y & 0x7fffffffu;
    return high > 0x7ff00000u || (high == 0x7ff00000u && x.x != 0u);
}

fn d_from_f32(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x);
    let sign = bits & 0x80000000u;
    var magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {
        return vec2<u32>(magnitude << 29u, sign | 0x7ff00000u | ((magnitude & 0x7fffffu) >> 3u));
    }
    if (magnitude == 0u) {
        return vec2<u32>(0u, sign);
    }
    var e = i32(magnitude >> 23u);
    var m = magnitude & 0x7fffffu;
    if (e == 0) {
        let n = countLeadingZeros(m) - 8u;
        m = (m << n) & 0x7fffffu;
        e = 1 - i32(n);
    }
    return vec2<u32>(m << 29u, sign | (u32(e + 896) << 20u) | (m >> 3u));
}

// Converts to f32: to nearest even, or to odd so that a second rounding to half precision is correct.
fn d_to_float(x: vec2<u32>, odd: bool) -> f32 {
    let sign = x.y & 0x80000000u;
    if (d_is_nan(x)) {
        return bitcast<f32>(0x7fc00000u ^ zero);
    }
    let e = i32((x.y >> 20u) & 2047u) - 896;
    if (e >= 255) {
        // Infinity, or a finite value beyond the range.
        let is_infinite = e == 1151;
        return bitcast<f32>(sign | select(0x7f800000u, 0x7f7fffffu, odd && !is_infinite));
    }
    if (e < -24) {
        let is_zero = ((x.y & 0x7fffffffu) | x.x) == 0u;
        return bitcast<f32>(sign | select(0u, 1u, odd && !is_zero));
    }
    // The significand with its leading bit at bit 52; a subnormal result drops more of its bits.
    let m = vec2<u32>(x.x, (x.y & 0xfffffu) | 0x100000u);
    let drop = u32(29 + select(0, 1 - e, e < 1));
    var kept = m.y >> (drop - 32u);
    var lost = l_shift_left(m, 64u - drop);
    if (drop < 32u) {
        kept = (m.y << (32u - drop)) | (m.x >> drop);
    } else if (drop == 32u) {
        kept = m.y;
    }
    var bits = kept + select(u32(e - 1) << 23u, 0u, e < 1);
    if (odd) {
        bits = bits | select(0u, 1u, (lost.x | lost.y) != 0u);
    } else if (lost.y > 0x80000000u || (lost.y == 0x80000000u && (lost.x != 0u || (bits & 1u) == 1u))) {
        bits = bits + 1u;
    }
    return bitcast<f32>(sign | bits);
}

fn d_to_f32(x: vec2<u32>) -> f32 {
    return d_to_float(x, false);
}

fn d_to_f32_odd(x: vec2<u32>) -> f32 {
    return d_to_float(x, true);
}

fn d_from_i64(v: vec2<u32>) -> vec2<u32> {
    let m = l_abs(v);
    if ((m.x | m.y) == 0u) {
        return m;
    }
    let zeros = select(countLeadingZeros(m.y), 32u + countLeadingZeros(m.x), m.y == 0u);
    let n = l_shift_left(m, zeros);
    // 53 bits of the significand, and 11 bits that are rounded. A carry increments the exponent.
    var bits = vec2<u32>((n.x >> 11u) | (n.y << 21u), (n.y >> 11u) + ((1085u - zeros) << 20u));
    let lost = n.x & 0x7ffu;
    if (lost > 0x400u || (lost == 0x400u && (bits.x & 1u) == 1u)) {
        bits = l_add(bits, vec2<u32>(1u, 0u));
    }
    return vec2<u32>(bits.x, bits.y | (v.y & 0x80000000u));
}

fn d_to_i64(x: vec2<u32>) -> vec2<u32> {
    let e = i32((x.y >> 20u) & 2047u) - 1075;
    let is_negative = x.y >= 0x80000000u;
    if (d_is_nan(x) || e < -52) {
        return vec2<u32>(0u, 0u);
    }
    if (e >= 11) {
        return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), is_negative);
    }
    let m = vec2<u32>(x.x, (x.y & 0xfffffu) | 0x100000u);
    var y = l_shift_left(m, u32(max(e, 0)));
    if (e < 0) {
        y = l_shr(m, vec2<u32>(u32(-e), 0u));
    }
    return select(y, l_neg(y), is_negative);
}

fn d_to_range(x: vec2<u32>, low: i32, high: i32) -> i32 {
    return l_to_i32(l_min(l_max(d_to_i64(x), i_to_i64(low)), i_to_i64(high)));
}

// Returns the four words of a draw of Philox 4x32-10 (Salmon et al. 2011).
fn l_philox(counter: vec2<u32>, seed: vec2<u32>) -> array<u32, 4> {
    var c = vec4<u32>(counter, 0u, 0u);
    var key = seed;
    for (var round = 0u; round < 10u; round = round + 1u) {
        let a = l_mul_words(c.x, 0xd2511f53u);
        let b = l_mul_words(c.z, 0xcd9e8d57u);
        c = vec4<u32>(b.y ^ c.y ^ key.x, b.x, a.y ^ c.w ^ key.y, a.x);
        key = key + vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return array<u32, 4>(c.x, c.y, c.z, c.w);
}

// Arithmetic in double precision on bit patterns, rounded as IEEE 754 requires, also for subnormal numbers.

fn d_neg(x: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(x.x, x.y ^ 0x80000000u);
}

fn d_abs(x: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(x.x, x.y & 0x7fffffffu);
}

fn d_copysign(x: vec2<u32>, s: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(x.x, (x.y & 0x7fffffffu) | (s.y & 0x80000000u));
}

fn d_is_finite(x: vec2<u32>) -> bool {
    return (x.y & 0x7ff00000u) != 0x7ff00000u;
}

fn d_is_zero(x: vec2<u32>) -> bool {
    return ((x.y & 0x7fffffffu) | x.x) == 0u;
}

// Maps numbers other than NaN to integers in the same order; both zeros map to 0.
fn d_order(x: vec2<u32>) -> vec2<u32> {
    return select(x, l_neg(d_abs(x)), x.y >= 0x80000000u);
}

// Maps numbers to unsigned sort keys in the same order; both zeros have the same key, and NaN has the largest one.
fn d_sort_key(x: vec2<u32>) -> vec2<u32> {
    if (d_is_nan(x)) {
        return vec2<u32>(0xffffffffu, 0xffffffffu);
    }
    let is_negative = x.y >= 0x80000000u && !d_is_zero(x);
    return select(vec2<u32>(x.x, x.y | 0x80000000u), ~x, is_negative);
}

fn d_lt(a: vec2<u32>, b: vec2<u32>) -> bool {
    return l_lt(d_order(a), d_order(b)) && !d_is_nan(a) && !d_is_nan(b);
}

fn d_le(a: vec2<u32>, b: vec2<u32>) -> bool {
    return l_le(d_order(a), d_order(b)) && !d_is_nan(a) && !d_is_nan(b);
}

fn d_eq(a: vec2<u32>, b: vec2<u32>) -> bool {
    return l_eq(d_order(a), d_order(b)) && !d_is_nan(a) && !d_is_nan(b);
}

fn d_max(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, d_lt(b, a) || d_is_nan(a));
}

fn d_min(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, d_lt(a, b) || d_is_nan(a));
}

fn d_signum(x: vec2<u32>) -> vec2<u32> {
    return select(vec2<u32>(0u, 0x3ff00000u | (x.y & 0x80000000u)), x, d_is_zero(x) || d_is_nan(x));
}

fn l_lt_unsigned(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// Returns the sum of two 128-bit integers; x is the lowest word.
fn l_add_wide(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let low = l_add(a.xy, b.xy);
    let carry = select(0u, 1u, l_lt_unsigned(low, a.xy));
    return vec4<u32>(low, l_add(l_add(a.zw, b.zw), vec2<u32>(carry, 0u)));
}

fn l_sub_wide(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let borrow = select(0u, 1u, l_lt_unsigned(a.xy, b.xy));
    return vec4<u32>(l_sub(a.xy, b.xy), l_sub(l_sub(a.zw, b.zw), vec2<u32>(borrow, 0u)));
}

fn l_shift_left_wide(v: vec4<u32>, n: u32) -> vec4<u32> {
    let words = n / 32u;
    var w = select(v, vec4<u32>(0u, v.x, v.y, v.z), (words & 1u) != 0u);
    w = select(w, vec4<u32>(0u, 0u, w.x, w.y), (words & 2u) != 0u);
    w = select(w, vec4<u32>(0u, 0u, 0u, 0u), words > 3u);
    let b = n % 32u;
    if (b > 0u) {
        let c = 32u - b;
        w = vec4<u32>(w.x << b, (w.y << b) | (w.x >> c), (w.z << b) | (w.y >> c), (w.w << b) | (w.z >> c));
    }
    return w;
}

// Shifts right; the lowest bit of the result is set if a bit was lost.
fn l_shift_right_sticky(v: vec4<u32>, n: u32) -> vec4<u32> {
    var w = v;
    var lost = 0u;
    let words = min(n / 32u, 4u);
    if ((words & 1u) != 0u) {
        lost = w.x;
        w = vec4<u32>(w.y, w.z, w.w, 0u);
    }
    if ((words & 2u) != 0u) {
        lost = lost | w.x | w.y;
        w = vec4<u32>(w.z, w.w, 0u, 0u);
    }
    if (words == 4u) {
        lost = w.x | w.y | w.z | w.w;
        w = vec4<u32>(0u, 0u, 0u, 0u);
    }
    let b = n % 32u;
    if (b > 0u) {
        let c = 32u - b;
        lost = lost | (w.x << c);
        w = vec4<u32>((w.x >> b) | (w.y << c), (w.y >> b) | (w.z << c), (w.z >> b) | (w.w << c), w.w >> b);
    }
    w.x = w.x | select(0u, 1u, lost != 0u);
    return w;
}

fn l_leading_zeros(m: vec2<u32>) -> u32 {
    return select(countLeadingZeros(m.y), 32u + countLeadingZeros(m.x), m.y == 0u);
}

// Returns the significand of a finite number other than zero with its leading bit at bit 63.
fn d_significand(x: vec2<u32>) -> vec2<u32> {
    let m = vec2<u32>(x.x, x.y & 0xfffffu);
    if ((x.y & 0x7ff00000u) == 0u) {
        return l_shift_left(m, l_leading_zeros(m));
    }
    return l_shift_left(vec2<u32>(m.x, m.y | 0x100000u), 11u);
}

// Returns the exponent of the leading bit of a finite number other than zero, with the bias 1023.
fn d_exponent(x: vec2<u32>) -> i32 {
    let e = i32((x.y >> 20u) & 2047u);
    return select(e, 12 - i32(l_leading_zeros(vec2<u32>(x.x, x.y & 0xfffffu))), e == 0);
}

// Shifts right; the lowest bit of the result is set if a bit was lost.
fn l_shift_right_jam(v: vec2<u32>, n: u32) -> vec2<u32> {
    let b = n & 31u;
    let high = v.y >> b;
    let low = (v.x >> b) | select(v.y << (32u - b), 0u, b == 0u);
    let lost = select(v.x << (32u - b), 0u, b == 0u);
    if (n < 32u) {
        return vec2<u32>(low | select(0u, 1u, lost != 0u), high);
    }
    if (n < 64u) {
        let lost_high = select(v.y << (32u - b), 0u, b == 0u);
        return vec2<u32>(high | select(0u, 1u, (v.x | lost_high) != 0u), 0u);
    }
    return vec2<u32>(select(0u, 1u, (v.x | v.y) != 0u), 0u);
}

// Rounds to nearest even. The leading bit of m is bit 63 and has the biased exponent e; sticky states whether the exact
// number is larger.
fn d_round_to_even(sign: u32, e: i32, m: vec2<u32>, sticky: bool) -> vec2<u32> {
    if (e >= 2047) {
        return vec2<u32>(0u, sign | 0x7ff00000u);
    }
    // The significand, and two bits that state whether the rest is less than, equal to or more than one half.
    let r = l_shift_right_jam(m, u32(9 + max(1 - e, 0)));
    let rest = (r.x & 3u) | select(0u, 1u, sticky);
    var bits = vec2<u32>((r.x >> 2u) | (r.y << 30u), (r.y >> 2u) + (u32(max(e - 1, 0)) << 20u));
    if (rest == 3u || (rest == 2u && (bits.x & 1u) == 1u)) {
        bits = l_add(bits, vec2<u32>(1u, 0u));
    }
    return vec2<u32>(bits.x, bits.y | sign);
}

// Returns a b + c rounded once.
fn d_fma(a: vec2<u32>, b: vec2<u32>, c: vec2<u32>) -> vec2<u32> {
    let nan = vec2<u32>(0u, 0x7ff80000u);
    let sign = (a.y ^ b.y) & 0x80000000u;
    let own = c.y & 0x80000000u;
    if (d_is_nan(a) || d_is_nan(b) || d_is_nan(c)) {
        return nan;
    }
    if (!d_is_finite(a) || !d_is_finite(b)) {
        let invalid = d_is_zero(a) || d_is_zero(b) || (!d_is_finite(c) && own != sign);
        return select(vec2<u32>(0u, sign | 0x7ff00000u), nan, invalid);
    }
    if (!d_is_finite(c)) {
        return c;
    }
    if (d_is_zero(a) || d_is_zero(b)) {
        // The sum of zeros of opposite signs is +0.
        return select(c, vec2<u32>(0u, select(0u, own, own == sign)), d_is_zero(c));
    }
    // The product of significands below 2^64; its leading bit is bit 126 or 127. Bit 127 has the exponent e.
    let x = d_significand(a);
    let y = d_significand(b);
    let xy = l_mul_words(x.x, y.x);
    var p = vec4<u32>(xy, l_mul_words(x.y, y.y));
    p = l_add_wide(p, vec4<u32>(0u, l_mul_words(x.x, y.y), 0u));
    p = l_add_wide(p, vec4<u32>(0u, l_mul_words(x.y, y.x), 0u));
    var e = d_exponent(a) + d_exponent(b) - 1022;
    if (p.w < 0x80000000u) {
        p = l_shift_left_wide(p, 1u);
        e = e - 1;
    }
    var result_sign = sign;
    if (!d_is_zero(c)) {
        // Both terms move one bit down for the carry, and the smaller one to the exponent of the larger one.
        let q = vec4<u32>(0u, 0u, d_significand(c));
        let ec = d_exponent(c);
        let p_is_larger = e > ec || (e == ec && !(l_lt_unsigned(p.zw, q.zw)));
        let larger = l_shift_right_sticky(select(q, p, p_is_larger), 1u);
        let smaller = l_shift_right_sticky(select(p, q, p_is_larger), 1u + u32(min(abs(e - ec), 200)));
        e = max(e, ec) + 1;
        if (sign == own) {
            p = l_add_wide(larger, smaller);
        } else {
            p = l_sub_wide(larger, smaller);
            result_sign = select(own, sign, p_is_larger);
        }
        if ((p.x | p.y | p.z | p.w) == 0u) {
            return vec2<u32>(0u, 0u);
        }
        let high = l_leading_zeros(p.zw);
        let zeros = select(high, 64u + l_leading_zeros(p.xy), (p.z | p.w) == 0u);
        p = l_shift_left_wide(p, zeros);
        e = e - i32(zeros);
    }
    return d_round_to_even(result_sign, e, p.zw, (p.x | p.y) != 0u);
}

fn d_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let differ = ((a.y ^ b.y) & 0x80000000u) != 0u;
    if (!d_is_finite(a) || !d_is_finite(b)) {
        let both = !d_is_finite(a) && !d_is_finite(b);
        let invalid = d_is_nan(a) || d_is_nan(b) || (both && differ);
        return select(select(a, b, d_is_finite(a)), vec2<u32>(0u, 0x7ff80000u), invalid);
    }
    let swap = l_lt_unsigned(d_abs(a), d_abs(b));
    let large = select(a, b, swap);
    let small = select(b, a, swap);
    if (d_is_zero(small)) {
        // The sum of zeros of opposite signs is +0.
        return select(large, vec2<u32>(0u, large.y & small.y), d_is_zero(large));
    }
    // The leading bit of the larger significand moves to bit 62; ten lower bits and their lowest one, which is set if a
    // bit was lost, are enough to round correctly.
    let e = d_exponent(large);
    let m = l_shift_right_jam(d_significand(large), 1u);
    let n = l_shift_right_jam(d_significand(small), 1u + u32(e - d_exponent(small)));
    let sum = select(l_add(m, n), l_sub(m, n), differ);
    if ((sum.x | sum.y) == 0u) {
        return sum;
    }
    let zeros = l_leading_zeros(sum);
    return d_round_to_even(large.y & 0x80000000u, e + 1 - i32(zeros), l_shift_left(sum, zeros), false);
}

fn d_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return d_add(a, d_neg(b));
}

fn d_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let sign = (a.y ^ b.y) & 0x80000000u;
    let has_zero = d_is_zero(a) || d_is_zero(b);
    if (!d_is_finite(a) || !d_is_finite(b)) {
        let invalid = d_is_nan(a) || d_is_nan(b) || has_zero;
        return select(vec2<u32>(0u, sign | 0x7ff00000u), vec2<u32>(0u, 0x7ff80000u), invalid);
    }
    if (has_zero) {
        return vec2<u32>(0u, sign);
    }
    // The upper half of the product; its leading bit is bit 62 or 63. Bit 63 has the exponent e.
    let x = d_significand(a);
    let y = d_significand(b);
    let p0 = l_mul_words(x.x, y.x);
    let p1 = l_add(l_mul_words(x.x, y.y), vec2<u32>(p0.y, 0u));
    let p2 = l_add(l_mul_words(x.y, y.x), vec2<u32>(p1.x, 0u));
    var m = l_add(l_add(l_mul_words(x.y, y.y), vec2<u32>(p1.y, 0u)), vec2<u32>(p2.y, 0u));
    var e = d_exponent(a) + d_exponent(b) - 1022;
    if (m.y < 0x80000000u) {
        m = vec2<u32>((m.x << 1u) | (p2.x >> 31u), (m.y << 1u) | (m.x >> 31u));
        e = e - 1;
    }
    // A bit of p2.x that moved to m is below its last bit after rounding, so it counts as lost in both words.
    return d_round_to_even(sign, e, m, (p0.x | p2.x) != 0u);
}

fn d_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let sign = (a.y ^ b.y) & 0x80000000u;
    let is_infinite = !d_is_finite(a);
    if (d_is_nan(a) || d_is_nan(b) || (is_infinite && !d_is_finite(b)) || (d_is_zero(a) && d_is_zero(b))) {
        return vec2<u32>(0u, 0x7ff80000u);
    }
    if (is_infinite || d_is_zero(b)) {
        return vec2<u32>(0u, sign | 0x7ff00000u);
    }
    if (d_is_zero(a) || !d_is_finite(b)) {
        return vec2<u32>(0u, sign);
    }
    // Significands with the leading bit at bit 53, so that a shift to the left cannot overflow.
    var r = l_shift_right_sticky(vec4<u32>(0u, 0u, d_significand(a)), 10u).zw;
    let d = l_shift_right_sticky(vec4<u32>(0u, 0u, d_significand(b)), 10u).zw;
    var e = d_exponent(a) - d_exponent(b) + 1023;
    if (l_lt_unsigned(r, d)) {
        r = l_shift_left(r, 1u);
        e = e - 1;
    }
    var q = vec2<u32>(0u, 0u);
    for (var k = 0u; k < 64u; k = k + 1u) {
        q = l_shift_left(q, 1u);
        if (!l_lt_unsigned(r, d)) {
            r = l_sub(r, d);
            q.x = q.x | 1u;
        }
        r = l_shift_left(r, 1u);
    }
    return d_round_to_even(sign, e, q, (r.x | r.y) != 0u);
}

fn d_recip(x: vec2<u32>) -> vec2<u32> {
    return d_div(vec2<u32>(0u, 0x3ff00000u), x);
}

// Returns the square root, bit by bit.
fn d_sqrt(x: vec2<u32>) -> vec2<u32> {
    if (d_is_zero(x) || d_is_nan(x)) {
        return x;
    }
    if (x.y >= 0x80000000u) {
        return vec2<u32>(0u, 0x7ff80000u);
    }
    if (!d_is_finite(x)) {
        return x;
    }
    // x = m 2^(2 h) with 1 <= m < 4; m has 54 bits in `rest`, from bit 63 on.
    let e = d_exponent(x) - 1023;
    let h = e >> 1u;
    let m = d_significand(x);
    var rest = select(l_shift_right_sticky(vec4<u32>(0u, 0u, m), 1u).zw, m, (e & 1) == 1);
    var r = vec2<u32>(0u, 0u);
    var root = vec2<u32>(0u, 0u);
    for (var k = 0u; k < 55u; k = k + 1u) {
        r = l_shift_left(r, 2u);
        r.x = r.x | (rest.y >> 30u);
        rest = l_shift_left(rest, 2u);
        var trial = l_shift_left(root, 2u);
        trial.x = trial.x | 1u;
        root = l_shift_left(root, 1u);
        if (!l_lt_unsigned(r, trial)) {
            r = l_sub(r, trial);
            root.x = root.x | 1u;
        }
    }
    return d_round_to_even(0u, h + 1023, l_shift_left(root, 9u), (r.x | r.y) != 0u);
}

// Returns the remainder of the truncated division a / b, which is exact.
fn d_fmod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if (!d_is_finite(a) || d_is_nan(b) || d_is_zero(b)) {
        return vec2<u32>(0u, 0x7ff80000u);
    }
    if (d_is_zero(a) || l_lt_unsigned(d_abs(a), d_abs(b))) {
        return a;
    }
    // Significands with the leading bit at bit 62, so that a shift to the left cannot overflow.
    var r = l_shift_right_sticky(vec4<u32>(0u, 0u, d_significand(a)), 1u).zw;
    let d = l_shift_right_sticky(vec4<u32>(0u, 0u, d_significand(b)), 1u).zw;
    let e = d_exponent(b);
    for (var k = d_exponent(a) - e; k >= 0; k = k - 1) { // at most 2098 iterations
        if (!l_lt_unsigned(r, d)) {
            r = l_sub(r, d);
        }
        if (k > 0) {
            r = l_shift_left(r, 1u);
        }
    }
    let sign = a.y & 0x80000000u;
    if ((r.x | r.y) == 0u) {
        return vec2<u32>(0u, sign);
    }
    let zeros = l_leading_zeros(r);
    return d_round_to_even(sign, e + 1 - i32(zeros), l_shift_left(r, zeros), false);
}

fn d_trunc(x: vec2<u32>) -> vec2<u32> {
    let e = i32((x.y >> 20u) & 2047u) - 1023;
    if (e >= 52) {
        return x;
    }
    if (e < 0) {
        return vec2<u32>(0u, x.y & 0x80000000u);
    }
    let mask = l_shift_left(vec2<u32>(0xffffffffu, 0xffffffffu), u32(52 - e));
    return x & mask;
}

fn d_floor(x: vec2<u32>) -> vec2<u32> {
    let t = d_trunc(x);
    let is_below = x.y >= 0x80000000u && !l_eq(t, x) && !d_is_nan(x);
    return select(t, d_sub(t, vec2<u32>(0u, 0x3ff00000u)), is_below);
}

fn d_ceil(x: vec2<u32>) -> vec2<u32> {
    return d_neg(d_floor(d_neg(x)));
}

// Adding 2^52 moves the nearest integer to the lowest bits.
fn d_round(x: vec2<u32>) -> vec2<u32> {
    if (((x.y >> 20u) & 2047u) >= 1075u) {
        return x;
    }
    let magic = vec2<u32>(0u, 0x43300000u);
    return d_copysign(d_sub(d_add(d_abs(x), magic), magic), x);
}

// Arithmetic on unevaluated sums of two f32, x + y with |y| at most half a unit in the last place of x. It has 48 bits
// of a significand and the exponents of f32. Infinity and NaN are in x, with y = 0. Numbers below 2^-102 lose bits.

fn t_from_f32(x: f32) -> vec2<f32> {
    return vec2<f32>(x, 0.0);
}

fn t_to_f32(x: vec2<f32>) -> f32 {
    return x.x;
}

fn t_neg(x: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(f_neg(x.x), f_neg(x.y));
}

fn t_abs(x: vec2<f32>) -> vec2<f32> {
    return select(x, t_neg(x), bitcast<u32>(x.x) >= 0x80000000u);
}

fn t_copysign(x: vec2<f32>, s: vec2<f32>) -> vec2<f32> {
    return select(x, t_neg(x), ((bitcast<u32>(x.x) ^ bitcast<u32>(s.x)) & 0x80000000u) != 0u);
}

fn t_is_nan(x: vec2<f32>) -> bool {
    return f_is_nan(x.x);
}

fn t_is_finite(x: vec2<f32>) -> bool {
    return f_is_finite(x.x);
}

fn t_lt(a: vec2<f32>, b: vec2<f32>) -> bool {
    return f_lt(a.x, b.x) || (f_eq(a.x, b.x) && f_lt(a.y, b.y));
}

fn t_le(a: vec2<f32>, b: vec2<f32>) -> bool {
    return f_lt(a.x, b.x) || (f_eq(a.x, b.x) && f_le(a.y, b.y));
}

fn t_eq(a: vec2<f32>, b: vec2<f32>) -> bool {
    return f_eq(a.x, b.x) && f_eq(a.y, b.y);
}

// Returns a + b for |a| >= |b| (Dekker 1971).
fn t_sum(a: f32, b: f32) -> vec2<f32> {
    let s = keep(a + b);
    return vec2<f32>(s, keep(b - keep(s - a)));
}

// The relative error is at most 3 * 2^-48 (Joldes, Muller & Popescu 2017).
fn t_add(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let s = f_two_sum(a.x, b.x);
    let t = f_two_sum(a.y, b.y);
    let v = t_sum(s.x, keep(s.y + t.x));
    let w = t_sum(v.x, keep(t.y + v.y));
    return select(vec2<f32>(s.x, 0.0), w, f_is_finite(w.x));
}

fn t_sub(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    return t_add(a, t_neg(b));
}

// The product of an infinite number, and a product that is zero, have no lower part.
fn t_mul(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let p = f_two_product(a.x, b.x);
    let w = t_sum(p.x, keep(p.y + keep(keep(a.x * b.y) + keep(a.y * b.x))));
    let is_special = !f_is_finite(w.x) || (bitcast<u32>(p.x) & 0x7fffffffu) == 0u;
    return select(w, vec2<f32>(p.x, 0.0), is_special);
}

fn t_fma(a: vec2<f32>, b: vec2<f32>, c: vec2<f32>) -> vec2<f32> {
    return t_add(t_mul(a, b), c);
}

// The correction of the quotient q of the upper parts is (a - q b)/b.
fn t_div(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let q = keep(a.x / b.x);
    let p = f_two_product(q, b.x);
    let r = keep(keep(keep(a.x - p.x) - p.y) + keep(a.y - keep(q * b.y)));
    let w = t_sum(q, keep(r / b.x));
    let is_special = !f_is_finite(w.x) || !f_is_finite(b.x) || (bitcast<u32>(q) & 0x7fffffffu) == 0u;
    return select(w, vec2<f32>(q, 0.0), is_special);
}

fn t_sqrt(x: vec2<f32>) -> vec2<f32> {
    let y = f_sqrt(x.x);
    if (!f_is_finite(y) || (bitcast<u32>(y) & 0x7fffffffu) == 0u) {
        return vec2<f32>(y, 0.0);
    }
    let p = f_two_product(y, y);
    let r = keep(keep(keep(x.x - p.x) - p.y) + x.y);
    return t_sum(y, keep(r / keep(2.0 * y)));
}

fn t_floor(x: vec2<f32>) -> vec2<f32> {
    let y = f_floor(x.x);
    return select(vec2<f32>(y, 0.0), t_sum(y, f_floor(x.y)), f_eq(x.x, y) && f_is_finite(y));
}

fn t_ceil(x: vec2<f32>) -> vec2<f32> {
    return t_neg(t_floor(t_neg(x)));
}

fn t_round(x: vec2<f32>) -> vec2<f32> {
    let y = f_round(x.x);
    return select(vec2<f32>(y, 0.0), t_sum(y, f_round(x.y)), f_eq(x.x, y) && f_is_finite(y));
}

// Returns x 2^n for -252 <= n <= 254.
fn t_scale(x: vec2<f32>, n: i32) -> vec2<f32> {
    let half_n = n >> 1u;
    let p = bitcast<f32>(u32(half_n + 127) << 23u);
    let q = bitcast<f32>(u32(n - half_n + 127) << 23u);
    return vec2<f32>(keep(keep(x.x * p) * q), keep(keep(x.y * p) * q));
}

// e^x = 2^n (1 + e)^64 with e = e^(r/64) - 1 and r = x - n ln 2. The terms of e from the third on are below 2^-25, so
// f32 is enough for them. Every step computes (1 + e)^2 - 1.
fn t_exp(x: vec2<f32>) -> vec2<f32> {
    if (f_is_nan(x.x)) {
        return x;
    }
    // The rounded result is infinite or 0 beyond these limits.
    if (f_lt(89.0, x.x)) {
        return vec2<f32>(bitcast<f32>(0x7f800000u ^ zero), 0.0);
    }
    if (f_lt(x.x, -105.0)) {
        return vec2<f32>(0.0, 0.0);
    }
    let n = f_round(keep(x.x * 1.442695));
    let r = t_sub(x, t_mul(vec2<f32>(n, 0.0), vec2<f32>(0.6931472, -1.9046543e-9)));
    let s = vec2<f32>(keep(r.x * 0.015625), keep(r.y * 0.015625));
    let tail = keep(keep(s.x * s.x) * s.x) * keep(0.16666667 + keep(s.x * keep(0.041666668 + keep(s.x * 0.008333334))));
    let square = t_mul(s, s);
    var e = t_add(s, t_add(vec2<f32>(keep(square.x * 0.5), keep(square.y * 0.5)), vec2<f32>(keep(tail), 0.0)));
    for (var k = 0u; k < 6u; k = k + 1u) {
        e = t_add(vec2<f32>(keep(e.x * 2.0), keep(e.y * 2.0)), t_mul(e, e));
    }
    return t_scale(t_add(vec2<f32>(1.0, 0.0), e), i32(n));
}

// Returns ln x for x = 2^e m as e ln 2 + 2 artanh s with s = (m - 1)/(m + 1), |s| < 0.172.
fn t_ln(x: vec2<f32>) -> vec2<f32> {
    let bits = bitcast<u32>(x.x);
    if (bits < 0x00800000u || bits >= 0x7f800000u) {
        return vec2<f32>(f_ln(x.x), 0.0);
    }
    // m is between the square roots of 1/2 and 2.
    let e = i32(bits - 0x3f3504f3u) >> 23u;
    let m = t_scale(x, -e);
    let one = vec2<f32>(1.0, 0.0);
    let s = t_div(t_sub(m, one), t_add(m, one));
    let z = t_mul(s, s);
    var y = vec2<f32>(0.0, 0.0);
    for (var k = 19u; k > zero; k = k - 2u) { // at most 10 iterations
        // 1/k in two parts.
        let high = keep(1.0 / f32(k));
        let p = f_two_product(high, f32(k));
        y = t_add(t_mul(y, z), vec2<f32>(high, keep(keep(keep(1.0 - p.x) - p.y) * high)));
        if (k == 1u) {
            break;
        }
    }
    return t_add(t_mul(vec2<f32>(f32(e), 0.0), vec2<f32>(0.6931472, -1.9046543e-9)), t_mul(t_add(s, s), y));
}

// Returns 2^shift a^-s, whose factors may leave the range of f32.
fn t_scaled_power(a: vec2<f32>, s: vec2<f32>, shift: vec2<f32>) -> vec2<f32> {
    return t_exp(t_sub(t_mul(shift, vec2<f32>(0.6931472, -1.9046543e-9)), t_mul(s, t_ln(a))));
}

// Returns sin x - cos x and sin x + cos x, the sine and the cosine of x - pi/4 times the square root of 2, for x >= 2
// that is an f32.
fn t_sine_and_cosine(x: vec2<f32>) -> vec4<f32> {
    let product = l_times_two_over_pi(x.x);
    let mid = product.y;
    let low = product.z;
    // The unit of the upper two bits is pi/2, so this subtracts pi/4.
    let hi = product.x - 0x20000000u;
    var quadrant = hi >> 30u;
    var f = vec2<u32>((mid << 2u) | (low >> 30u), (hi << 2u) | (mid >> 30u));
    let is_negative = f.y >= 0x80000000u;
    if (is_negative) {
        quadrant = quadrant + 1u;
        f = l_neg(f);
    }
    let n = l_leading_zeros(f) & 63u;
    let top = l_shift_left(f, n);
    // The upper 24 bits and the next 24 bits are exact in f32; 2^-(n + 32) is the unit of the upper word.
    let scale = bitcast<f32>((127u - n - 24u) << 23u);
    let high = keep(f32(top.y >> 8u) * scale);
    let rest = keep(keep(f32(((top.y & 255u) << 16u) | (top.x >> 16u)) * scale) * 5.9604645e-8);
    // pi/2 in two parts.
    var r = t_mul(t_sum(high, rest), vec2<f32>(1.5707964, -4.371139e-8));
    if (is_negative) {
        r = t_neg(r);
    }
    let none = vec2<f32>(0.0, 0.0);
    let root = vec2<f32>(1.4142135, 2.4203235e-8);
    let s = t_mul(root, t_sin_reduced(r, none));
    let c = t_mul(root, t_cos_reduced(r, none));
    let is_odd = (quadrant & 1u) == 1u;
    let sine = select(s, c, is_odd);
    let cosine = select(c, t_neg(s), is_odd);
    let is_opposite = (quadrant & 2u) == 2u;
    return vec4<f32>(select(sine, t_neg(sine), is_opposite), select(cosine, t_neg(cosine), is_opposite));
}
