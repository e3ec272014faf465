// The device language of kernel texts on a host C++ compiler. It is included before every kernel text.
//
// A text names each of its kernels once, at file scope:
//
//     #ifdef PELLUCID_TEST_DEVICE
//     TEST_ENTRY(kernel)
//     #endif
//
// Names that start with `pellucid_` belong to the test device. No header of the system is included, for short
// compilations. Types of <cstdint> are missing, as in NVRTC.
#pragma GCC system_header
#define PELLUCID_TEST_DEVICE 1
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1

typedef unsigned long long pellucid_u64;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
// `extern __shared__ T name[]` is rewritten by the compiler of the test device to a pointer to this memory.
#define __shared__ static __attribute__((section("pellucid_shared")))

// Vector types, with CUDA's alignments.
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };
#define PELLUCID_VECTORS(T, name) \
    struct __align__(2 * sizeof(T)) name##2 { T x, y; }; \
    struct name##3 { T x, y, z; }; \
    struct __align__(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; }; \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
PELLUCID_VECTORS(float, float)
PELLUCID_VECTORS(double, double)
PELLUCID_VECTORS(int, int)
PELLUCID_VECTORS(short, short)
PELLUCID_VECTORS(unsigned short, ushort)
PELLUCID_VECTORS(unsigned char, uchar)
PELLUCID_VECTORS(signed char, char)
PELLUCID_VECTORS(long long, longlong)
PELLUCID_VECTORS(unsigned long long, ulonglong)
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// The state that the test device sets before it runs a thread.
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;
static __attribute__((aligned(128))) unsigned char pellucid_dynamic_shared[232448 + 256];
extern char pellucid_shared_start[] __asm__("__start_pellucid_shared")
    __attribute__((weak, visibility("hidden")));
extern char pellucid_shared_stop[] __asm__("__stop_pellucid_shared") __attribute__((weak, visibility("hidden")));

// What a module and the test device know of each other. The layout is the one of `ModuleInfo` in `module_info.rs`.
struct pellucid_module_info {
    uint3 *thread, *block;
    dim3 *block_dim, *grid_dim;
    unsigned char *dynamic;
    char *shared_start, *shared_stop;
    pellucid_u64 (*barrier)(unsigned line, unsigned kind, int predicate);
    pellucid_u64 (*warp)(unsigned line, unsigned kind, unsigned mask, pellucid_u64 value, unsigned lane, unsigned width);
    void (*trap)(unsigned line);
};
extern "C" pellucid_module_info pellucid_module;
pellucid_module_info pellucid_module = {
    &threadIdx, &blockIdx, &blockDim, &gridDim, pellucid_dynamic_shared,
    pellucid_shared_start, pellucid_shared_stop, 0, 0, 0};

// The entry of a kernel: it reads the arguments through an array of pointers, as `cuLaunchKernel` does.
struct pellucid_parameter { unsigned size, kind; };
struct pellucid_kernel_info {
    void (*call)(void **);
    unsigned count;
    const pellucid_parameter *parameters;
};
template <class T> struct pellucid_kind { enum { value = 0 }; };
template <class T> struct pellucid_kind<const T *> { enum { value = 1 }; };
template <class T> struct pellucid_kind<T *> { enum { value = 2 }; };
template <unsigned... I> struct pellucid_indices {};
template <unsigned N, unsigned... I> struct pellucid_count : pellucid_count<N - 1, N - 1, I...> {};
template <unsigned... I> struct pellucid_count<0, I...> { typedef pellucid_indices<I...> list; };
// Names of a text are its own: an unnamed namespace keeps the symbols of two modules apart.
namespace {
template <class... A> struct pellucid_arguments {
    static constexpr unsigned count = sizeof...(A);
    static constexpr pellucid_parameter parameters[sizeof...(A) + 1] = {
        {sizeof(A), pellucid_kind<A>::value}..., {0, 0}};
    typedef typename pellucid_count<sizeof...(A)>::list indices;
    template <unsigned... I>
    static inline void call(void (*kernel)(A...), void **a, pellucid_indices<I...>) { kernel(*(A *)a[I]...); }
};
template <class... A> constexpr pellucid_arguments<A...> pellucid_signature(void (*)(A...)) { return {}; }
}
#define TEST_ENTRY(name) \
    static void pellucid_call_##name(void **a) { \
        typedef decltype(pellucid_signature(&name)) signature; \
        signature::call(&name, a, signature::indices()); \
    } \
    extern "C" const pellucid_kernel_info pellucid_kernel_##name; \
    const pellucid_kernel_info pellucid_kernel_##name = { \
        pellucid_call_##name, decltype(pellucid_signature(&name))::count, \
        decltype(pellucid_signature(&name))::parameters};

