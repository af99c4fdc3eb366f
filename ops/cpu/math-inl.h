// Vectorised exp, log, tanh and the normal distribution function for Highway; included by files that are compiled once per instruction set.
// Each passes NaN on and gives the limits at infinities. Errors, tested over all magnitudes: exp and log under 2 ulp, tanh under 4 ulp,
// the f32 distribution function 2e-6 relative in its tails.
#if defined(SINKGRAD_MATH_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SINKGRAD_MATH_INL
#undef SINKGRAD_MATH_INL
#else
#define SINKGRAD_MATH_INL
#endif
#include <hwy/highway.h>

#include <limits>

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// x = k ln 2 + r with |r| <= ln 2 / 2.
template <class V>
struct Reduced {
  V k, r;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE Reduced<V> ReduceByLn2(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr bool kSingle = sizeof(T) == 4;
  const V k = hn::Round(hn::Mul(x, hn::Set(d, T(1.4426950408889634))));
  // ln 2 in two parts; the first has so few bits that its product with k is exact.
  const V r = hn::NegMulAdd(k, hn::Set(d, kSingle ? T(0.693359375) : T(0.693147180369123816490)), x);
  return {k, hn::NegMulAdd(k, hn::Set(d, kSingle ? T(-2.12194440e-4) : T(1.90821492927058770002e-10)), r)};
}

/// (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2 by its Taylor series, to degree 7 or 13 of e^r.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpTail(D d, V r) {
  using T = hn::TFromD<D>;
  V p;
  if constexpr (sizeof(T) == 4) {
    p = hn::Set(d, T(1.0 / 5040));
  } else {
    p = hn::Set(d, T(1.0 / 6227020800));
    p = hn::MulAdd(p, r, hn::Set(d, T(1.0 / 479001600)));
    p = hn::MulAdd(p, r, hn::Set(d, T(1.0 / 39916800)));
    p = hn::MulAdd(p, r, hn::Set(d, T(1.0 / 3628800)));
    p = hn::MulAdd(p, r, hn::Set(d, T(1.0 / 362880)));
    p = hn::MulAdd(p, r, hn::Set(d, T(1.0 / 40320)));
    p = hn::MulAdd(p, r, hn::Set(d, T(1.0 / 5040)));
  }
  p = hn::MulAdd(p, r, hn::Set(d, T(1.0 / 720)));
  p = hn::MulAdd(p, r, hn::Set(d, T(1.0 / 120)));
  p = hn::MulAdd(p, r, hn::Set(d, T(1.0 / 24)));
  p = hn::MulAdd(p, r, hn::Set(d, T(1.0 / 6)));
  return hn::MulAdd(p, r, hn::Set(d, T(0.5)));
}

/// 2^k for integers k within the range of normal numbers.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V PowerOfTwo(D d, V k) {
  constexpr bool kSingle = sizeof(hn::TFromD<D>) == 4;
  constexpr int kBits = kSingle ? 23 : 52, kBias = kSingle ? 127 : 1023;
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<kBits>(hn::Add(hn::ConvertTo(di, k), hn::Set(di, kBias))));
}

/// e^x; results below the smallest normal number are 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr T kLow = kSingle ? T(-87.33654) : T(-708.39641853226408), kHigh = kSingle ? T(88.72283) : T(709.78271289338397);
  const auto [k, r] = ReduceByLn2(d, hn::Max(hn::Min(x, hn::Set(d, kHigh)), hn::Set(d, kLow)));
  V p = hn::MulAdd(ExpTail(d, r), r, hn::Set(d, T(1)));
  p = hn::MulAdd(p, r, hn::Set(d, T(1)));
  // Two factors, since 2^k itself overflows for the largest k.
  const V half = hn::Floor(hn::Mul(k, hn::Set(d, T(0.5))));
  V y = hn::Mul(hn::Mul(p, PowerOfTwo(d, half)), PowerOfTwo(d, hn::Sub(k, half)));
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d, kHigh)), hn::Set(d, std::numeric_limits<T>::infinity()), y);
  y = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kLow)), y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

