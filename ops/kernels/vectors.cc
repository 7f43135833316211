// The loops, compiled for each instruction set, and the choice among them.
#include "ops/kernels/vectors.h"

#include "ops/kernels/targets.h"

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

// Without a NaN's payload: so no NaN in an accumulator has bits that float8_e5m2 doesn't have.
inline double WithoutPayload(double factor) {
  return factor == factor ? factor : std::numeric_limits<double>::quiet_NaN();
}

struct Factors {
  Factors(const Scaling& scaling, const double* weights_or_null)
      : scale_first(weights_or_null != nullptr || scaling.prescale != 1),
        divide(scaling.divisor != 1),
        exact((scaling.divisor & (scaling.divisor - 1)) == 0),
        scale_last(scaling.postscale != 1),
        prescale(WithoutPayload(scaling.prescale)),
        divisor(static_cast<double>(scaling.divisor)),
        postscale(WithoutPayload(scaling.postscale)),
        weights(weights_or_null) {}

  // Of operand k.
  HWY_INLINE double first(size_t k) const { return weights == nullptr ? prescale : weights[k]; }

  bool scale_first, divide, exact, scale_last;  // exact: the divisor is a power of two
  double prescale, divisor, postscale;
  const double* weights;
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

// To operand k.
template <class D>
HWY_INLINE Quad<D> Begin(D d, const Quad<D>& q, const Factors& factors, size_t k) {
  if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
    if (factors.scale_first) return Times(d, q, factors.first(k));
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
  Quad<D> sum = Begin(d, Lane::Load(read(args.sources[0])), factors, 0);
  for (size_t k = 1; k < args.source_count; ++k) {
    sum = Op::Combine(d, sum, Begin(d, Lane::Load(read(args.sources[k])), factors, k));
  }
  return Finish(d, sum, factors);
}

// Every source of a chunk is read before the chunk is written: the destination may be one of them.
template <class Lane, class Op>
void Run(const ReduceArgs& args, size_t element_bytes) {
  constexpr size_t kChunkBytes = Lane::kChunkBytes;
  const Factors factors(args.scaling, args.weights);
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
void RunReal(ReduceOp op, const ReduceArgs& args, size_t element_bytes) {
  if (op == ReduceOp::kProduct) return Run<Products, Product>(args, element_bytes);
  if (op == ReduceOp::kMin) return Run<Ordered, Minimum>(args, element_bytes);
  if (op == ReduceOp::kMax) return Run<Ordered, Maximum>(args, element_bytes);
  Run<Wrapping, Sum>(args, element_bytes);
}

template <class T>
void RunComplex(ReduceOp op, const ReduceArgs& args) {
  if (op == ReduceOp::kProduct) return Run<Complex<T>, ComplexProduct>(args, 2 * sizeof(T));
  Run<Plain<T>, Sum>(args, 2 * sizeof(T));
}

void RunBool(ReduceOp op, const ReduceArgs& args) {
  if (op == ReduceOp::kProduct || op == ReduceOp::kMin || op == ReduceOp::kBitAnd) {
    return Run<Bool, Minimum>(args, 1);
  }
  if (op == ReduceOp::kBitXor) return Run<Bool, BitXor>(args, 1);
  Run<Bool, Maximum>(args, 1);
}

bool IsBitwise(ReduceOp op) {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
}

// To which all types are bytes.
void RunBitwise(ReduceOp op, const ReduceArgs& args, size_t element_bytes) {
  if (op == ReduceOp::kBitAnd) return Run<Plain<uint8_t>, BitAnd>(args, element_bytes);
  if (op == ReduceOp::kBitOr) return Run<Plain<uint8_t>, BitOr>(args, element_bytes);
  Run<Plain<uint8_t>, BitXor>(args, element_bytes);
}

// Whether a float8's results may be rounded to float16 first: they are float8 numbers, or sums or
// means of two, and float16 has more than twice as many bits (Figueroa 1995, "When is double
// rounding innocuous?").
bool HaveFewBits(ReduceOp op, const ReduceArgs& args) {
  const Scaling& scaling = args.scaling;
  if (args.weights != nullptr || scaling.prescale != 1 || scaling.postscale != 1) return false;
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return scaling.divisor == 1;
  return op != ReduceOp::kProduct && args.source_count <= 2 && scaling.divisor <= 2;
}

void ReduceTarget(DType dtype, ReduceOp op, const ReduceArgs& args) {
  if (dtype == DType::kBool) return RunBool(op, args);
  if (IsBitwise(op)) return RunBitwise(op, args, DTypeSize(dtype));
  switch (dtype) {
    case DType::kUInt8:
      return RunReal<Plain<uint8_t>, Plain<uint8_t>, ByteProducts>(op, args, 1);
    case DType::kInt8:
      return RunReal<Plain<int8_t>, Plain<uint8_t>, ByteProducts>(op, args, 1);
    case DType::kUInt16:
      return RunReal<Plain<uint16_t>>(op, args, 2);
    case DType::kInt16:
      return RunReal<Plain<int16_t>, Plain<uint16_t>>(op, args, 2);
    case DType::kUInt32:
      return RunReal<Plain<uint32_t>>(op, args, 4);
    case DType::kInt32:
      return RunReal<Plain<int32_t>, Plain<uint32_t>>(op, args, 4);
    case DType::kUInt64:
      return RunReal<Plain<uint64_t>>(op, args, 8);
    case DType::kInt64:
      return RunReal<Plain<int64_t>, Plain<uint64_t>>(op, args, 8);
    case DType::kFloat8E4M3FN:
      if (HaveFewBits(op, args)) return RunReal<Float8E4M3FNFewBits>(op, args, 1);
      // A prescale may take operands to where float32 ends, which is not the same for all scales.
      if (args.scaling.prescale != 1) return RunReal<Float8E4M3FN>(op, args, 1);
      return RunReal<Float8E4M3FNScaled, Float8E4M3FNScaled, Float8E4M3FN>(op, args, 1);
    case DType::kFloat8E5M2:
      if (HaveFewBits(op, args)) return RunReal<Float8E5M2FewBits>(op, args, 1);
      return RunReal<Float8E5M2>(op, args, 1);
    case DType::kFloat16:
      return RunReal<Widened<Float16Bits>>(op, args, 2);
    case DType::kBFloat16:
      return RunReal<BFloat16>(op, args, 2);
    case DType::kFloat32:
      return RunReal<Plain<float>>(op, args, 4);
    case DType::kFloat64:
      return RunReal<Plain<double>>(op, args, 8);
    case DType::kComplex64:
      return RunComplex<float>(op, args);
    case DType::kComplex128:
      return RunComplex<double>(op, args);
    case DType::kBool:
      return;
  }
}

// ---- conversion ----

constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());

template <class Format>
struct Widen {
  static constexpr size_t kFromBytes = sizeof(typename Format::Memory), kToBytes = 4;  // an element
  static HWY_INLINE void Vector(const uint8_t* from, uint8_t* to) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<typename Format::Memory, decltype(d)> narrow;
    StoreBytes(d, Format::Widen(d, LoadBytes(narrow, from)), to);
  }
};