// Barriers. The line tells barriers apart, since all threads of a block must reach the same one.
#define __syncthreads() ((void)pellucid_module.barrier(__LINE__, 0, 0))
#define __syncthreads_count(p) ((int)pellucid_module.barrier(__LINE__, 1, !!(p)))
#define __syncthreads_and(p) ((int)pellucid_module.barrier(__LINE__, 2, !!(p)))
#define __syncthreads_or(p) ((int)pellucid_module.barrier(__LINE__, 3, !!(p)))
#define __trap() pellucid_module.trap(__LINE__)
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)
#define __threadfence_system() ((void)0)

// Operations of a warp. `warps.rs` has the same numbers of kinds.
template <class T> static inline pellucid_u64 pellucid_pack(T v) {
    static_assert(sizeof(T) <= 8, "a shuffled value has at most 8 bytes");
    pellucid_u64 bits = 0;
    __builtin_memcpy(&bits, &v, sizeof(T));
    return bits;
}
template <class T> static inline T pellucid_unpack(pellucid_u64 bits) {
    T v;
    __builtin_memcpy(&v, &bits, sizeof(T));
    return v;
}
template <class T>
static inline T pellucid_shuffle(unsigned line, unsigned kind, unsigned mask, T v, unsigned lane, unsigned width) {
    return pellucid_unpack<T>(pellucid_module.warp(line, kind, mask, pellucid_pack(v), lane, width));
}
template <class T> static inline T __shfl_sync(unsigned m, T v, int lane, int width = 32) {
    return pellucid_shuffle(0, 1, m, v, lane, width);
}
template <class T> static inline T __shfl_up_sync(unsigned m, T v, unsigned d, int width = 32) {
    return pellucid_shuffle(0, 2, m, v, d, width);
}
template <class T> static inline T __shfl_down_sync(unsigned m, T v, unsigned d, int width = 32) {
    return pellucid_shuffle(0, 3, m, v, d, width);
}
template <class T> static inline T __shfl_xor_sync(unsigned m, T v, int lanes, int width = 32) {
    return pellucid_shuffle(0, 4, m, v, lanes, width);
}
static inline void __syncwarp(unsigned m = 0xffffffffu) { pellucid_module.warp(0, 0, m, 0, 0, 32); }
static inline unsigned __ballot_sync(unsigned m, int p) { return pellucid_module.warp(0, 5, m, !!p, 0, 32); }
static inline int __any_sync(unsigned m, int p) { return pellucid_module.warp(0, 6, m, !!p, 0, 32); }
static inline int __all_sync(unsigned m, int p) { return pellucid_module.warp(0, 7, m, !!p, 0, 32); }
static inline unsigned __match_any_sync(unsigned m, pellucid_u64 v) { return pellucid_module.warp(0, 8, m, v, 0, 32); }
static inline unsigned __reduce_add_sync(unsigned m, unsigned v) { return pellucid_module.warp(0, 9, m, v, 0, 32); }
static inline unsigned __reduce_min_sync(unsigned m, unsigned v) { return pellucid_module.warp(0, 10, m, v, 0, 32); }
static inline unsigned __reduce_max_sync(unsigned m, unsigned v) { return pellucid_module.warp(0, 11, m, v, 0, 32); }
static inline unsigned __reduce_or_sync(unsigned m, unsigned v) { return pellucid_module.warp(0, 12, m, v, 0, 32); }
static inline unsigned __reduce_and_sync(unsigned m, unsigned v) { return pellucid_module.warp(0, 13, m, v, 0, 32); }

