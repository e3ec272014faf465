// The types and the built-in functions of the kernel language in CUDA C++. Every kernel text starts with this file.

// In a namespace, names such as `min` hide those of CUDA.
namespace pellucid {

typedef unsigned int u32;
typedef float f32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE static __device__ __forceinline__
#define METHOD __device__ __forceinline__

// A signed integer whose arithmetic wraps modulo 2^32. (The overflow of `int` is undefined in C++.)
struct i32 {
    int bits;

    i32() = default;
    METHOD constexpr i32(int x) : bits(x) {}
    METHOD explicit constexpr i32(u32 x) : bits(int(x)) {}
    METHOD explicit constexpr i32(bool x) : bits(x) {}
    METHOD explicit constexpr i32(f32 x) : bits(int(x)) {}
    METHOD explicit constexpr operator u32() const { return u32(bits); }
    METHOD explicit constexpr operator f32() const { return f32(bits); }
    METHOD explicit constexpr operator bool() const { return bits != 0; }
};

#define WRAPPING(op)                                                                                                   \
    DEVICE constexpr i32 operator op(i32 a, i32 b) { return i32(u32(a.bits) op u32(b.bits)); }
WRAPPING(+)
WRAPPING(-)
WRAPPING(*)
WRAPPING(&)
WRAPPING(|)
WRAPPING(^)
#undef WRAPPING

#define COMPARISON(op)                                                                                                 \
    DEVICE constexpr bool operator op(i32 a, i32 b) { return a.bits op b.bits; }
COMPARISON(==)
COMPARISON(!=)
COMPARISON(<)
COMPARISON(<=)
COMPARISON(>)
COMPARISON(>=)
#undef COMPARISON

// The quotient is a for b = 0 and on overflow.
DEVICE constexpr i32 operator/(i32 a, i32 b) {
    return b.bits == 0 || (a.bits == -2147483647 - 1 && b.bits == -1) ? a : i32(a.bits / b.bits);
}
DEVICE constexpr i32 operator%(i32 a, i32 b) { return b.bits == 0 || b.bits == -1 ? i32(0) : i32(a.bits % b.bits); }
DEVICE constexpr i32 operator-(i32 a) { return i32(0u - u32(a.bits)); }
DEVICE constexpr i32 operator~(i32 a) { return i32(~a.bits); }
DEVICE constexpr i32 operator<<(i32 a, u32 n) { return i32(u32(a.bits) << n); }
DEVICE constexpr i32 operator>>(i32 a, u32 n) { return i32(a.bits >> n); }

template <class T> struct alignas(2 * sizeof(T)) vec2 {
    T x, y;

    vec2() = default;
    METHOD explicit vec2(T a) : x(a), y(a) {}
    METHOD vec2(T a, T b) : x(a), y(b) {}
    METHOD T& operator[](u32 i) { return i == 0u ? x : y; }
    METHOD const T& operator[](u32 i) const { return i == 0u ? x : y; }
    METHOD vec2 xy() const { return *this; }
    METHOD vec2 yx() const { return vec2(y, x); }
};

template <class T> struct vec3 {
    T x, y, z;

    vec3() = default;
    METHOD explicit vec3(T a) : x(a), y(a), z(a) {}
    METHOD vec3(T a, T b, T c) : x(a), y(b), z(c) {}
    METHOD T& operator[](u32 i) { return i == 0u ? x : i == 1u ? y : z; }
    METHOD const T& operator[](u32 i) const { return i == 0u ? x : i == 1u ? y : z; }
    METHOD vec2<T> xy() const { return vec2<T>(x, y); }
    METHOD vec2<T> yz() const { return vec2<T>(y, z); }
};

template <class T> struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) vec4 {
    T x, y, z, w;

    vec4() = default;
    METHOD explicit vec4(T a) : x(a), y(a), z(a), w(a) {}
    METHOD vec4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
    METHOD vec4(vec2<T> a, T c, T d) : x(a.x), y(a.y), z(c), w(d) {}
    METHOD vec4(T a, vec2<T> b, T d) : x(a), y(b.x), z(b.y), w(d) {}
    METHOD vec4(T a, T b, vec2<T> c) : x(a), y(b), z(c.x), w(c.y) {}
    METHOD vec4(vec2<T> a, vec2<T> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
    METHOD T& operator[](u32 i) { return i == 0u ? x : i == 1u ? y : i == 2u ? z : w; }
    METHOD const T& operator[](u32 i) const { return i == 0u ? x : i == 1u ? y : i == 2u ? z : w; }
    METHOD vec2<T> xy() const { return vec2<T>(x, y); }
    METHOD vec2<T> yz() const { return vec2<T>(y, z); }
    METHOD vec2<T> zw() const { return vec2<T>(z, w); }
    METHOD vec3<T> xyz() const { return vec3<T>(x, y, z); }
};

// The operators of vectors, elementwise; a scalar operand stands for all elements.
#define VECTOR2(Result, op)                                                                                            \
    template <class T> METHOD vec2<Result> operator op(vec2<T> a, vec2<T> b) {                                         \
        return vec2<Result>(a.x op b.x, a.y op b.y);                                                                   \
    }                                                                                                                  \
    template <class T> METHOD vec2<Result> operator op(vec2<T> a, T b) { return a op vec2<T>(b); }                     \
    template <class T> METHOD vec2<Result> operator op(T a, vec2<T> b) { return vec2<T>(a) op b; }
#define VECTOR3(Result, op)                                                                                            \
    template <class T> METHOD vec3<Result> operator op(vec3<T> a, vec3<T> b) {                                         \
        return vec3<Result>(a.x op b.x, a.y op b.y, a.z op b.z);                                                       \
    }                                                                                                                  \
    template <class T> METHOD vec3<Result> operator op(vec3<T> a, T b) { return a op vec3<T>(b); }                     \
    template <class T> METHOD vec3<Result> operator op(T a, vec3<T> b) { return vec3<T>(a) op b; }
#define VECTOR4(Result, op)                                                                                            \
    template <class T> METHOD vec4<Result> operator op(vec4<T> a, vec4<T> b) {                                         \
        return vec4<Result>(a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w);                                           \
    }                                                                                                                  \
    template <class T> METHOD vec4<Result> operator op(vec4<T> a, T b) { return a op vec4<T>(b); }                     \
    template <class T> METHOD vec4<Result> operator op(T a, vec4<T> b) { return vec4<T>(a) op b; }
#define VECTOR(Result, op) VECTOR2(Result, op) VECTOR3(Result, op) VECTOR4(Result, op)
VECTOR(T, +)
VECTOR(T, -)
VECTOR(T, *)
VECTOR(T, /)
VECTOR(T, %)
VECTOR(T, &)
VECTOR(T, |)
VECTOR(T, ^)
VECTOR(bool, ==)
VECTOR(bool, !=)
VECTOR(bool, <)
VECTOR(bool, <=)
VECTOR(bool, >)
VECTOR(bool, >=)
#undef VECTOR
#undef VECTOR2
#undef VECTOR3
#undef VECTOR4
template <class T> METHOD vec2<T> operator~(vec2<T> a) { return vec2<T>(~a.x, ~a.y); }
template <class T> METHOD vec4<T> operator~(vec4<T> a) { return vec4<T>(~a.x, ~a.y, ~a.z, ~a.w); }
template <class T> METHOD vec2<T> operator-(vec2<T> a) { return vec2<T>(-a.x, -a.y); }
template <class T> METHOD vec4<T> operator-(vec4<T> a) { return vec4<T>(-a.x, -a.y, -a.z, -a.w); }

template <class T, u32 N> struct array {
    T elements[N];

    array() = default;
    template <class... Others> METHOD array(T first, Others... others) : elements{first, T(others)...} {}
    METHOD T& operator[](u32 i) { return elements[i]; }
    METHOD const T& operator[](u32 i) const { return elements[i]; }
};

template <class T> using atomic = T;

template <class To> METHOD To bitcast(u32 x);
template <> METHOD u32 bitcast<u32>(u32 x) { return x; }
template <> METHOD i32 bitcast<i32>(u32 x) { return i32(x); }
template <> METHOD f32 bitcast<f32>(u32 x) { return __uint_as_float(x); }
template <class To> METHOD To bitcast(i32 x) { return bitcast<To>(u32(x)); }
template <class To> METHOD To bitcast(f32 x) { return bitcast<To>(__float_as_uint(x)); }

// A `select` that loads `b` only if the condition is true.
#define select_loaded(a, b, condition) ((condition) ? (b) : (a))
template <class T> METHOD T select(T a, T b, bool condition) { return condition ? b : a; }
METHOD i32 select(i32 a, int b, bool condition) { return condition ? i32(b) : a; }
METHOD i32 select(int a, i32 b, bool condition) { return condition ? b : i32(a); }
METHOD i32 select(int a, int b, bool condition) { return i32(condition ? b : a); }
template <class T> METHOD vec2<T> select(vec2<T> a, vec2<T> b, vec2<bool> c) {
    return vec2<T>(select(a.x, b.x, c.x), select(a.y, b.y, c.y));
}
template <class T> METHOD vec4<T> select(vec4<T> a, vec4<T> b, vec4<bool> c) {
    return vec4<T>(select(a.x, b.x, c.x), select(a.y, b.y, c.y), select(a.z, b.z, c.z), select(a.w, b.w, c.w));
}
DEVICE bool any(vec2<bool> v) { return v.x || v.y; }
DEVICE bool any(vec4<bool> v) { return v.x || v.y || v.z || v.w; }
DEVICE bool all(vec2<bool> v) { return v.x && v.y; }
DEVICE bool all(vec4<bool> v) { return v.x && v.y && v.z && v.w; }

// Floats have other functions, and must not be converted to integers.
template <class T> METHOD T min(T a, T b) = delete;
template <class T> METHOD T max(T a, T b) = delete;
template <class T> METHOD T clamp(T x, T low, T high) = delete;
METHOD i32 abs(f32 x) = delete;
METHOD i32 sign(f32 x) = delete;
DEVICE u32 min(u32 a, u32 b) { return b < a ? b : a; }
DEVICE u32 max(u32 a, u32 b) { return a < b ? b : a; }
DEVICE i32 min(i32 a, i32 b) { return b < a ? b : a; }
DEVICE i32 max(i32 a, i32 b) { return a < b ? b : a; }
DEVICE i32 abs(i32 a) { return a < i32(0) ? -a : a; }
DEVICE i32 sign(i32 a) { return a < i32(0) ? i32(-1) : i32(a != i32(0)); }
DEVICE u32 clamp(u32 x, u32 low, u32 high) { return min(max(x, low), high); }
DEVICE i32 clamp(i32 x, i32 low, i32 high) { return min(max(x, low), high); }
DEVICE f32 fma(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
DEVICE vec2<f32> fma(vec2<f32> a, vec2<f32> b, vec2<f32> c) {
    return vec2<f32>(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y));
}
DEVICE vec4<f32> fma(vec4<f32> a, vec4<f32> b, vec4<f32> c) {
    return vec4<f32>(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w));
}
DEVICE u32 countLeadingZeros(u32 x) { return u32(__clz(int(x))); }
DEVICE u32 countOneBits(u32 x) { return u32(__popc(x)); }

