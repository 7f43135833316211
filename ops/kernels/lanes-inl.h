// How each dtype is loaded, combined and stored. Included by vectors.cc alone, once per instruction
// set.
//
// A *lane type* says how elements lie in memory and in what vectors they are combined:
//   Tag            the accumulator's vector
//   kChunkBytes    memory of one Quad: four accumulators, so that four operations are in flight
//   Load, Store    a Quad from and to memory of any alignment; NaNs are stored as the canonical one
#if defined(RUEDA_OPS_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RUEDA_OPS_KERNELS_LANES_INL_H_
#undef RUEDA_OPS_KERNELS_LANES_INL_H_
#else
#define RUEDA_OPS_KERNELS_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"

// Whether the machine converts float16.
#undef RUEDA_HAVE_FLOAT16
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || (HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_NEON)
#define RUEDA_HAVE_FLOAT16 1
#else
#define RUEDA_HAVE_FLOAT16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace rueda::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Bits = hn::RebindToUnsigned<D>;

// ---- memory ----

// Any alignment and any static type of the memory: it is read and written as bytes.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D, const uint8_t* from) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> value;
  std::memcpy(&value, from, sizeof(value));
  return hn::Set(D(), value);
#else
  return hn::BitCast(D(), hn::LoadU(hn::Repartition<uint8_t, D>(), from));
#endif
}

template <class D>
HWY_INLINE void StoreBytes(D, hn::Vec<D> v, uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  const hn::TFromD<D> value = hn::GetLane(v);
  std::memcpy(to, &value, sizeof(value));
#else
  const hn::Repartition<uint8_t, D> bytes;
  hn::StoreU(hn::BitCast(bytes, v), bytes, to);
#endif
}

// ---- floating point ----

// Which NaN an addition returns depends on the instruction and on the order the compiler gave its
// operands. So every NaN that is stored is this one: quiet, positive, no payload.
template <class D>
HWY_INLINE hn::Vec<D> CanonicalNaN(D d, hn::Vec<D> v) {
  const auto nan = hn::Set(d, std::numeric_limits<hn::TFromD<D>>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(v), nan, v);
}

// float32 bits plus what makes the upper half round to nearest, ties to even, when the lower is cut
// off. A finite value beyond bfloat16's range carries over into infinity; a canonical NaN does not
// move.
template <class D, class V = hn::Vec<Bits<D>>>
HWY_INLINE V RoundUpperHalf(D, hn::Vec<D> v) {
  const Bits<D> bits;
  const V word = hn::BitCast(bits, v);
  const V odd = hn::And(hn::ShiftRight<16>(word), hn::Set(bits, 1));
  return hn::Add(word, hn::Add(odd, hn::Set(bits, 0x7fff)));
}

// A *format* is a floating type narrower than float32: Widen takes a vector of its bit patterns,
// Narrow gives one, and wants NaNs canonical.

struct BFloat16Bits {
  using Memory = uint16_t;
  template <class D, class D16 = hn::Rebind<Memory, D>>
  static HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<D16> narrow) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(Bits<D>(), narrow)));
  }
  template <class D, class D16 = hn::Rebind<Memory, D>>
  static HWY_INLINE hn::Vec<D16> Narrow(D d, hn::Vec<D> v) {
    return hn::TruncateTo(D16(), hn::ShiftRight<16>(RoundUpperHalf(d, v)));
  }
};