// Atomic operations. Threads run one at a time, so plain reads and writes are atomic.
#define PELLUCID_ATOMIC(name, T, result) \
    static inline T name(T *p, T v) { T old = *p; *p = result; return old; }
#define PELLUCID_ATOMIC_BITS(T) \
    PELLUCID_ATOMIC(atomicAnd, T, old & v) PELLUCID_ATOMIC(atomicOr, T, old | v) PELLUCID_ATOMIC(atomicXor, T, old ^ v) \
    PELLUCID_ATOMIC(atomicMin, T, v < old ? v : old) PELLUCID_ATOMIC(atomicMax, T, v > old ? v : old) \
    PELLUCID_ATOMIC(atomicExch, T, v) \
    static inline T atomicCAS(T *p, T expected, T v) { T old = *p; *p = old == expected ? v : old; return old; }
PELLUCID_ATOMIC_BITS(int)
PELLUCID_ATOMIC_BITS(unsigned)
PELLUCID_ATOMIC_BITS(long long)
PELLUCID_ATOMIC_BITS(unsigned long long)
PELLUCID_ATOMIC_BITS(unsigned long)
PELLUCID_ATOMIC(atomicAdd, int, old + v)
PELLUCID_ATOMIC(atomicAdd, unsigned, old + v)
PELLUCID_ATOMIC(atomicAdd, unsigned long long, old + v)
PELLUCID_ATOMIC(atomicAdd, unsigned long, old + v)
PELLUCID_ATOMIC(atomicAdd, float, old + v)
PELLUCID_ATOMIC(atomicAdd, double, old + v)
PELLUCID_ATOMIC(atomicSub, int, old - v)
PELLUCID_ATOMIC(atomicSub, unsigned, old - v)
PELLUCID_ATOMIC(atomicExch, float, v)
PELLUCID_ATOMIC(atomicInc, unsigned, old >= v ? 0 : old + 1)
PELLUCID_ATOMIC(atomicDec, unsigned, old == 0 || old > v ? v : old - 1)
static inline unsigned short atomicCAS(unsigned short *p, unsigned short expected, unsigned short v) {
    unsigned short old = *p;
    if (old == expected) *p = v;
    return old;
}

