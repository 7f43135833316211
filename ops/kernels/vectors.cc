// The loops, compiled for each instruction set, and the choice among them.
#include "ops/kernels/vectors.h"

// Length-agnostic vectors can't be members of a Quad: those machines use NEON or scalars.
// Processors with SSSE3 and no SSE4 are too old to be worth the code.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kernels/vectors.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; re-includes this file
#include "hwy/highway.h"
#include "ops/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rueda::kernels::HWY_NAMESPACE {
namespace {

// ---- scaling of floating types, in the accumulator's type ----

struct Factors {
  explicit Factors(const Scaling& scaling)
      : scale_first(scaling.prescale != 1),
        divide(scaling.divisor != 1),
        exact((scaling.divisor & (scaling.divisor - 1)) == 0),
        scale_last(scaling.postscale != 1),
        prescale(scaling.prescale),
        divisor(static_cast<double>(scaling.divisor)),
        postscale(scaling.postscale) {}

  bool scale_first, divide, exact, scale_last;  // exact: the divisor is a power of two
  double prescale, divisor, postscale;
};

template <class D>
HWY_INLINE Quad<D> Times(D d, const Quad<D>& q, double factor) {
  const auto f = hn::Set(d, static_cast<hn::TFromD<D>>(factor));
  return {hn::Mul(q.a, f), hn::Mul(q.b, f), hn::Mul(q.c, f), hn::Mul(q.d, f)};
}

template <class D>
HWY_INLINE Quad<D> Over(D d, const Quad<D>& q, double divisor) {
  const auto f = hn::Set(d, static_cast<hn::TFromD<D>>(divisor));
  return {hn::Div(q.a, f), hn::Div(q.b, f), hn::Div(q.c, f), hn::Div(q.d, f)};
}

// To each operand.
template <class D>
HWY_INLINE Quad<D> Begin(D d, const Quad<D>& q, const Factors& factors) {
  if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
    if (factors.scale_first) return Times(d, q, factors.prescale);
  }
  return q;
}

// To the result.
template <class D>
HWY_INLINE Quad<D> Finish(D d, Quad<D> q, const Factors& factors) {
  if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
    if (factors.divide) {
      q = factors.exact ? Times(d, q, 1 / factors.divisor) : Over(d, q, factors.divisor);
    }
    if (factors.scale_last) q = Times(d, q, factors.postscale);
    q = {CanonicalNaN(d, q.a), CanonicalNaN(d, q.b), CanonicalNaN(d, q.c), CanonicalNaN(d, q.d)};
  }
  return q;
}

// ---- the loop ----

// Where a chunk is read: in place, or the last, partial one through a buffer.
template <size_t kBytes>
struct InPlace {
  size_t at;
  HWY_INLINE const uint8_t* operator()(const void* source) const {
    // Hardware loses track of many streams. Measured with 4 sources of 4 MiB of bfloat16: from 27
    // to 70 GB/s.
    constexpr size_t kAhead = 2048;
    constexpr size_t kCacheLine = 64;
    const uint8_t* const from = static_cast<const uint8_t*>(source) + at;
    for (size_t i = 0; i < kBytes; i += kCacheLine) hwy::Prefetch(from + kAhead + i);
    return from;
  }
};

struct Staged {
  size_t at, bytes;
  uint8_t* buffer;
  HWY_INLINE const uint8_t* operator()(const void* source) const {
    std::memcpy(buffer, static_cast<const uint8_t*>(source) + at, bytes);
    return buffer;
  }
};

template <class Lane, class Op, class Reader, class D = typename Lane::Tag>
HWY_INLINE Quad<D> CombineChunk(const ReduceArgs& args, const Factors& factors, Reader read) {
  const D d;
  Quad<D> sum = Begin(d, Lane::Load(read(args.sources[0])), factors);
  for (size_t k = 1; k < args.source_count; ++k) {
    const Quad<D> next = Begin(d, Lane::Load(read(args.sources[k])), factors);
    sum = {Op::Combine(d, sum.a, next.a), Op::Combine(d, sum.b, next.b),
           Op::Combine(d, sum.c, next.c), Op::Combine(d, sum.d, next.d)};
  }
  return Finish(d, sum, factors);
}

// Every source of a chunk is read before the chunk is written: the destination may be one of them.
template <class Lane, class Op>
void Run(const ReduceArgs& args, size_t element_bytes) {
  constexpr size_t kChunkBytes = Lane::kChunkBytes;
  const Factors factors(args.scaling);
  uint8_t* const out = static_cast<uint8_t*>(args.destination);
  const size_t bytes = args.count * element_bytes;
  size_t at = 0;
  for (; bytes - at >= kChunkBytes; at += kChunkBytes) {
    Lane::Store(CombineChunk<Lane, Op>(args, factors, InPlace<kChunkBytes>{at}), out + at);
  }
  if (at < bytes) {
    HWY_ALIGN uint8_t buffer[kChunkBytes] = {};
    const Staged staged{at, bytes - at, buffer};
    Lane::Store(CombineChunk<Lane, Op>(args, factors, staged), buffer);
    std::memcpy(out + at, buffer, bytes - at);
  }
}

