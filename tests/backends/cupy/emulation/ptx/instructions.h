// The instructions that NVRTC uses for our kernels, by name.
#pragma once
#include <unordered_map>

#include "numbers.h"

// ---- of single threads ----

template <class D, auto F, class... A, size_t... I>
void apply(Warp& w, const Instruction& in, u32 lanes, std::index_sequence<I...>) {
  u64* to = w.slot(in.operands[0]);
  const u64* from[] = {w.slot(in.operands[1 + I])...};
  if (lanes == ALL)
    for (u32 lane = 0; lane < LANES; ++lane) to[lane] = bits<D>(F(value<A>(from[I][lane])...));
  else
    FOR_LANES(w, lanes) to[w.lane] = bits<D>(F(value<A>(from[I][w.lane])...));
}
// d = F(a, ...), with operands of the types A
template <class D, auto F, class... A> void op(Warp& w, const Instruction& in, u32 lanes) {
  apply<D, F, A...>(w, in, lanes, std::index_sequence_for<A...>());
}
template <class T, auto F> constexpr Handler unary = op<T, F, T>;
template <class T, auto F> constexpr Handler binary = op<T, F, T, T>;
template <class T, auto F> constexpr Handler ternary = op<T, F, T, T, T>;

// On float32 with subnormal operands and results flushed to 0.
template <auto F> constexpr Handler unary_ftz = op<float, [](float a) { return flushed(F(flushed(a))); }, float>;
template <auto F> constexpr Handler binary_ftz =
    op<float, [](float a, float b) { return flushed(F(flushed(a), flushed(b))); }, float, float>;
template <auto F> constexpr Handler ternary_ftz =
    op<float, [](float a, float b, float c) { return flushed(F(flushed(a), flushed(b), flushed(c))); }, float, float,
       float>;

inline void set(Warp& w, u32 predicate, u32 lanes, u32 truth) {
  u64& all = w.slot(predicate)[0];
  all = (all & ~lanes) | (truth & lanes);
}
template <auto F> void logic(Warp& w, const Instruction& in, u32 lanes) {
  set(w, in.operands[0], lanes, F(u32(w.slot(in.operands[1])[0]), u32(w.slot(in.operands[2])[0])));
}
template <auto F> void logic_of_one(Warp& w, const Instruction& in, u32 lanes) {
  set(w, in.operands[0], lanes, F(u32(w.slot(in.operands[1])[0])));
}
template <class T, auto F> void compare(Warp& w, const Instruction& in, u32 lanes) {
  u32 truth = 0;
  const u64 *a = w.slot(in.operands[1]), *b = w.slot(in.operands[2]);
  FOR_LANES(w, lanes) truth |= u32(F(value<T>(a[w.lane]), value<T>(b[w.lane]))) << w.lane;
  set(w, in.operands[0], lanes, truth);
}
template <auto F> constexpr Handler compare_ftz =
    compare<float, [](float a, float b) { return F(flushed(a), flushed(b)); }>;

inline void select(Warp& w, const Instruction& in, u32 lanes) {
  u32 truth = w.slot(in.operands[3])[0];
  FOR_LANES(w, lanes) w.slot(in.operands[0])[w.lane] = w.slot(in.operands[truth >> w.lane & 1 ? 1 : 2])[w.lane];
}

// mov from one register to several of SIZE bits, and back.
template <int SIZE> void split(Warp& w, const Instruction& in, u32 lanes) {
  FOR_LANES(w, lanes) {
    u64 whole = w.slot(in.operands[in.count])[w.lane];
    for (int i = 0; i < in.count; ++i) w.slot(in.operands[i])[w.lane] = whole >> SIZE * i & ((u64(1) << SIZE) - 1);
  }
}
template <int SIZE> void join(Warp& w, const Instruction& in, u32 lanes) {
  FOR_LANES(w, lanes) {
    u64 whole = 0;
    for (int i = 0; i < in.count; ++i)
      whole |= (w.slot(in.operands[1 + i])[w.lane] & ((u64(1) << SIZE) - 1)) << SIZE * i;
    w.slot(in.operands[0])[w.lane] = whole;
  }
}