// A format by its two numbers, in integer arithmetic. With an infinity the largest exponent means
// infinity and NaN, as in IEEE 754; without, only the pattern of ones alone is NaN, and it is what
// too large values become, of either sign.
template <class MemoryType, int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct SmallFloat {
  using Memory = MemoryType;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kSignShift = 31 - kExponentBits - kMantissaBits;
  static constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kRebias = (127 - kBias) << 23;
  static constexpr uint32_t kOnes = (1u << (kExponentBits + kMantissaBits)) - 1;
  static constexpr uint32_t kFraction = (1u << kMantissaBits) - 1;
  static constexpr uint32_t kTooLarge = kHasInfinity ? kOnes & ~kFraction : kOnes;
  static constexpr uint32_t kNaN = kHasInfinity ? kOnes & ~(kFraction >> 1) : kOnes;

  template <class D, class DM = hn::Rebind<Memory, D>>
  static HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<DM> narrow) {
    const Bits<D> bits;
    const auto word = hn::PromoteTo(bits, narrow);
    const auto magnitude = hn::And(word, hn::Set(bits, kOnes));
    const auto sign = hn::ShiftLeft<kSignShift>(hn::Xor(word, magnitude));
    const auto shifted = hn::ShiftLeft<kShift>(magnitude);
    const auto rebias = hn::Set(bits, kRebias);
    auto wide = hn::Add(shifted, rebias);
    if constexpr (kHasInfinity) {  // infinity and NaN have the largest exponent in both
      const auto special = hn::Gt(magnitude, hn::Set(bits, kTooLarge - 1));
      wide = hn::IfThenElse(special, hn::Add(wide, rebias), wide);
      const auto nan = hn::Gt(magnitude, hn::Set(bits, kTooLarge));
      wide = hn::IfThenElse(nan, hn::Or(wide, hn::Set(bits, 0x400000)), wide);
    } else {
      const auto nan = hn::Eq(magnitude, hn::Set(bits, kNaN));
      wide = hn::IfThenElse(nan, hn::Set(bits, 0x7fc00000), wide);
    }
    // A subnormal's fraction is read as that of the smallest normal exponent, and the 1 before it
    // taken away.
    const auto unit = hn::Set(bits, (128 - kBias) << 23);
    const auto small = hn::Sub(hn::BitCast(d, hn::Add(shifted, unit)), hn::BitCast(d, unit));
    const auto subnormal = hn::Lt(magnitude, hn::Set(bits, kFraction + 1));
    wide = hn::IfThenElse(subnormal, hn::BitCast(bits, small), wide);
    return hn::BitCast(d, hn::Or(wide, sign));
  }

  template <class D, class DM = hn::Rebind<Memory, D>>
  static HWY_INLINE hn::Vec<DM> Narrow(D d, hn::Vec<D> v) {
    const Bits<D> bits;
    const auto word = hn::BitCast(bits, v);
    const auto magnitude = hn::And(word, hn::Set(bits, 0x7fffffff));
    const auto sign = hn::ShiftRight<kSignShift>(hn::Xor(word, magnitude));
    // Normal results: rebias, round to nearest even; a carry out of the mantissa is right as it is,
    // also into what is too large.
    const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(bits, 1));
    const auto rebias = hn::Set(bits, (1u << (kShift - 1)) - 1 - kRebias);
    auto narrow = hn::ShiftRight<kShift>(hn::Add(magnitude, hn::Add(odd, rebias)));
    narrow = hn::Min(narrow, hn::Set(bits, kTooLarge));
    // Below the smallest normal number: the float32 whose last place is this type's smallest
    // subnormal is added, which rounds to multiples of that.
    const auto unit = hn::Set(bits, (151 - kBias - kMantissaBits) << 23);
    const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, unit));
    const auto subnormal = hn::Lt(magnitude, hn::Set(bits, (128 - kBias) << 23));
    narrow = hn::IfThenElse(subnormal, hn::Sub(hn::BitCast(bits, sum), unit), narrow);
    const auto nan = hn::Gt(magnitude, hn::Set(bits, 0x7f800000));
    narrow = hn::IfThenElse(nan, hn::Set(bits, kNaN), narrow);
    return hn::TruncateTo(DM(), hn::Or(narrow, sign));
  }
};

using Float8E4M3FNBits = SmallFloat<uint8_t, 4, 3, false>;
using Float8E5M2Bits = SmallFloat<uint8_t, 5, 2, true>;

#if RUEDA_HAVE_FLOAT16