// ---- dtype and operation ----

// Wrapping sums and products are the same bits for signed and unsigned, and defined for unsigned.
template <class Ordered, class Wrapping = Ordered, class Products = Wrapping>
void RunOp(ReduceOp op, const ReduceArgs& args, size_t element_bytes) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kAverageLive:
      return Run<Wrapping, Sum>(args, element_bytes);
    case ReduceOp::kProduct:
      return Run<Products, Product>(args, element_bytes);
    case ReduceOp::kMin:
      return Run<Ordered, Minimum>(args, element_bytes);
    case ReduceOp::kMax:
      return Run<Ordered, Maximum>(args, element_bytes);
    default:
      return;
  }
}

void ReduceTarget(DType dtype, ReduceOp op, const ReduceArgs& args) {
  switch (dtype) {
    case DType::kUInt8:
      return RunOp<Plain<uint8_t>, Plain<uint8_t>, ByteProducts>(op, args, 1);
    case DType::kInt8:
      return RunOp<Plain<int8_t>, Plain<uint8_t>, ByteProducts>(op, args, 1);
    case DType::kInt32:
      return RunOp<Plain<int32_t>, Plain<uint32_t>>(op, args, 4);
    case DType::kInt64:
      return RunOp<Plain<int64_t>, Plain<uint64_t>>(op, args, 8);
    case DType::kFloat16:
      return RunOp<Float16>(op, args, 2);
    case DType::kBFloat16:
      return RunOp<BFloat16>(op, args, 2);
    case DType::kFloat32:
      return RunOp<Plain<float>>(op, args, 4);
    case DType::kFloat64:
      return RunOp<Plain<double>>(op, args, 8);
    case DType::kBool:
      if (op == ReduceOp::kProduct || op == ReduceOp::kMin) return Run<Bool, Minimum>(args, 1);
      return Run<Bool, Maximum>(args, 1);
    default:
      return;
  }
}

// ---- conversion ----

constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());

template <class HalfBits>
struct Widen {
  static constexpr size_t kFromBytes = 2, kToBytes = 4;  // of an element
  static HWY_INLINE void Vector(const uint8_t* from, uint8_t* to) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<uint16_t, decltype(d)> half;
    StoreBytes(d, HalfBits::Widen(d, LoadBytes(half, from)), to);
  }
};

template <class HalfBits>
struct Narrow {
  static constexpr size_t kFromBytes = 4, kToBytes = 2;
  static HWY_INLINE void Vector(const uint8_t* from, uint8_t* to) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<uint16_t, decltype(d)> half;
    StoreBytes(half, HalfBits::Narrow(d, CanonicalNaN(d, LoadBytes(d, from))), to);
  }
};

template <class Step>
void Convert(const void* source, void* destination, size_t count) {
  const uint8_t* const from = static_cast<const uint8_t*>(source);
  uint8_t* const to = static_cast<uint8_t*>(destination);
  size_t i = 0;
  for (; count - i >= kLanes; i += kLanes) {
    Step::Vector(from + i * Step::kFromBytes, to + i * Step::kToBytes);
  }
  if (i < count) {
    HWY_ALIGN uint8_t in[kLanes * Step::kFromBytes] = {};
    HWY_ALIGN uint8_t out[kLanes * Step::kToBytes];
    std::memcpy(in, from + i * Step::kFromBytes, (count - i) * Step::kFromBytes);
    Step::Vector(in, out);
    std::memcpy(to + i * Step::kToBytes, out, (count - i) * Step::kToBytes);
  }
}

void WidenTarget(DType from, const void* source, float* destination, size_t count) {
  if (from == DType::kFloat16) return Convert<Widen<Float16Bits>>(source, destination, count);
  Convert<Widen<BFloat16Bits>>(source, destination, count);
}

void NarrowTarget(DType to, const float* source, void* destination, size_t count) {
  if (to == DType::kFloat16) return Convert<Narrow<Float16Bits>>(source, destination, count);
  Convert<Narrow<BFloat16Bits>>(source, destination, count);
}

}  // namespace
}  // namespace rueda::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rueda::kernels {

HWY_EXPORT(ReduceTarget);
HWY_EXPORT(WidenTarget);
HWY_EXPORT(NarrowTarget);

void ReduceVectors(DType dtype, ReduceOp op, const ReduceArgs& args) {
  HWY_DYNAMIC_DISPATCH(ReduceTarget)(dtype, op, args);
}

void WidenVectors(DType from, const void* source, float* destination, size_t count) {
  HWY_DYNAMIC_DISPATCH(WidenTarget)(from, source, destination, count);
}

void NarrowVectors(DType to, const float* source, void* destination, size_t count) {
  HWY_DYNAMIC_DISPATCH(NarrowTarget)(to, source, destination, count);
}

}  // namespace rueda::kernels
#endif  // HWY_ONCE