// d = X(a, b) + (b or c) in 32 bits, with a carry from the last such instruction if TAKES, for the next if GIVES. A
// difference is the sum with the complement, and borrows if there is no carry.
template <bool TAKES, bool GIVES, auto X, int LAST, bool SUBTRACTS = false>
void add_with_carry(Warp& w, const Instruction& in, u32 lanes) {
  FOR_LANES(w, lanes) {
    u32 me = 1u << w.lane, a = w.slot(in.operands[1])[w.lane], b = w.slot(in.operands[2])[w.lane];
    u32 y = w.slot(in.operands[LAST])[w.lane];
    u64 sum = u64(X(a, b)) + (SUBTRACTS ? ~y : y) + ((TAKES && w.carry & me) != SUBTRACTS);
    w.slot(in.operands[0])[w.lane] = u32(sum);
    if (GIVES) w.carry = (w.carry & ~me) | (bool(sum >> 32) != SUBTRACTS ? me : 0);
  }
}

// atom d, [a], b, ...: memory becomes F(old value, b, ...)
template <class T, auto F, class... A, size_t... I>
void change(Warp& w, const Instruction& in, u32 lanes, std::index_sequence<I...>) {
  FOR_LANES(w, lanes) {
    u8* at = global(w, w.slot(in.operands[1])[w.lane] + in.offset, sizeof(T), true, true);
    T old, next;
    std::memcpy(&old, at, sizeof old);
    next = F(old, value<A>(w.slot(in.operands[2 + I])[w.lane])...);
    std::memcpy(at, &next, sizeof next);
    w.slot(in.operands[0])[w.lane] = bits(old);
  }
}
template <class T, auto F, class... A> void atomic(Warp& w, const Instruction& in, u32 lanes) {
  change<T, F, A...>(w, in, lanes, std::index_sequence_for<A...>());
}

// ---- of the threads of a warp ----

// shfl.sync.bfly d|p, a, b, c, mask
inline void shuffle(Warp& w, const Instruction& in, u32 lanes) {
  u64 given[LANES], *to = w.slot(in.operands[0]);
  std::memcpy(given, w.slot(in.operands[2]), sizeof given);
  u32 valid = 0;
  FOR_LANES(w, lanes) {
    u32 step = w.slot(in.operands[3])[w.lane] & 31, limits = w.slot(in.operands[4])[w.lane];
    u32 segment = limits >> 8 & 31, most = (w.lane & segment) | (limits & 31 & ~segment), from = w.lane ^ step;
    bool is_valid = from <= most;
    if (!is_valid) from = w.lane;
    if (!(lanes >> from & 1)) throw Error("a shuffle from a thread that is not there");
    valid |= u32(is_valid) << w.lane;
    to[w.lane] = given[from];
  }
  set(w, in.operands[1], lanes, valid);
}

inline void join_warp(Warp& w, const Instruction&, u32) { ++w.time; }

// ldmatrix.m8n8.x4: lane i gives the address of row i % 8 of matrix i / 8.
template <bool TRANSPOSED> void load_matrices(Warp& w, const Instruction& in, u32 lanes) {
  u64 rows[LANES];
  for (u32 i = 0; i < LANES; ++i) check_aligned(rows[i] = w.slot(in.operands[4])[i] + in.offset, 16);
  FOR_LANES(w, lanes)
    for (int matrix = 0; matrix < 4; ++matrix) {
      u64 pair = 0;
      for (int j = 0; j < 2; ++j) {
        int row = w.lane / 4, column = w.lane % 4 * 2 + j;
        if (TRANSPOSED) std::swap(row, column);
        u16 element;
        std::memcpy(&element, shared(w, rows[8 * matrix + row] + 2 * column, 2, false, 2), 2);
        pair |= u64(element) << 16 * j;
      }
      w.slot(in.operands[matrix])[w.lane] = pair;
    }
}