DEVICE u32 atomicLoad(const u32* p) { return *(const volatile u32*)p; }
DEVICE void atomicStore(u32* p, u32 x) { *(volatile u32*)p = x; }

DEVICE void workgroupBarrier() { __syncthreads(); }

DEVICE f32 subgroupShuffle(f32 x, u32 lane) { return __shfl_sync(0xffffffffu, x, int(lane)); }
DEVICE u32 subgroupShuffleXor(u32 x, u32 lanes) { return __shfl_xor_sync(0xffffffffu, x, int(lanes)); }
DEVICE f32 subgroupShuffleXor(f32 x, u32 lanes) { return __shfl_xor_sync(0xffffffffu, x, int(lanes)); }
DEVICE i32 subgroupShuffleXor(i32 x, u32 lanes) { return i32(subgroupShuffleXor(u32(x), lanes)); }
DEVICE vec2<u32> subgroupShuffleXor(vec2<u32> v, u32 lanes) {
    return vec2<u32>(subgroupShuffleXor(v.x, lanes), subgroupShuffleXor(v.y, lanes));
}
DEVICE vec2<f32> subgroupShuffleXor(vec2<f32> v, u32 lanes) {
    return vec2<f32>(subgroupShuffleXor(v.x, lanes), subgroupShuffleXor(v.y, lanes));
}

// The operands of the library functions of 64-bit integers and of f64 are pairs of words, which cost no instruction.
DEVICE u64 wide(vec2<u32> v) { return u64(v.y) << 32 | v.x; }
DEVICE vec2<u32> words(u64 x) { return vec2<u32>(u32(x), u32(x >> 32)); }
DEVICE double real(vec2<u32> v) { return __longlong_as_double(i64(wide(v))); }
DEVICE vec2<u32> bits(double x) { return words(u64(__double_as_longlong(x))); }

}

// End of the common declarations.