// The machine's own conversions: IEEE, and they round to nearest even.
struct Float16Bits {
  using Memory = uint16_t;
  template <class D, class D16 = hn::Rebind<Memory, D>>
  static HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<D16> narrow) {
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), narrow));
  }
  template <class D, class D16 = hn::Rebind<Memory, D>>
  static HWY_INLINE hn::Vec<D16> Narrow(D, hn::Vec<D> v) {
    return hn::BitCast(D16(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
  }
};

// How a float8 becomes a float16, of which it is kScale times the value, and back.
//   ToFloat16      of words that hold it in their upper byte, and zero in the lower
//   FromFloat16    rounds to the upper byte; what is left in the lower means nothing
//   Canonical      float8, for which a NaN has not been made the canonical one yet

struct E5M2Words {
  static constexpr float kScale = 1;
  template <class D16>
  static HWY_INLINE hn::Vec<D16> ToFloat16(D16, hn::Vec<D16> word) {
    return word;
  }
  template <class D16>
  static HWY_INLINE hn::Vec<D16> FromFloat16(D16 d16, hn::Vec<D16> half) {
    const auto odd = hn::And(hn::ShiftRight<8>(half), hn::Set(d16, 1));
    return hn::Add(half, hn::Add(odd, hn::Set(d16, 0x7f)));
  }
  // Its NaNs were rounded like numbers, and had nothing in the lower byte that would carry over:
  // only a factor's payload could reach there, and Factors has none.
  template <class D8>
  static HWY_INLINE hn::Vec<D8> Canonical(D8 d8, hn::Vec<D8> bytes) {
    const hn::RebindToSigned<D8> ordered;
    const auto magnitude = hn::BitCast(ordered, hn::And(bytes, hn::Set(d8, 0x7f)));
    const auto nan = hn::RebindMask(d8, hn::Gt(magnitude, hn::Set(ordered, 0x7c)));
    return hn::IfThenElse(nan, hn::Set(d8, 0x7e), bytes);
  }
};

struct E4M3FNWords {
  static constexpr float kScale = 256;  // between the two exponents' biases
  template <class D16>
  static HWY_INLINE hn::Vec<D16> ToFloat16(D16 d16, hn::Vec<D16> word) {
    const hn::RebindToSigned<D16> arithmetic;
    const auto half = hn::BitCast(d16, hn::ShiftRight<1>(hn::BitCast(arithmetic, word)));
    // The sign, which is in the exponent's first bit too, is taken out of it, and the carry from a
    // NaN's pattern put in.
    const auto carried = hn::Add(half, hn::Set(d16, 0x80));
    return hn::Xor(half, hn::And(carried, hn::Set(d16, 0x4000)));
  }
  template <class D16>
  static HWY_INLINE hn::Vec<D16> FromFloat16(D16 d16, hn::Vec<D16> half) {
    // As above, but the magnitude, one bit further up, has a 1 put before it: what is too large
    // stops at all ones.
    const auto odd = hn::And(hn::ShiftRight<7>(half), hn::Set(d16, 1));
    const auto magnitude = hn::Add(hn::ShiftLeft<1>(half), odd);
    const auto rounded = hn::SaturatedAdd(magnitude, hn::Set(d16, 0x807f));
    // The sign of all but NaNs, of which the negative ones wrap around.
    const auto sign = hn::And(half, hn::Add(half, hn::Set(d16, 0x3ff)));
    return hn::And(rounded, hn::Or(sign, hn::Set(d16, 0x7fff)));
  }
  template <class D8>
  static HWY_INLINE hn::Vec<D8> Canonical(D8, hn::Vec<D8> bytes) {
    return bytes;
  }
};

#else

// The same bits. Highway's own fallback knows neither infinity nor NaN, and truncates.
using Float16Bits = SmallFloat<uint16_t, 5, 10, true>;

#endif

// ---- lane types ----

template <class D>
struct Quad {
  hn::Vec<D> a, b, c, d;
};

// Elements that are combined as they are.
template <class T>
struct Plain {
  using Tag = hn::ScalableTag<T>;
  static constexpr size_t kVectorBytes = hn::MaxLanes(Tag()) * sizeof(T);
  static constexpr size_t kChunkBytes = 4 * kVectorBytes;

  static HWY_INLINE void StoreOne(hn::Vec<Tag> v, uint8_t* to) {
    if constexpr (hwy::IsFloat<T>()) v = CanonicalNaN(Tag(), v);
    StoreBytes(Tag(), v, to);
  }
  static HWY_INLINE Quad<Tag> Load(const uint8_t* from) {
    const Tag tag;
    return {LoadBytes(tag, from), LoadBytes(tag, from + kVectorBytes),
            LoadBytes(tag, from + 2 * kVectorBytes), LoadBytes(tag, from + 3 * kVectorBytes)};
  }
  static HWY_INLINE void Store(const Quad<Tag>& q, uint8_t* to) {
    StoreOne(q.a, to);
    StoreOne(q.b, to + kVectorBytes);
    StoreOne(q.c, to + 2 * kVectorBytes);
    StoreOne(q.d, to + 3 * kVectorBytes);
  }
};

// Bytes that become 0 or 1.
struct Bool : Plain<uint8_t> {
  static HWY_INLINE Quad<Tag> Load(const uint8_t* from) {
    const auto one = hn::Set(Tag(), 1);
    const Quad<Tag> q = Plain<uint8_t>::Load(from);
    return {hn::Min(q.a, one), hn::Min(q.b, one), hn::Min(q.c, one), hn::Min(q.d, one)};
  }
};

// A format's elements in float32 accumulators.
template <class Format>
struct Widened {
  using Tag = hn::ScalableTag<float>;
  using Narrow = hn::Rebind<typename Format::Memory, Tag>;
  static constexpr size_t kVectorBytes = hn::MaxLanes(Tag()) * sizeof(typename Format::Memory);
  static constexpr size_t kChunkBytes = 4 * kVectorBytes;

  static HWY_INLINE hn::Vec<Tag> LoadOne(const uint8_t* from) {
    return Format::Widen(Tag(), LoadBytes(Narrow(), from));
  }
  static HWY_INLINE void StoreOne(hn::Vec<Tag> v, uint8_t* to) {
    StoreBytes(Narrow(), Format::Narrow(Tag(), CanonicalNaN(Tag(), v)), to);
  }
  static HWY_INLINE Quad<Tag> Load(const uint8_t* from) {
    return {LoadOne(from), LoadOne(from + kVectorBytes), LoadOne(from + 2 * kVectorBytes),
            LoadOne(from + 3 * kVectorBytes)};
  }
  static HWY_INLINE void Store(const Quad<Tag>& q, uint8_t* to) {
    StoreOne(q.a, to);
    StoreOne(q.b, to + kVectorBytes);
    StoreOne(q.c, to + 2 * kVectorBytes);
    StoreOne(q.d, to + 3 * kVectorBytes);
  }
};

#if RUEDA_HAVE_FLOAT16

// float8 in float32 accumulators, by way of float16. kScaled leaves them 1 / kScale of the values,
// for operations to which that is the same. kFewBits is for results which float16's own rounding
// doesn't bring to where the next would go wrong.
template <class Words, bool kScaled = false, bool kFewBits = false>
struct Float8 {
  using Tag = hn::ScalableTag<float>;
  using Word = hn::ScalableTag<uint16_t>;
  using Half = hn::Half<Word>;
  using V = hn::Vec<Tag>;
  using W = hn::Vec<Word>;
  static constexpr size_t kChunkBytes = hn::MaxLanes(Word()) * sizeof(uint16_t);
  static constexpr float kScale = kScaled ? 1 : Words::kScale;

  static HWY_INLINE V Wide(hn::Vec<Half> half) {
    const V v = Float16Bits::Widen(Tag(), half);
    return kScale == 1 ? v : hn::Mul(v, hn::Set(Tag(), kScale));
  }
  // To as many bits as float16 keeps of float8's smallest numbers. The last one is set if any after
  // it was: the rounding to come then knows a tie from what is near one.
  static HWY_INLINE hn::Vec<Half> Narrow(V v) {
    if constexpr (!kFewBits) {
      const Bits<Tag> bits;
      const auto rest = hn::Set(bits, 0x1ffff);
      const auto word = hn::BitCast(bits, v);
      const auto carried = hn::Add(hn::And(word, rest), rest);
      v = hn::BitCast(Tag(), hn::And(hn::Or(word, carried), hn::Set(bits, 0xfffe0000)));
    }
    return Float16Bits::Narrow(Tag(), kScale == 1 ? v : hn::Mul(v, hn::Set(Tag(), 1 / kScale)));
  }
  static HWY_INLINE Quad<Tag> Load(const uint8_t* from) {
    const Word word;
    const W both = LoadBytes(word, from);
    const W lower = Words::ToFloat16(word, hn::ShiftLeft<8>(both));
    const W upper = Words::ToFloat16(word, hn::And(both, hn::Set(word, 0xff00)));
    return {Wide(hn::LowerHalf(Half(), lower)), Wide(hn::UpperHalf(Half(), lower)),
            Wide(hn::LowerHalf(Half(), upper)), Wide(hn::UpperHalf(Half(), upper))};
  }
  static HWY_INLINE void Store(const Quad<Tag>& q, uint8_t* to) {
    const Word word;
    const W lower = Words::FromFloat16(word, hn::Combine(word, Narrow(q.b), Narrow(q.a)));
    const W upper = Words::FromFloat16(word, hn::Combine(word, Narrow(q.d), Narrow(q.c)));
    const W mask = hn::Set(word, 0xff00);
    const W both = hn::Or(hn::ShiftRight<8>(lower), hn::And(upper, mask));
    const hn::Repartition<uint8_t, Word> bytes;
    StoreBytes(bytes, Words::Canonical(bytes, hn::BitCast(bytes, both)), to);
  }
};

using Float8E4M3FN = Float8<E4M3FNWords>;
using Float8E4M3FNScaled = Float8<E4M3FNWords, true>;
using Float8E4M3FNFewBits = Float8<E4M3FNWords, true, true>;
using Float8E5M2 = Float8<E5M2Words>;
using Float8E5M2FewBits = Float8<E5M2Words, false, true>;

#else

using Float8E4M3FN = Widened<Float8E4M3FNBits>;
using Float8E4M3FNScaled = Float8E4M3FN;
using Float8E4M3FNFewBits = Float8E4M3FN;
using Float8E5M2 = Widened<Float8E5M2Bits>;
using Float8E5M2FewBits = Float8E5M2;

#endif

// Complex numbers with parts of type T: `a` and `c` of a Quad hold real, `b` and `d` imaginary
// parts. Two vectors are two by two transposed, which undoes itself.
template <class T>
struct Complex : Plain<T> {
  using Tag = typename Plain<T>::Tag;
  using V = hn::Vec<Tag>;

#if HWY_TARGET == HWY_SCALAR  // vectors of one part each
  static HWY_INLINE Quad<Tag> Transpose(const Quad<Tag>& q) {
    return q;
  }
#else
  static HWY_INLINE V Even(V x, V y) {
    return hn::OddEven(hn::DupEven(y), x);
  }
  static HWY_INLINE V Odd(V x, V y) {
    return hn::OddEven(y, hn::DupOdd(x));
  }
  static HWY_INLINE Quad<Tag> Transpose(const Quad<Tag>& q) {
    return {Even(q.a, q.b), Odd(q.a, q.b), Even(q.c, q.d), Odd(q.c, q.d)};
  }
#endif
  static HWY_INLINE Quad<Tag> Load(const uint8_t* from) {
    return Transpose(Plain<T>::Load(from));
  }
  static HWY_INLINE void Store(const Quad<Tag>& q, uint8_t* to) {
    Plain<T>::Store(Transpose(q), to);
  }
};

// Two elements in each memory word, which go to two accumulators: nothing moves across lanes.
// `Split` has Tag, Word, Lower, Upper and Join.
template <class Split>
struct Paired {
  using Tag = typename Split::Tag;
  using Word = typename Split::Word;
  static constexpr size_t kVectorBytes = hn::MaxLanes(Word()) * sizeof(hn::TFromD<Word>);
  static constexpr size_t kChunkBytes = 2 * kVectorBytes;

  static HWY_INLINE Quad<Tag> Load(const uint8_t* from) {
    const auto first = LoadBytes(Word(), from);
    const auto second = LoadBytes(Word(), from + kVectorBytes);
    return {Split::Lower(first), Split::Upper(first), Split::Lower(second), Split::Upper(second)};
  }
  static HWY_INLINE void Store(const Quad<Tag>& q, uint8_t* to) {
    StoreBytes(Word(), Split::Join(q.a, q.b), to);
    StoreBytes(Word(), Split::Join(q.c, q.d), to + kVectorBytes);
  }
};

struct SplitBFloat16 {
  using Tag = hn::ScalableTag<float>;
  using Word = hn::ScalableTag<uint32_t>;
  using V = hn::Vec<Tag>;
  using W = hn::Vec<Word>;

  static HWY_INLINE V Lower(W word) { return hn::BitCast(Tag(), hn::ShiftLeft<16>(word)); }
  static HWY_INLINE V Upper(W word) {
    return hn::BitCast(Tag(), hn::And(word, hn::Set(Word(), 0xffff0000)));
  }
  static HWY_INLINE W Join(V lower, V upper) {
    const Tag tag;
    const auto mask = hn::Set(Word(), 0xffff0000);
    return hn::Or(hn::ShiftRight<16>(RoundUpperHalf(tag, CanonicalNaN(tag, lower))),
                  hn::And(RoundUpperHalf(tag, CanonicalNaN(tag, upper)), mask));
  }
};

// There is no vector multiplication of bytes. The low byte of a product depends on the low bytes of
// its factors alone, so what stands above them may stay.
struct SplitBytes {
  using Tag = hn::ScalableTag<uint16_t>;
  using Word = Tag;
  using W = hn::Vec<Word>;

  static HWY_INLINE W Lower(W word) { return word; }
  static HWY_INLINE W Upper(W word) { return hn::ShiftRight<8>(word); }
  static HWY_INLINE W Join(W lower, W upper) {
    return hn::Or(hn::And(lower, hn::Set(Word(), 0xff)), hn::ShiftLeft<8>(upper));
  }
};

using BFloat16 = Paired<SplitBFloat16>;
using ByteProducts = Paired<SplitBytes>;

// ---- operations ----

// Operations that work lane by lane.
template <class Op>
struct Lanewise {
  template <class D>
  static HWY_INLINE Quad<D> Combine(D d, const Quad<D>& x, const Quad<D>& y) {
    return {Op::One(d, x.a, y.a), Op::One(d, x.b, y.b), Op::One(d, x.c, y.c), Op::One(d, x.d, y.d)};
  }
};

struct Sum : Lanewise<Sum> {
  template <class D>
  static HWY_INLINE hn::Vec<D> One(D, hn::Vec<D> x, hn::Vec<D> y) {
    return hn::Add(x, y);
  }
};

struct Product : Lanewise<Product> {
  template <class D>
  static HWY_INLINE hn::Vec<D> One(D, hn::Vec<D> x, hn::Vec<D> y) {
    return hn::Mul(x, y);
  }
};

// Highway leaves open what its Min and Max of floating types do with NaN and with zeros of either
// sign. Here a NaN once met stays, and of equal operands the earlier one does.
struct Minimum : Lanewise<Minimum> {
  template <class D>
  static HWY_INLINE hn::Vec<D> One(D, hn::Vec<D> x, hn::Vec<D> y) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Lt(y, x), hn::IsNaN(y)), y, x);
    } else {
      return hn::Min(x, y);
    }
  }
};