// mma.m16n8k16 d, a, b, c: the PTX ISA has a table of each lane's elements in the matrices.
template <auto WIDEN> void multiply(Warp& w, const Instruction& in, u32) {
  double a[16][16], b[16][8], c[16][8];
  const auto element = [&](int operand, int lane, int i) {
    return double(WIDEN(u16(w.slot(in.operands[operand + i / 2])[lane] >> 16 * (i % 2))));
  };
  for (int lane = 0; lane < int(LANES); ++lane) {
    int group = lane >> 2, in_group = lane % 4;
    for (int i = 0; i < 8; ++i)
      a[i < 2 || (i >= 4 && i < 6) ? group : group + 8][in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)] = element(4, lane, i);
    for (int i = 0; i < 4; ++i) b[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group] = element(8, lane, i);
    for (int i = 0; i < 4; ++i)
      c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = value<float>(w.slot(in.operands[10 + i])[lane]);
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < int(LANES); ++lane)
    for (int i = 0; i < 4; ++i)
      w.slot(in.operands[i])[lane] = bits(float(c[i < 2 ? lane >> 2 : (lane >> 2) + 8][lane % 4 * 2 + (i & 1)]));
}

// ---- the table ----

struct Row { Handler run; Kind kind = PLAIN; };
typedef std::unordered_map<std::string, Row> Table;

#define F(...) [](__VA_ARGS__)
#define COMPARISONS(TYPE, COMPARE, T) \
  t["setp.eq." TYPE] = {COMPARE(F(T a, T b) { return a == b; })}; \
  t["setp.ne." TYPE] = {COMPARE(F(T a, T b) { return a < b || b < a; })}; \
  t["setp.lt." TYPE] = {COMPARE(F(T a, T b) { return a < b; })}; \
  t["setp.le." TYPE] = {COMPARE(F(T a, T b) { return a <= b; })}; \
  t["setp.gt." TYPE] = {COMPARE(F(T a, T b) { return b < a; })}; \
  t["setp.ge." TYPE] = {COMPARE(F(T a, T b) { return b <= a; })};
// Comparisons that are also true if either is NaN, and whether either is NaN. Without >, which would end a template.
#define COMPARISONS_WITH_NAN(TYPE, COMPARE, T) \
  COMPARISONS(TYPE, COMPARE, T) \
  t["setp.equ." TYPE] = {COMPARE(F(T a, T b) { return !(a < b || b < a); })}; \
  t["setp.neu." TYPE] = {COMPARE(F(T a, T b) { return !(a == b); })}; \
  t["setp.ltu." TYPE] = {COMPARE(F(T a, T b) { return !(b <= a); })}; \
  t["setp.leu." TYPE] = {COMPARE(F(T a, T b) { return !(b < a); })}; \
  t["setp.gtu." TYPE] = {COMPARE(F(T a, T b) { return !(a <= b); })}; \
  t["setp.geu." TYPE] = {COMPARE(F(T a, T b) { return !(a < b); })}; \
  t["setp.num." TYPE] = {COMPARE(F(T a, T b) { return a == a && b == b; })}; \
  t["setp.nan." TYPE] = {COMPARE(F(T a, T b) { return a != a || b != b; })};

#define COMPARE_INTEGERS(...) compare<T, __VA_ARGS__>
template <class T> void add_integers(Table& t, const std::string& type) {
  typedef std::make_unsigned_t<T> U;  // results are modulo a power of 2
  t["add." + type] = {binary<U, F(U a, U b) { return U(a + b); }>};
  t["sub." + type] = {binary<U, F(U a, U b) { return U(a - b); }>};
  t["mul.lo." + type] = {binary<U, F(U a, U b) { return U(a * b); }>};
  t["mad.lo." + type] = {ternary<U, F(U a, U b, U c) { return U(a * b + c); }>};
  t["neg." + type] = {unary<U, F(U a) { return U(0 - a); }>};
  t["div." + type] = {binary<T, quotient<T>>}, t["rem." + type] = {binary<T, rest<T>>};
  t["max." + type] = {binary<T, F(T a, T b) { return b < a ? a : b; }>};
  t["min." + type] = {binary<T, F(T a, T b) { return a < b ? a : b; }>};
  t["shr." + type] = {op<T, shifted_right<T>, T, u32>};
  t["cvt.rn.f64." + type] = {op<double, F(T a) { return double(a); }, T>};
  t["cvt.rn.f32." + type] = {op<float, F(T a) { return float(a); }, T>};
#define TYPE_ "" + type
  COMPARISONS(TYPE_, COMPARE_INTEGERS, T)
#undef TYPE_
}