// Bits.
static inline unsigned __float_as_uint(float v) { return pellucid_pack(v); }
static inline int __float_as_int(float v) { return (int)pellucid_pack(v); }
static inline float __uint_as_float(unsigned v) { return pellucid_unpack<float>(v); }
static inline float __int_as_float(int v) { return pellucid_unpack<float>((unsigned)v); }
static inline long long __double_as_longlong(double v) { return pellucid_pack(v); }
static inline double __longlong_as_double(long long v) { return pellucid_unpack<double>(v); }
static inline int __double2hiint(double v) { return (int)(pellucid_pack(v) >> 32); }
static inline int __double2loint(double v) { return (int)pellucid_pack(v); }
static inline double __hiloint2double(int high, int low) {
    return pellucid_unpack<double>((pellucid_u64)(unsigned)high << 32 | (unsigned)low);
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (pellucid_u64)a * b >> 32; }
static inline int __mulhi(int a, int b) { return (long long)a * b >> 32; }
static inline pellucid_u64 __umul64hi(pellucid_u64 a, pellucid_u64 b) { return (unsigned __int128)a * b >> 64; }
static inline long long __mul64hi(long long a, long long b) { return (__int128)a * b >> 64; }
static inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(pellucid_u64 v) { return __builtin_popcountll(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __brev(unsigned v) {
    v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
    v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
    v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(v);
}
static inline pellucid_u64 __brevll(pellucid_u64 v) {
    return (pellucid_u64)__brev((unsigned)v) << 32 | __brev((unsigned)(v >> 32));
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    pellucid_u64 both = (pellucid_u64)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(both >> (s >> 4 * i & 7) * 8 & 255) << 8 * i;
    return r;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned s) {
    return (((pellucid_u64)high << 32 | low) << (s & 31)) >> 32;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned s) {
    return ((pellucid_u64)high << 32 | low) >> (s & 31);
}
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }

// Mathematics: the functions of the host's C library, with CUDA's overloads.
#define PELLUCID_UNARY(name) \
    extern "C" double name(double); extern "C" float name##f(float); \
    static inline float name(float x) { return name##f(x); }
#define PELLUCID_BINARY(name) \
    extern "C" double name(double, double); extern "C" float name##f(float, float); \
    static inline float name(float x, float y) { return name##f(x, y); }
PELLUCID_UNARY(exp) PELLUCID_UNARY(exp2) PELLUCID_UNARY(exp10) PELLUCID_UNARY(expm1) PELLUCID_UNARY(log)
PELLUCID_UNARY(log2) PELLUCID_UNARY(log10) PELLUCID_UNARY(log1p) PELLUCID_UNARY(sqrt) PELLUCID_UNARY(cbrt)
PELLUCID_UNARY(sin) PELLUCID_UNARY(cos) PELLUCID_UNARY(tan) PELLUCID_UNARY(asin) PELLUCID_UNARY(acos)
PELLUCID_UNARY(atan) PELLUCID_UNARY(sinh) PELLUCID_UNARY(cosh) PELLUCID_UNARY(tanh) PELLUCID_UNARY(asinh)
PELLUCID_UNARY(acosh) PELLUCID_UNARY(atanh) PELLUCID_UNARY(erf) PELLUCID_UNARY(erfc) PELLUCID_UNARY(tgamma)
PELLUCID_UNARY(lgamma) PELLUCID_UNARY(ceil) PELLUCID_UNARY(floor) PELLUCID_UNARY(trunc) PELLUCID_UNARY(round)
PELLUCID_UNARY(rint) PELLUCID_UNARY(nearbyint) PELLUCID_UNARY(fabs)
PELLUCID_BINARY(pow) PELLUCID_BINARY(atan2) PELLUCID_BINARY(fmod) PELLUCID_BINARY(remainder) PELLUCID_BINARY(hypot)
PELLUCID_BINARY(fmin) PELLUCID_BINARY(fmax) PELLUCID_BINARY(fdim) PELLUCID_BINARY(copysign) PELLUCID_BINARY(nextafter)
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
extern "C" double ldexp(double, int);
extern "C" float ldexpf(float, int);
extern "C" double frexp(double, int *);
extern "C" float frexpf(float, int *);
extern "C" int printf(const char *, ...);
extern "C" void *memcpy(void *, const void *, size_t);
extern "C" void *memset(void *, int, size_t);
static inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline float ldexp(float x, int n) { return ldexpf(x, n); }
static inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline bool isnan(float x) { return __builtin_isnan(x); }
static inline bool isnan(double x) { return __builtin_isnan(x); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline bool isfinite(float x) { return __builtin_isfinite(x); }
static inline bool isfinite(double x) { return __builtin_isfinite(x); }
static inline bool signbit(float x) { return __builtin_signbitf(x); }
static inline bool signbit(double x) { return __builtin_signbit(x); }
static inline int abs(int x) { return x < 0 ? -(unsigned)x : x; }
static inline long long abs(long long x) { return x < 0 ? -(pellucid_u64)x : x; }
static inline long abs(long x) { return x < 0 ? -(unsigned long)x : x; }
static inline float abs(float x) { return __builtin_fabsf(x); }
static inline double abs(double x) { return __builtin_fabs(x); }
#define PELLUCID_MINMAX(T) \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
PELLUCID_MINMAX(int) PELLUCID_MINMAX(unsigned) PELLUCID_MINMAX(long) PELLUCID_MINMAX(unsigned long)
PELLUCID_MINMAX(long long) PELLUCID_MINMAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
#define PELLUCID_ROUNDED(T, p, name, expression) \
    static inline T __##p##name##_rn(T x, T y) { return expression; }
PELLUCID_ROUNDED(float, f, add, x + y) PELLUCID_ROUNDED(float, f, sub, x - y)
PELLUCID_ROUNDED(float, f, mul, x * y) PELLUCID_ROUNDED(float, f, div, x / y)
PELLUCID_ROUNDED(double, d, add, x + y) PELLUCID_ROUNDED(double, d, sub, x - y)
PELLUCID_ROUNDED(double, d, mul, x * y) PELLUCID_ROUNDED(double, d, div, x / y)
static inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
static inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline double __drcp_rn(double x) { return 1.0 / x; }

// Fast functions, which a GPU approximates.
#define PELLUCID_FAST(name) static inline float __##name(float x) { return name(x); }
PELLUCID_FAST(expf) PELLUCID_FAST(exp10f) PELLUCID_FAST(logf) PELLUCID_FAST(log2f) PELLUCID_FAST(log10f)
PELLUCID_FAST(sinf) PELLUCID_FAST(cosf) PELLUCID_FAST(tanf)
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline void sincosf(float x, float *s, float *c) { *s = sinf(x), *c = cosf(x); }
static inline void sincos(double x, double *s, double *c) { *s = sin(x), *c = cos(x); }
static inline void __nanosleep(unsigned) {}

// Conversions to integers, which saturate and convert NaN to 0 on a GPU.
#define PELLUCID_SATURATED(name, F, T, rounding, low, high) \
    static inline T name(F x) { \
        F r = rounding(x); \
        return r != r ? 0 : r <= (F)(low) ? (low) : r >= (F)(high) ? (high) : (T)r; \
    }
#define PELLUCID_CONVERSIONS(suffix, ff, fd) \
    PELLUCID_SATURATED(__float2int_##suffix, float, int, ff, -2147483647 - 1, 2147483647) \
    PELLUCID_SATURATED(__float2uint_##suffix, float, unsigned, ff, 0u, 4294967295u) \
    PELLUCID_SATURATED(__float2ll_##suffix, float, long long, ff, -9223372036854775807ll - 1, 9223372036854775807ll) \
    PELLUCID_SATURATED(__float2ull_##suffix, float, pellucid_u64, ff, 0ull, 18446744073709551615ull) \
    PELLUCID_SATURATED(__double2int_##suffix, double, int, fd, -2147483647 - 1, 2147483647) \
    PELLUCID_SATURATED(__double2uint_##suffix, double, unsigned, fd, 0u, 4294967295u) \
    PELLUCID_SATURATED(__double2ll_##suffix, double, long long, fd, -9223372036854775807ll - 1, 9223372036854775807ll) \
    PELLUCID_SATURATED(__double2ull_##suffix, double, pellucid_u64, fd, 0ull, 18446744073709551615ull)
PELLUCID_CONVERSIONS(rz, truncf, trunc)
PELLUCID_CONVERSIONS(rn, rintf, rint)
PELLUCID_CONVERSIONS(rd, floorf, floor)
PELLUCID_CONVERSIONS(ru, ceilf, ceil)
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(pellucid_u64 x) { return (float)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline double __ull2double_rn(pellucid_u64 x) { return (double)x; }
static inline float __double2float_rn(double x) { return (float)x; }

// Half precision. The names without underscores are in `cuda_fp16.h`, as those of a text may be its own. Bits with conversions that round to nearest even. Arithmetic rounds the result of `float`, which is
// correct for the four operations and square roots of these formats.
static inline unsigned short pellucid_round_half(double value) {
    pellucid_u64 bits = pellucid_pack(value), magnitude = bits & 0x7fffffffffffffffull;
    unsigned short sign = bits >> 48 & 0x8000;
    if (magnitude > 0x7ff0000000000000ull) return sign | 0x7e00 | (magnitude >> 42 & 0x1ff);
    int exponent = (int)(magnitude >> 52) - 1023;
    if (exponent > 15) return sign | 0x7c00;
    // The unit of the last place is 2^(exponent - 10), and 2^-24 for subnormal numbers.
    int unit = exponent < -14 ? -24 : exponent - 10;
    double scaled = __builtin_rint(__builtin_ldexp(pellucid_unpack<double>(magnitude), -unit));
    unsigned steps = (unsigned)scaled;
    unsigned short encoded = exponent < -14 ? steps : ((exponent + 14) << 10) + steps;
    return sign | encoded;
}
static inline float pellucid_half_value(unsigned short bits) {
    unsigned sign = (unsigned)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) {
        float magnitude = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -magnitude : magnitude;
    }
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}
static inline unsigned short pellucid_round_bfloat(float value) {
    unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
static inline float pellucid_bfloat_value(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
#define PELLUCID_NARROW(T, T2, round_float, value_of) \
    struct T { \
        unsigned short bits; \
        T() = default; \
        T(float v) : bits(round_float(v)) {} \
        T(double v) : bits(round_float(v)) {} \
        T(int v) : bits(round_float((float)v)) {} \
        operator float() const { return value_of(bits); } \
        T operator-() const { T r; r.bits = bits ^ 0x8000; return r; } \
        T &operator+=(T o) { return *this = T((float)*this + (float)o); } \
        T &operator-=(T o) { return *this = T((float)*this - (float)o); } \
        T &operator*=(T o) { return *this = T((float)*this * (float)o); } \
        T &operator/=(T o) { return *this = T((float)*this / (float)o); } \
    }; \
    struct __align__(4) T2 { T x, y; }; \
    static inline T operator+(T a, T b) { return T((float)a + (float)b); } \
    static inline T operator-(T a, T b) { return T((float)a - (float)b); } \
    static inline T operator*(T a, T b) { return T((float)a * (float)b); } \
    static inline T operator/(T a, T b) { return T((float)a / (float)b); } \
    static inline bool operator<(T a, T b) { return (float)a < (float)b; } \
    static inline bool operator>(T a, T b) { return (float)a > (float)b; } \
    static inline bool operator<=(T a, T b) { return (float)a <= (float)b; } \
    static inline bool operator>=(T a, T b) { return (float)a >= (float)b; } \
    static inline bool operator==(T a, T b) { return (float)a == (float)b; } \
    static inline bool operator!=(T a, T b) { return (float)a != (float)b; } \
    static inline T __hadd(T a, T b) { return a + b; } \
    static inline T __hsub(T a, T b) { return a - b; } \
    static inline T __hmul(T a, T b) { return a * b; } \
    static inline T __hdiv(T a, T b) { return a / b; } \
    static inline T __hneg(T a) { return -a; } \
    static inline bool __hisnan(T a) { return __builtin_isnan((float)a); }
PELLUCID_NARROW(__half, __half2, pellucid_round_half, pellucid_half_value)
PELLUCID_NARROW(__nv_bfloat16, __nv_bfloat162, pellucid_round_bfloat, pellucid_bfloat_value)
static inline __half __float2half(float v) { return __half(v); }
static inline __half __float2half_rn(float v) { return __half(v); }
static inline __half __double2half(double v) { return __half(v); }
static inline float __half2float(__half v) { return v; }
static inline unsigned short __half_as_ushort(__half v) { return v.bits; }
static inline __half __ushort_as_half(unsigned short v) { __half r; r.bits = v; return r; }
// The product is exact in `double`. The sum is rounded twice if the exponents differ by more than 31.
static inline __half __hfma(__half a, __half b, __half c) { return __half((double)(float)a * (float)b + (float)c); }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline float __low2float(__half2 v) { return v.x; }
static inline float __high2float(__half2 v) { return v.y; }
static inline __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
static inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
static inline float __bfloat162float(__nv_bfloat16 v) { return v; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { __nv_bfloat16 r; r.bits = v; return r; }