/// ln x; -inf at 0 and NaN below it. x = 2^k m with m in [1/sqrt 2, sqrt 2), ln m = 2 artanh s with s = (m - 1) / (m + 1).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr int kBits = kSingle ? 23 : 52, kSubnormalShift = kSingle ? 24 : 54;
  const hn::RebindToSigned<D> di;
  const V one = hn::Set(d, T(1));
  const auto subnormal = hn::Lt(x, hn::Set(d, std::numeric_limits<T>::min()));
  const V scaled = hn::IfThenElse(subnormal, hn::Mul(x, hn::Set(d, T(int64_t{1} << kSubnormalShift))), x);
  // The exponent, counted so that what is left lies about 1.
  const auto bits = hn::BitCast(di, scaled), offset = hn::Sub(bits, hn::BitCast(di, hn::Set(d, T(0.70710678118654752))));
  const auto exponent = hn::ShiftRight<kBits>(offset);
  const V m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<kBits>(exponent)));
  const V k = hn::Sub(hn::ConvertTo(d, exponent), hn::IfThenElseZero(subnormal, hn::Set(d, T(kSubnormalShift))));
  const V f = hn::Sub(m, one), s = hn::Div(f, hn::Add(m, one)), z = hn::Mul(s, s);
  V p = kSingle ? hn::Set(d, T(2.0 / 11)) : hn::Set(d, T(2.0 / 23));
  if constexpr (!kSingle)
    for (const double n : {21.0, 19.0, 17.0, 15.0, 13.0, 11.0}) p = hn::MulAdd(p, z, hn::Set(d, T(2 / n)));
  for (const double n : {9.0, 7.0, 5.0, 3.0}) p = hn::MulAdd(p, z, hn::Set(d, T(2 / n)));
  // 2 s = f - s f: with f exact, only small terms are rounded.
  const V tail = hn::Mul(s, hn::Sub(hn::Mul(z, p), f));
  V y = hn::Add(f, hn::MulAdd(k, hn::Set(d, kSingle ? T(-2.12194440e-4) : T(1.90821492927058770002e-10)), tail));
  y = hn::MulAdd(k, hn::Set(d, kSingle ? T(0.693359375) : T(0.693147180369123816490)), y);
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  y = hn::IfThenElse(hn::Eq(x, hn::Set(d, kInfinity)), x, y);
  y = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Set(d, -kInfinity), y);
  y = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Set(d, std::numeric_limits<T>::quiet_NaN()), y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

/// tanh |x| = e / (e + 2) with e = exp(2 |x|) - 1, which keeps its digits near 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr T kOne = sizeof(T) == 4 ? T(9.1) : T(19.1);  // from here on tanh rounds to 1
  const V one = hn::Set(d, T(1)), magnitude = hn::Min(hn::Abs(x), hn::Set(d, kOne));
  const auto [k, r] = ReduceByLn2(d, hn::Add(magnitude, magnitude));
  const V power = PowerOfTwo(d, k), tail = hn::MulAdd(hn::Mul(r, r), ExpTail(d, r), r);  // e^r - 1
  const V e = hn::MulAdd(power, tail, hn::Sub(power, one));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::CopySign(hn::Div(e, hn::Add(e, hn::Set(d, T(2)))), x));
}

/// Phi(x) = erfc(-x / sqrt 2) / 2, accurate in both tails, f32 only: a Chebyshev fit of erfc (Press et al., Numerical Recipes, 6.2).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V NormalCdf(D d, V x) {
  const V one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f), z = hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678f));
  const V u = hn::Div(one, hn::MulAdd(z, half, one));
  V p = hn::Set(d, 0.17087277f);
  for (const float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f})
    p = hn::MulAdd(p, u, hn::Set(d, c));
  const V tail = hn::Mul(hn::Mul(u, half), Exp(d, hn::NegMulAdd(z, z, p)));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
}

}  // namespace HWY_NAMESPACE
}  // namespace sinkgrad::cpu
HWY_AFTER_NAMESPACE();
#endif