template <class T> void add_bits(Table& t, const std::string& type) {
  t["and." + type] = {binary<T, F(T a, T b) { return T(a & b); }>};
  t["or." + type] = {binary<T, F(T a, T b) { return T(a | b); }>};
  t["xor." + type] = {binary<T, F(T a, T b) { return T(a ^ b); }>};
  t["not." + type] = {unary<T, F(T a) { return T(~a); }>};
  t["shl." + type] = {op<T, shifted_left<T>, T, u32>};
  t["setp.eq." + type] = {compare<T, F(T a, T b) { return a == b; }>};
  t["setp.ne." + type] = {compare<T, F(T a, T b) { return a != b; }>};
}

#define COMPARE_DOUBLES(...) compare<double, __VA_ARGS__>
inline void add_doubles(Table& t) {
  typedef double D;
  t["add.f64"] = t["add.rn.f64"] = {binary<D, F(D a, D b) { return a + b; }>};
  t["sub.f64"] = {binary<D, F(D a, D b) { return a - b; }>};
  t["mul.f64"] = t["mul.rn.f64"] = {binary<D, F(D a, D b) { return a * b; }>};
  t["div.rn.f64"] = {binary<D, F(D a, D b) { return a / b; }>};
  t["fma.rn.f64"] = {ternary<D, F(D a, D b, D c) { return std::fma(a, b, c); }>};
  t["sqrt.rn.f64"] = {unary<D, F(D a) { return std::sqrt(a); }>};
  t["rcp.rn.f64"] = {unary<D, F(D a) { return 1 / a; }>};
  t["rcp.approx.ftz.f64"] = {unary<D, F(D a) { return coarse(1 / flushed(a)); }>};
  t["rsqrt.approx.f64"] = {unary<D, F(D a) { return 1 / std::sqrt(a); }>};
  t["rsqrt.approx.ftz.f64"] = {unary<D, F(D a) { return coarse(1 / std::sqrt(flushed(a))); }>};
  t["neg.f64"] = {unary<D, F(D a) { return -a; }>}, t["abs.f64"] = {unary<D, F(D a) { return std::fabs(a); }>};
  t["max.f64"] = {binary<D, largest<D>>}, t["min.f64"] = {binary<D, smallest<D>>};
  t["copysign.f64"] = {binary<D, F(D a, D b) { return std::copysign(b, a); }>};
  t["cvt.rzi.f64.f64"] = {unary<D, F(D a) { return std::trunc(a); }>};
  t["cvt.rni.f64.f64"] = {unary<D, F(D a) { return std::nearbyint(a); }>};
  t["cvt.rmi.f64.f64"] = {unary<D, F(D a) { return std::floor(a); }>};
  COMPARISONS_WITH_NAN("f64", COMPARE_DOUBLES, D)
}

#define COMPARE_FLOATS(...) compare_ftz<__VA_ARGS__>
inline void add_floats(Table& t) {  // with .ftz, an option that CuPy adds
  typedef float S;
  t["add.ftz.f32"] = t["add.rn.ftz.f32"] = {binary_ftz<F(S a, S b) { return a + b; }>};
  t["sub.ftz.f32"] = {binary_ftz<F(S a, S b) { return a - b; }>};
  t["mul.ftz.f32"] = t["mul.rn.ftz.f32"] = {binary_ftz<F(S a, S b) { return a * b; }>};
  t["div.rn.ftz.f32"] = {binary_ftz<F(S a, S b) { return a / b; }>};
  t["fma.rn.ftz.f32"] = {ternary_ftz<F(S a, S b, S c) { return std::fma(a, b, c); }>};
  t["fma.rm.ftz.f32"] = {ternary_ftz<fma_down>};
  t["sqrt.rn.ftz.f32"] = {unary_ftz<F(S a) { return std::sqrt(a); }>};
  t["rcp.rn.ftz.f32"] = t["rcp.approx.ftz.f32"] = {unary_ftz<F(S a) { return 1 / a; }>};
  t["rsqrt.approx.ftz.f32"] = {unary_ftz<F(S a) { return 1 / std::sqrt(a); }>};
  t["ex2.approx.ftz.f32"] = {unary_ftz<F(S a) { return std::exp2(a); }>};
  t["lg2.approx.ftz.f32"] = {unary_ftz<F(S a) { return std::log2(a); }>};
  t["max.ftz.f32"] = {binary_ftz<largest<S>>}, t["min.ftz.f32"] = {binary_ftz<smallest<S>>};
  t["max.NaN.f32"] = {binary<S, F(S a, S b) { return a != a || b != b ? NAN : largest<S>(a, b); }>};
  t["add.rz.ftz.f32"] = {binary_ftz<sum_towards_zero>};
  t["cvt.rmi.ftz.f32.f32"] = {unary_ftz<F(S a) { return std::floor(a); }>};
  t["abs.ftz.f32"] = {unary_ftz<F(S a) { return std::fabs(a); }>};
  t["neg.ftz.f32"] = {unary_ftz<F(S a) { return -a; }>};
  t["copysign.f32"] = {binary<S, F(S a, S b) { return std::copysign(b, a); }>};
  t["cvt.ftz.sat.f32.f32"] = {unary_ftz<saturated>};
  t["cvt.rzi.f32.f32"] = {unary<S, F(S a) { return std::trunc(a); }>};
  t["cvt.rni.f32.f32"] = {unary<S, F(S a) { return std::nearbyint(a); }>};
  COMPARISONS_WITH_NAN("ftz.f32", COMPARE_FLOATS, S)
}

