// Functions of the kernel library that CUDA has as instructions. They replace the functions of the same names, which
// compute with 32-bit words only and guard against compilers that change the order of operations. The results have the
// same bits, except the bits of NaN and the errors of products below 2^-102. Each function starts at the beginning of a
// line and ends with a line that contains only a closing brace.

DEVICE f32 keep(f32 x) {
    return x;
}

DEVICE f32 f_fma(f32 a, f32 b, f32 c) {
    return fmaf(a, b, c);
}

DEVICE bool f_is_nan(f32 x) {
    return x != x;
}

DEVICE bool f_lt(f32 a, f32 b) {
    return a < b;
}

DEVICE bool f_le(f32 a, f32 b) {
    return a <= b;
}

DEVICE bool f_eq(f32 a, f32 b) {
    return a == b;
}

DEVICE f32 f_floor(f32 x) {
    return floorf(x);
}

DEVICE f32 f_ceil(f32 x) {
    return ceilf(x);
}

DEVICE f32 f_trunc(f32 x) {
    return truncf(x);
}

DEVICE f32 f_round(f32 x) {
    return rintf(x);
}

DEVICE f32 f_sqrt(f32 x) {
    return x < 0.0f ? __uint_as_float(0x7fc00000u) : sqrtf(x);
}

DEVICE vec2<f32> f_two_product(f32 a, f32 b) {
    const f32 p = a * b;
    return vec2<f32>(p, fmaf(a, b, -p));
}

DEVICE f32 i_to_f32(i32 v) {
    return f32(v);
}

// The instruction would change the bits of NaN.
DEVICE f32 h_to_f32(u32 h) {
#ifndef PELLUCID_TEST_DEVICE
    if ((h & 0x7fffu) <= 0x7c00u) {
        f32 x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)h));
        return x;
    }
#endif
    return h_to_f32_by_bits(h);
}

DEVICE u32 h_from_f32(f32 x) {
#ifndef PELLUCID_TEST_DEVICE
    if (x == x) {
        unsigned short h;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
        return h;
    }
#endif
    return h_from_f32_by_bits(x);
}

DEVICE f32 h_to_f32_by_bits(u32 h) {
    const u32 magnitude = (h & 0x7fffu) << 13u;
    const u32 exponent = magnitude & 0x0f800000u;
    const u32 normal = magnitude + 0x38000000u;
    const u32 special = magnitude + 0x70000000u;
    const u32 small = __float_as_uint(__uint_as_float(normal + 0x800000u) - 6.103515625e-5f);
    const u32 bits = exponent == 0u ? small : exponent == 0x0f800000u ? special : normal;
    return __uint_as_float(bits | (h & 0x8000u) << 16u);
}

DEVICE u32 h_from_f32_by_bits(f32 x) {
    const u32 sign = __float_as_uint(x) >> 16u & 0x8000u;
    const u32 magnitude = __float_as_uint(x) & 0x7fffffffu;
    const u32 odd = magnitude >> 13u & 1u;
    const u32 normal = (magnitude - 0x38000000u + 0xfffu + odd) >> 13u;
    const u32 small = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    const u32 large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const u32 bits = magnitude >= 0x477ff000u ? large : magnitude < 0x38800000u ? small : normal;
    return (bits & 0x7fffu) | sign;
}

DEVICE f32 h_round_f16(f32 x) {
    return h_to_f32(h_from_f32(x));
}

DEVICE vec2<u32> l_add(vec2<u32> a, vec2<u32> b) {
    return words(wide(a) + wide(b));
}

DEVICE vec2<u32> l_sub(vec2<u32> a, vec2<u32> b) {
    return words(wide(a) - wide(b));
}

DEVICE vec2<u32> l_neg(vec2<u32> a) {
    return words(0ull - wide(a));
}

DEVICE vec2<u32> l_mul_words(u32 a, u32 b) {
    return words(u64(a) * b);
}

DEVICE vec2<u32> l_mul(vec2<u32> a, vec2<u32> b) {
    return words(wide(a) * wide(b));
}

DEVICE bool l_eq(vec2<u32> a, vec2<u32> b) {
    return wide(a) == wide(b);
}

DEVICE bool l_lt(vec2<u32> a, vec2<u32> b) {
    return i64(wide(a)) < i64(wide(b));
}

DEVICE bool l_le(vec2<u32> a, vec2<u32> b) {
    return i64(wide(a)) <= i64(wide(b));
}

DEVICE bool l_lt_unsigned(vec2<u32> a, vec2<u32> b) {
    return wide(a) < wide(b);
}

DEVICE vec2<u32> l_shift_left(vec2<u32> a, u32 n) {
    return words(wide(a) << n);
}

DEVICE vec4<u32> l_divide_unsigned(vec2<u32> a, vec2<u32> b) {
    return vec4<u32>(words(wide(a) / wide(b)), words(wide(a) % wide(b)));
}

DEVICE f32 l_to_f32(vec2<u32> v) {
    return f32(i64(wide(v)));
}

DEVICE bool d_is_nan(vec2<u32> x) {
    return real(x) != real(x);
}

DEVICE vec2<u32> d_from_i64(vec2<u32> v) {
    return bits(double(i64(wide(v))));
}

DEVICE bool d_lt(vec2<u32> a, vec2<u32> b) {
    return real(a) < real(b);
}

DEVICE bool d_le(vec2<u32> a, vec2<u32> b) {
    return real(a) <= real(b);
}

DEVICE bool d_eq(vec2<u32> a, vec2<u32> b) {
    return real(a) == real(b);
}

DEVICE vec2<u32> d_add(vec2<u32> a, vec2<u32> b) {
    return bits(real(a) + real(b));
}

DEVICE vec2<u32> d_sub(vec2<u32> a, vec2<u32> b) {
    return bits(real(a) - real(b));
}

DEVICE vec2<u32> d_mul(vec2<u32> a, vec2<u32> b) {
    return bits(real(a) * real(b));
}

DEVICE vec2<u32> d_div(vec2<u32> a, vec2<u32> b) {
    return bits(real(a) / real(b));
}

DEVICE vec2<u32> d_recip(vec2<u32> x) {
    return bits(1.0 / real(x));
}

DEVICE vec2<u32> d_fma(vec2<u32> a, vec2<u32> b, vec2<u32> c) {
    return bits(::fma(real(a), real(b), real(c)));
}

DEVICE vec2<u32> d_sqrt(vec2<u32> x) {
    return bits(real(x) < 0.0 ? __longlong_as_double(0x7ff8000000000000ll) : sqrt(real(x)));
}

DEVICE vec2<u32> d_trunc(vec2<u32> x) {
    return bits(trunc(real(x)));
}

DEVICE vec2<u32> d_floor(vec2<u32> x) {
    return bits(floor(real(x)));
}

DEVICE vec2<u32> d_ceil(vec2<u32> x) {
    return bits(ceil(real(x)));
}

DEVICE vec2<u32> d_round(vec2<u32> x) {
    return bits(rint(real(x)));
}

DEVICE vec4<f32> h_multiply_units_bf16(vec4<f32> c, vec4<u32> a, vec2<u32> b, u32 lane) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
    return c;
}

DEVICE vec4<f32> h_multiply_units_f16(vec4<f32> c, vec4<u32> a, vec2<u32> b, u32 lane) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
    return c;
}