template <class Format>
struct Narrow {
  static constexpr size_t kFromBytes = 4, kToBytes = sizeof(typename Format::Memory);
  static HWY_INLINE void Vector(const uint8_t* from, uint8_t* to) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<typename Format::Memory, decltype(d)> narrow;
    StoreBytes(narrow, Format::Narrow(d, CanonicalNaN(d, LoadBytes(d, from))), to);
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

template <template <class> class Step>
void ConvertFormat(DType dtype, const void* source, void* destination, size_t count) {
  if (dtype == DType::kFloat16) return Convert<Step<Float16Bits>>(source, destination, count);
  if (dtype == DType::kBFloat16) return Convert<Step<BFloat16Bits>>(source, destination, count);
  if (dtype == DType::kFloat8E5M2) return Convert<Step<Float8E5M2Bits>>(source, destination, count);
  Convert<Step<Float8E4M3FNBits>>(source, destination, count);
}

void WidenTarget(DType from, const void* source, float* destination, size_t count) {
  ConvertFormat<Widen>(from, source, destination, count);
}

void NarrowTarget(DType to, const float* source, void* destination, size_t count) {
  ConvertFormat<Narrow>(to, source, destination, count);
}

// ---- dot products ----

using Doubles = hn::ScalableTag<double>;
using Singles = hn::Rebind<float, Doubles>;

// The order of summation is the same whatever the vectors' length: a block's elements go to
// kPartialSums sums by their index, which are added up in halves, and the blocks' sums in turn.
constexpr size_t kPartialSums = 16;
constexpr size_t kBlockElements = 1024;  // of some vectors: they stay in a core's cache meanwhile

struct FromFloat64 {
  static constexpr size_t kBytes = 8;
  static HWY_INLINE hn::Vec<Doubles> Load(const uint8_t* from) {
    return LoadBytes(Doubles(), from);
  }
};

struct FromFloat32 {
  static constexpr size_t kBytes = 4;
  static HWY_INLINE hn::Vec<Doubles> Load(const uint8_t* from) {
    return hn::PromoteTo(Doubles(), LoadBytes(Singles(), from));
  }
};

template <class Format>
struct FromNarrow {
  static constexpr size_t kBytes = sizeof(typename Format::Memory);
  static HWY_INLINE hn::Vec<Doubles> Load(const uint8_t* from) {
    const hn::Rebind<typename Format::Memory, Doubles> narrow;
    return hn::PromoteTo(Doubles(), Format::Widen(Singles(), LoadBytes(narrow, from)));
  }
};

struct PartialSums {
  static constexpr size_t kVectorLanes = hn::MaxLanes(Doubles());
  static constexpr size_t kVectors = kPartialSums / kVectorLanes;