struct Maximum : Lanewise<Maximum> {
  template <class D>
  static HWY_INLINE hn::Vec<D> One(D, hn::Vec<D> x, hn::Vec<D> y) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Gt(y, x), hn::IsNaN(y)), y, x);
    } else {
      return hn::Max(x, y);
    }
  }
};

struct BitAnd : Lanewise<BitAnd> {
  template <class D>
  static HWY_INLINE hn::Vec<D> One(D, hn::Vec<D> x, hn::Vec<D> y) {
    return hn::And(x, y);
  }
};

struct BitOr : Lanewise<BitOr> {
  template <class D>
  static HWY_INLINE hn::Vec<D> One(D, hn::Vec<D> x, hn::Vec<D> y) {
    return hn::Or(x, y);
  }
};

struct BitXor : Lanewise<BitXor> {
  template <class D>
  static HWY_INLINE hn::Vec<D> One(D, hn::Vec<D> x, hn::Vec<D> y) {
    return hn::Xor(x, y);
  }
};

// Of lanes of type Complex: the textbook's four products, one difference and one sum.
struct ComplexProduct {
  template <class D>
  static HWY_INLINE Quad<D> Combine(D, const Quad<D>& x, const Quad<D>& y) {
    return {hn::Sub(hn::Mul(x.a, y.a), hn::Mul(x.b, y.b)),
            hn::Add(hn::Mul(x.a, y.b), hn::Mul(x.b, y.a)),
            hn::Sub(hn::Mul(x.c, y.c), hn::Mul(x.d, y.d)),
            hn::Add(hn::Mul(x.c, y.d), hn::Mul(x.d, y.c))};
  }
};

}  // namespace rueda::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