// Integers of several words.
inline void add_carries(Table& t) {
  constexpr auto first = F(u32 a, u32) { return a; };
  constexpr auto low = F(u32 a, u32 b) { return a * b; };
  t["add.cc.u32"] = {add_with_carry<false, true, first, 2>}, t["addc.u32"] = {add_with_carry<true, false, first, 2>};
  t["addc.cc.u32"] = {add_with_carry<true, true, first, 2>};
  t["sub.cc.u32"] = {add_with_carry<false, true, first, 2, true>};
  t["subc.u32"] = {add_with_carry<true, false, first, 2, true>};
  t["subc.cc.u32"] = {add_with_carry<true, true, first, 2, true>};
  t["mad.lo.cc.u32"] = {add_with_carry<false, true, low, 3>}, t["madc.lo.cc.u32"] = {add_with_carry<true, true, low, 3>};
  t["madc.hi.cc.u32"] = {add_with_carry<true, true, high_half_of_32, 3>};
  t["madc.hi.u32"] = {add_with_carry<true, false, high_half_of_32, 3>};
}

inline void add_conversions(Table& t) {
  t["cvt.s64.s32"] = {op<s64, F(s32 a) { return s64(a); }, s32>};
  t["cvt.u64.u32"] = {op<u64, F(u32 a) { return u64(a); }, u32>};
  t["cvt.u32.u64"] = {op<u32, F(u64 a) { return u32(a); }, u64>};
  t["cvt.u16.u32"] = {op<u16, F(u32 a) { return u16(a); }, u32>};
  t["cvt.u32.u16"] = {op<u32, F(u16 a) { return u32(a); }, u16>};
  t["cvt.rzi.s64.f64"] = {op<s64, to_integer<s64>, double>};
  t["cvt.rni.s32.f64"] = {op<s32, to_nearest_integer<s32>, double>};
  t["cvt.rni.ftz.s32.f32"] = {op<s32, F(float a) { return to_nearest_integer<s32>(flushed(a)); }, float>};
  t["cvt.rzi.ftz.s32.f32"] = {op<s32, F(float a) { return to_integer<s32>(flushed(a)); }, float>};
  t["cvt.f32.f16"] = {op<float, widened, Half>};
  t["cvt.rn.f16.f32"] = {op<u16, to_half, float>}, t["cvt.rn.bf16.f32"] = {op<u16, to_bfloat, float>};
  t["cvt.rn.f16x2.f32"] = {op<u32, F(float a, float b) { return u32(to_half(a)) << 16 | to_half(b); }, float, float>};
  t["cvt.rn.bf16x2.f32"] = {
      op<u32, F(float a, float b) { return u32(to_bfloat(a)) << 16 | to_bfloat(b); }, float, float>};
  t["cvt.ftz.f64.f32"] = {op<double, F(float a) { return double(flushed(a)); }, float>};
  t["cvt.rn.ftz.f32.f64"] = {op<float, F(double a) { return flushed(float(a)); }, double>};
}