  PartialSums() {
    for (auto& sum : sums) sum = hn::Zero(Doubles());
  }
  // Adds kPartialSums products.
  template <class Element>
  HWY_INLINE void Add(const uint8_t* x, const uint8_t* y) {
    constexpr size_t kVectorBytes = kVectorLanes * Element::kBytes;
    for (size_t v = 0; v < kVectors; ++v) {
      const auto left = Element::Load(x + v * kVectorBytes);
      const auto right = Element::Load(y + v * kVectorBytes);
      sums[v] = hn::Add(sums[v], hn::Mul(left, right));
    }
  }
  double Total() const {
    double lanes[kPartialSums];
    for (size_t v = 0; v < kVectors; ++v) {
      StoreBytes(Doubles(), sums[v], reinterpret_cast<uint8_t*>(lanes + v * kVectorLanes));
    }
    for (size_t half = kPartialSums / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }

  hn::Vec<Doubles> sums[kVectors];
};

template <class Element>
double BlockProduct(const void* x, const void* y, size_t at, size_t count) {
  constexpr size_t kStepBytes = kPartialSums * Element::kBytes;
  const uint8_t* const left = static_cast<const uint8_t*>(x) + at * Element::kBytes;
  const uint8_t* const right = static_cast<const uint8_t*>(y) + at * Element::kBytes;
  const size_t bytes = count * Element::kBytes;
  PartialSums sums;
  size_t i = 0;
  for (; bytes - i >= kStepBytes; i += kStepBytes) sums.Add<Element>(left + i, right + i);
  if (i < bytes) {
    HWY_ALIGN uint8_t last[2][kStepBytes] = {};
    std::memcpy(last[0], left + i, bytes - i);
    std::memcpy(last[1], right + i, bytes - i);
    sums.Add<Element>(last[0], last[1]);
  }
  return sums.Total();
}

template <class Element>
void AddProductsOf(absl::Span<const void* const> vectors, size_t count, double* products) {
  for (size_t at = 0; at < count; at += kBlockElements) {
    const size_t block = HWY_MIN(kBlockElements, count - at);
    double* product = products;
    for (size_t r = 0; r < vectors.size(); ++r) {
      for (size_t s = r; s < vectors.size(); ++s) {
        *product++ += BlockProduct<Element>(vectors[r], vectors[s], at, block);
      }
    }
  }
  for (size_t i = 0; i < vectors.size() * (vectors.size() + 1) / 2; ++i) {
    if (products[i] != products[i]) products[i] = std::numeric_limits<double>::quiet_NaN();
  }
}

void ProductsTarget(DType dtype, absl::Span<const void* const> vectors, size_t count,
                    double* products) {
  if (dtype == DType::kFloat64) return AddProductsOf<FromFloat64>(vectors, count, products);
  if (dtype == DType::kFloat32) return AddProductsOf<FromFloat32>(vectors, count, products);
  if (dtype == DType::kFloat16) {
    return AddProductsOf<FromNarrow<Float16Bits>>(vectors, count, products);
  }
  AddProductsOf<FromNarrow<BFloat16Bits>>(vectors, count, products);
}

}  // namespace
}  // namespace rueda::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rueda::kernels {

HWY_EXPORT(ReduceTarget);
HWY_EXPORT(WidenTarget);
HWY_EXPORT(NarrowTarget);
HWY_EXPORT(ProductsTarget);

void ReduceVectors(DType dtype, ReduceOp op, const ReduceArgs& args) {
  HWY_DYNAMIC_DISPATCH(ReduceTarget)(dtype, op, args);
}

void WidenVectors(DType from, const void* source, float* destination, size_t count) {
  HWY_DYNAMIC_DISPATCH(WidenTarget)(from, source, destination, count);
}

void NarrowVectors(DType to, const float* source, void* destination, size_t count) {
  HWY_DYNAMIC_DISPATCH(NarrowTarget)(to, source, destination, count);
}

void AddVectorProducts(DType dtype, absl::Span<const void* const> vectors, size_t count,
                       double* products) {
  HWY_DYNAMIC_DISPATCH(ProductsTarget)(dtype, vectors, count, products);
}

}  // namespace rueda::kernels
#endif  // HWY_ONCE
