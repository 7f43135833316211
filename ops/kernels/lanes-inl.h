// How each dtype is loaded, combined and stored. Included by vectors.cc alone, once per instruction
// set.
//
// A *lane type* says how elements lie in memory and in what vectors they are combined:
//   Tag            the accumulator's vector
//   kChunkBytes    memory of one Quad: four accumulators, so that four operations are in flight
//   Load, Store    a Quad from and to memory of any alignment
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

// Half types, one 16-bit pattern in each half-sized lane. Narrow wants NaNs canonical.
struct BFloat16Bits {
  template <class D, class D16 = hn::Rebind<uint16_t, D>>
  static HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<D16> half) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(Bits<D>(), half)));
  }
  template <class D, class D16 = hn::Rebind<uint16_t, D>>
  static HWY_INLINE hn::Vec<D16> Narrow(D d, hn::Vec<D> v) {
    return hn::TruncateTo(D16(), hn::ShiftRight<16>(RoundUpperHalf(d, v)));
  }
};

#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || (HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_NEON)

// The machine's own conversions: IEEE, and they round to nearest even.
struct Float16Bits {
  template <class D, class D16 = hn::Rebind<uint16_t, D>>
  static HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<D16> half) {
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
  }
  template <class D, class D16 = hn::Rebind<uint16_t, D>>
  static HWY_INLINE hn::Vec<D16> Narrow(D, hn::Vec<D> v) {
    return hn::BitCast(D16(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
  }
};

#else

// The same bits by integer arithmetic: Highway's own fallback knows neither infinity nor NaN, and
// truncates.
struct Float16Bits {
  template <class D, class D16 = hn::Rebind<uint16_t, D>>
  static HWY_INLINE hn::Vec<D> Widen(D d, hn::Vec<D16> half) {
    const Bits<D> bits;
    const auto word = hn::PromoteTo(bits, half);
    const auto magnitude = hn::And(word, hn::Set(bits, 0x7fff));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(word, magnitude));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    // The exponent's bias is 127 instead of 15; infinity and NaN have the largest one in both.
    const auto rebias = hn::Set(bits, uint32_t{127 - 15} << 23);
    auto wide = hn::Add(shifted, rebias);
    const auto special = hn::Gt(magnitude, hn::Set(bits, 0x7bff));
    wide = hn::IfThenElse(special, hn::Add(wide, rebias), wide);
    const auto nan = hn::Gt(magnitude, hn::Set(bits, 0x7c00));
    wide = hn::IfThenElse(nan, hn::Or(wide, hn::Set(bits, 0x400000)), wide);
    // A subnormal counts units of 2^-24: read as 2^-14 * (1 + m / 1024), and the 2^-14 taken away.
    const auto unit = hn::Set(bits, uint32_t{127 - 14} << 23);
    const auto small = hn::Sub(hn::BitCast(d, hn::Add(shifted, unit)), hn::BitCast(d, unit));
    const auto subnormal = hn::Lt(magnitude, hn::Set(bits, 0x400));
    wide = hn::IfThenElse(subnormal, hn::BitCast(bits, small), wide);
    return hn::BitCast(d, hn::Or(wide, sign));
  }

  template <class D, class D16 = hn::Rebind<uint16_t, D>>
  static HWY_INLINE hn::Vec<D16> Narrow(D d, hn::Vec<D> v) {
    const Bits<D> bits;
    const auto word = hn::BitCast(bits, v);
    const auto magnitude = hn::And(word, hn::Set(bits, 0x7fffffff));
    const auto sign = hn::ShiftRight<16>(hn::Xor(word, magnitude));
    // Normal results: rebias, round to nearest even; a carry out of the mantissa is right as it is,
    // also into infinity.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(bits, 1));
    const auto rebias = hn::Set(bits, 0xfff - (uint32_t{127 - 15} << 23));
    auto half = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(odd, rebias)));
    // Below 2^-14: in [0.5, 1) a float32 counts units of 2^-24, and the addition rounds to them.
    const auto unit = hn::Set(bits, uint32_t{127 - 1} << 23);
    const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, unit));
    const auto subnormal = hn::Lt(magnitude, hn::Set(bits, uint32_t{127 - 14} << 23));
    half = hn::IfThenElse(subnormal, hn::Sub(hn::BitCast(bits, sum), unit), half);
    const auto too_large = hn::Gt(magnitude, hn::Set(bits, (uint32_t{127 + 16} << 23) - 1));
    half = hn::IfThenElse(too_large, hn::Set(bits, 0x7c00), half);
    const auto nan = hn::Gt(magnitude, hn::Set(bits, 0x7f800000));
    half = hn::IfThenElse(nan, hn::Set(bits, 0x7e00), half);
    return hn::TruncateTo(D16(), hn::Or(half, sign));
  }
};

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

  static HWY_INLINE Quad<Tag> Load(const uint8_t* from) {
    const Tag tag;
    return {LoadBytes(tag, from), LoadBytes(tag, from + kVectorBytes),
            LoadBytes(tag, from + 2 * kVectorBytes), LoadBytes(tag, from + 3 * kVectorBytes)};
  }
  static HWY_INLINE void Store(const Quad<Tag>& q, uint8_t* to) {
    const Tag tag;
    StoreBytes(tag, q.a, to);
    StoreBytes(tag, q.b, to + kVectorBytes);
    StoreBytes(tag, q.c, to + 2 * kVectorBytes);
    StoreBytes(tag, q.d, to + 3 * kVectorBytes);
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

// float16 in float32 accumulators.
struct Float16 {
  using Tag = hn::ScalableTag<float>;
  using Half = hn::Rebind<uint16_t, Tag>;
  static constexpr size_t kVectorBytes = hn::MaxLanes(Tag()) * sizeof(uint16_t);
  static constexpr size_t kChunkBytes = 4 * kVectorBytes;

  static HWY_INLINE hn::Vec<Tag> LoadOne(const uint8_t* from) {
    return Float16Bits::Widen(Tag(), LoadBytes(Half(), from));
  }
  static HWY_INLINE void StoreOne(hn::Vec<Tag> v, uint8_t* to) {
    StoreBytes(Half(), Float16Bits::Narrow(Tag(), v), to);
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
    const auto mask = hn::Set(Word(), 0xffff0000);
    return hn::Or(hn::ShiftRight<16>(RoundUpperHalf(Tag(), lower)),
                  hn::And(RoundUpperHalf(Tag(), upper), mask));
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

struct Sum {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Mul(a, b);
  }
};

// Highway leaves open what its Min and Max of floating types do with NaN and with zeros of either
// sign. Here a NaN once met stays, and of equal operands the earlier one does.
struct Minimum {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Maximum {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a);
    } else {
      return hn::Max(a, b);
    }
  }
};

}  // namespace rueda::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