inline void add_others(Table& t) {
  t["setp.eq.s16"] = {compare<s16, F(s16 a, s16 b) { return a == b; }>};
  t["setp.ne.s16"] = {compare<s16, F(s16 a, s16 b) { return a != b; }>};
  t["mul.wide.u16"] = {op<u32, F(u16 a, u16 b) { return u32(a) * b; }, u16, u16>};
  t["mul.wide.s32"] = {op<s64, F(s32 a, s32 b) { return s64(a) * b; }, s32, s32>};
  t["mul.wide.u32"] = {op<u64, F(u32 a, u32 b) { return u64(a) * b; }, u32, u32>};
  t["mul.hi.u64"] = {binary<u64, high_half>}, t["mul.hi.u32"] = {binary<u32, high_half_of_32>};
  t["mad.wide.u32"] = {op<u64, F(u32 a, u32 b, u64 c) { return u64(a) * b + c; }, u32, u32, u64>};
  t["clz.b64"] = {op<u32, leading_zeros, u64>};
  t["bfi.b32"] = {op<u32, inserted<u32>, u32, u32, u32, u32>};
  t["bfi.b64"] = {op<u64, inserted<u64>, u64, u64, u32, u32>};
  constexpr Handler moved = unary<u64, F(u64 a) { return a; }>;
  t["cvta.to.global.u64"] = {moved};
  for (const char* type : {"b16", "u16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"})
    t["mov." + std::string(type)] = {moved}, t["selp." + std::string(type)] = {select};
  t["and.pred"] = {logic<F(u32 a, u32 b) { return a & b; }>}, t["or.pred"] = {logic<F(u32 a, u32 b) { return a | b; }>};
  t["xor.pred"] = {logic<F(u32 a, u32 b) { return a ^ b; }>};
  t["not.pred"] = {logic_of_one<F(u32 a) { return ~a; }>}, t["mov.pred"] = {logic_of_one<F(u32 a) { return a; }>};
  t["atom.global.add.f32"] = {
      atomic<float, F(float a, float b) { return flushed(flushed(a) + flushed(b)); }, float>};
  t["atom.global.add.f64"] = {atomic<double, F(double a, double b) { return a + b; }, double>};
  t["atom.global.max.s64"] = {atomic<s64, F(s64 a, s64 b) { return std::max(a, b); }, s64>};
  t["atom.global.cas.b64"] = {atomic<u64, F(u64 a, u64 b, u64 c) { return a == b ? c : a; }, u64, u64>};
  t["cp.async.cg.shared.global"] = {copy}, t["cp.async.commit_group"] = {end_group};
  t["cp.async.wait_group"] = {await_groups};
}

inline void add_common(Table& t) {
  t["bar.sync"] = {nullptr, BLOCK_BARRIER}, t["bar.warp.sync"] = {join_warp, WARP_BARRIER};
  t["shfl.sync.bfly.b32"] = {shuffle, SHUFFLE};
  t["ldmatrix.sync.aligned.m8n8.x4.shared.b16"] = {load_matrices<false>, ALIGNED};
  t["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] = {load_matrices<true>, ALIGNED};
  t["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"] = {multiply<F(u16 a) { return widened(Half{a}); }>, ALIGNED};
  t["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = {
      multiply<F(u16 a) { return value<float>(u64(a) << 16); }>, ALIGNED};
  t["bra"] = t["bra.uni"] = {nullptr, BRANCH}, t["call.uni"] = {nullptr, CALL}, t["ret"] = {nullptr, RETURN};
}

inline const Table& table() {
  static const Table made = [] {
    Table t;
    add_integers<s32>(t, "s32"), add_integers<u32>(t, "u32"), add_integers<s64>(t, "s64"), add_integers<u64>(t, "u64");
    add_bits<u16>(t, "b16"), add_bits<u32>(t, "b32"), add_bits<u64>(t, "b64");
    add_doubles(t), add_floats(t), add_carries(t), add_conversions(t), add_others(t), add_common(t);
    return t;
  }();
  return made;
}
#undef F
