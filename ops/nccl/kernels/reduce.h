// The reduction of several sources in their order: one kernel a lane type. A block reads its tile
// of every source before it writes it: the destination may be one of them.
#pragma once

#include "ops/nccl/kernels/copy.h"
#include "ops/nccl/kernels/numbers.h"

namespace rueda::cuda {

template <size_t kCapacity>
struct ReduceTable {
  static constexpr size_t kSources = kCapacity;
  static constexpr bool kVectors = kCapacity <= 64;

  const uint8_t* sources[kCapacity];
  uint8_t* destination;
  int64_t bytes;  // at least one
  uint32_t count;
  int32_t operation;
  // Whether vectors are read and written: all addresses are equal modulo 16 and a multiple of the
  // element's size, and it is no integers with factors.
  bool vectors;
  // Each is skipped when it is 1. `exact`: the divisor is a power of two.
  bool scale_first, divide, exact, scale_last;
  double prescale, postscale, inverse;
  int64_t divisor;

  uint32_t blocks() const { return static_cast<uint32_t>(TilesOf(bytes)); }
};
// Few sources are quicker to hand over. Many are rare: they are read one element at a time.
using FewSources = ReduceTable<64>;
using ManySources = ReduceTable<4000>;
static_assert(sizeof(ManySources) <= kTableBytesMax);

// To each operand; to numbers only.
template <class Lane, class Table>
RUEDA_HOST_DEVICE inline typename Lane::Wide BeginNumber(const Table& table,
                                                         typename Lane::Element element) {
  using Factor = typename FactorOf<typename Lane::Wide>::type;
  const auto wide = Lane::Widen(element);
  if constexpr (Lane::kIsNumber) {
    if (table.scale_first) return Times(wide, static_cast<Factor>(table.prescale));
  }
  return wide;
}

// To the result.
template <class Lane, class Table>
RUEDA_HOST_DEVICE inline typename Lane::Element FinishNumber(const Table& table,
                                                             typename Lane::Wide wide) {
  using Factor = typename FactorOf<typename Lane::Wide>::type;
  if constexpr (Lane::kIsNumber) {
    if (table.divide) {
      wide = table.exact ? Times(wide, static_cast<Factor>(table.inverse))
                         : Over(wide, static_cast<Factor>(static_cast<double>(table.divisor)));
    }
    if (table.scale_last) wide = Times(wide, static_cast<Factor>(table.postscale));
  }
  return Lane::Narrow(wide);
}

// The same, to integers too: theirs apply to the elements' type.
template <class Lane, class Table>
RUEDA_HOST_DEVICE inline typename Lane::Wide Begin(const Table& table,
                                                   typename Lane::Element element) {
  if constexpr (Lane::kHasFactors && !Lane::kIsNumber) {
    if (table.scale_first) element = ScaleInteger(element, table.prescale);
  }
  return BeginNumber<Lane>(table, element);
}

template <class Lane, class Table>
RUEDA_HOST_DEVICE inline typename Lane::Element Finish(const Table& table,
                                                       typename Lane::Wide wide) {
  if constexpr (Lane::kHasFactors && !Lane::kIsNumber) {
    if (table.divide) wide = static_cast<typename Lane::Wide>(wide / table.divisor);
    if (table.scale_last) return ScaleInteger(Lane::Narrow(wide), table.postscale);
  }
  return FinishNumber<Lane>(table, wide);
}

// Of a thread; each takes registers for all its elements, widened.
template <class Element>
inline constexpr int kVectorsAtOnce = sizeof(Element) == 1 ? 1 : 2;

template <class Lane, class Op, class Table>
RUEDA_HOST_DEVICE inline void ReduceElement(const Table& table, int64_t at, Op op) {
  using Element = typename Lane::Element;
  auto sum = Begin<Lane>(table, LoadAnywhere<Element>(table.sources[0] + at));
  for (uint32_t k = 1; k < table.count; ++k) {
    sum = op(sum, Begin<Lane>(table, LoadAnywhere<Element>(table.sources[k] + at)));
  }
  StoreAnywhere(Finish<Lane>(table, sum), table.destination + at);
}

// Vectors `first` and, a block's width apart, the next ones before `end`. All that are read of a
// source are under way together.
template <class Lane, class Op, class Table>
RUEDA_HOST_DEVICE inline void ReduceVectors(const Table& table, int64_t head, int64_t first,
                                            int64_t end, Op op) {
  using Element = typename Lane::Element;
  constexpr int kEach = kVectorBytes / sizeof(Element);
  constexpr int kAtOnce = kVectorsAtOnce<Element>;
  typename Lane::Wide sum[kAtOnce][kEach] = {};
  for (uint32_t k = 0; k < table.count; ++k) {
    const uint8_t* const source = table.sources[k] + head;
    Vector vectors[kAtOnce];
    RUEDA_UNROLL
    for (int v = 0; v < kAtOnce; ++v) {
      const int64_t i = first + v * static_cast<int64_t>(kThreads);
      vectors[v] = i < end ? Load<Vector>(source + i * kVectorBytes) : Vector{};
    }
    RUEDA_UNROLL
    for (int v = 0; v < kAtOnce; ++v) {
      Element elements[kEach];
      memcpy(elements, &vectors[v], sizeof elements);
      RUEDA_UNROLL
      for (int e = 0; e < kEach; ++e) {
        const auto operand = BeginNumber<Lane>(table, elements[e]);
        sum[v][e] = k == 0 ? operand : op(sum[v][e], operand);
      }
    }
  }
  RUEDA_UNROLL
  for (int v = 0; v < kAtOnce; ++v) {
    const int64_t i = first + v * static_cast<int64_t>(kThreads);
    if (i >= end) continue;
    Element elements[kEach];
    RUEDA_UNROLL
    for (int e = 0; e < kEach; ++e) elements[e] = FinishNumber<Lane>(table, sum[v][e]);
    Vector vector;
    memcpy(&vector, elements, sizeof vector);
    Store(vector, table.destination + head + i * kVectorBytes);
  }
}

template <class Lane, class Op, class Table>
RUEDA_HOST_DEVICE inline void ReduceTile(const Table& table, ThreadIndex index, Op op) {
  constexpr int64_t kSize = sizeof(typename Lane::Element);
  Singles singles(Span(index.block, table.bytes / kSize, kSize));
  if constexpr (Table::kVectors && !kIsExactAverage<Lane>) {  // which is divided: never plain
    if (table.vectors) {
      const Middle middle(table.destination, table.bytes, kVectorBytes);
      const Span span(index.block, middle.items, kVectorBytes);
      constexpr int64_t kStep = kVectorsAtOnce<typename Lane::Element> * kThreads;
      for (int64_t i = span.begin + index.thread; i < span.end; i += kStep) {
        ReduceVectors<Lane>(table, middle.head, i, span.end, op);
      }
      const bool last = (index.block + int64_t{1}) * kTileBytes >= table.bytes;
      singles = Singles(middle, index.block == 0, last, table.bytes, kSize);
    }
  }
  for (int64_t j = index.thread; j < singles.count; j += kThreads) {
    ReduceElement<Lane>(table, singles.At(j) * kSize, op);
  }
}

// The kernel of a lane type.
template <class Lane, class Table>
RUEDA_HOST_DEVICE inline void ReduceBody(const Table& table, ThreadIndex index) {
  const int32_t operation = table.operation;
  if constexpr (kIsExactAverage<Lane>) {
    ReduceTile<Lane>(table, index, Sum());
  } else if constexpr (std::is_same_v<Lane, Bool>) {
    if (operation == kProduct || operation == kMin || operation == kBitAnd) {
      return ReduceTile<Lane>(table, index, Bitwise(kBitAnd));
    }
    return ReduceTile<Lane>(table, index, Bitwise(operation == kBitXor ? kBitXor : kBitOr));
  } else {
    if (operation == kProduct) return ReduceTile<Lane>(table, index, Product());
    // Of complex numbers that is all: their sums are those of their parts.
    if constexpr (std::is_arithmetic_v<typename Lane::Wide>) {
      if (operation == kMin) return ReduceTile<Lane>(table, index, Minimum());
      if (operation == kMax) return ReduceTile<Lane>(table, index, Maximum());
      if constexpr (!Lane::kIsNumber) {
        if (operation >= kBitAnd && operation <= kBitXor) {
          return ReduceTile<Lane>(table, index, Bitwise(operation));
        }
      }
      ReduceTile<Lane>(table, index, Sum());
    }
  }
}

// ---- launches ----

// Calls fn(Lane()) for what a reduction of this type and operation is done in.
template <class Fn>
auto WithLane(int32_t type, int32_t operation, const Fn& fn) {
  if (operation == kAverage || operation == kAverageLive) {
    switch (type) {
      case kUInt8:
        return fn(ExactAverage<uint8_t>());
      case kInt8:
        return fn(ExactAverage<int8_t>());
      case kUInt16:
        return fn(ExactAverage<uint16_t>());
      case kInt16:
        return fn(ExactAverage<int16_t>());
      case kUInt32:
        return fn(ExactAverage<uint32_t>());
      case kInt32:
        return fn(ExactAverage<int32_t>());
      default:
        break;  // of 64 bits as sums, and of floating types
    }
  }
  switch (type) {
    case kUInt8:
      return fn(Integer<uint8_t>());
    case kInt8:
      return fn(Integer<int8_t>());
    case kUInt16:
      return fn(Integer<uint16_t>());
    case kInt16:
      return fn(Integer<int16_t>());
    case kUInt32:
      return fn(Integer<uint32_t>());
    case kInt32:
      return fn(Integer<int32_t>());
    case kUInt64:
      return fn(Integer<uint64_t>());
    case kInt64:
      return fn(Integer<int64_t>());
    case kBool:
      return fn(Bool());
    case kFloat16:
      return fn(Float16Lane());
    case kBFloat16:
      return fn(BFloat16Lane());
    case kFloat8E4M3FN:
      return fn(Float8E4M3FNLane());
    case kFloat8E5M2:
      return fn(Float8E5M2Lane());
    case kFloat32:
      return fn(Real<float>());
    case kFloat64:
      return fn(Real<double>());
    case kComplex64:
      return operation == kProduct ? fn(Complex<float>()) : fn(Real<float>());
    default:
      return operation == kProduct ? fn(Complex<double>()) : fn(Real<double>());
  }
}

// Whether the result is the only source as it is.
inline bool IsCopy(const rueda_cuda_reduce& reduce) {
  return reduce.source_count == 1 && reduce.dtype != kBool && reduce.prescale == 1 &&
         reduce.postscale == 1 && reduce.divisor == 1;
}

// Calls launch(table) for a reduction of at least one element, of no more sources than the table
// holds.
template <class Table, class Launch>
void LaunchReduce(const rueda_cuda_reduce& reduce, const Launch& launch) {
  Table table;
  const int64_t size = BytesOf(reduce.dtype);
  const auto to = reinterpret_cast<uintptr_t>(reduce.destination);
  const bool integers =
      reduce.dtype <= kInt64 || (reduce.dtype >= kInt16 && reduce.dtype <= kUInt64);
  const bool plain = reduce.prescale == 1 && reduce.divisor == 1 && reduce.postscale == 1;
  table.vectors = to % static_cast<uintptr_t>(size) == 0 && (plain || !integers);
  for (size_t k = 0; k < reduce.source_count; ++k) {
    table.sources[k] = static_cast<const uint8_t*>(reduce.sources[k]);
    const auto from = reinterpret_cast<uintptr_t>(reduce.sources[k]);
    if ((from ^ to) % kVectorBytes != 0) table.vectors = false;
  }
  table.destination = static_cast<uint8_t*>(reduce.destination);
  table.bytes = reduce.count * size;
  table.count = static_cast<uint32_t>(reduce.source_count);
  table.operation = reduce.reduce_op;
  table.scale_first = reduce.prescale != 1;
  table.divide = reduce.divisor != 1;
  table.exact = (reduce.divisor & (reduce.divisor - 1)) == 0;
  table.scale_last = reduce.postscale != 1;
  table.prescale = reduce.prescale;
  table.postscale = reduce.postscale;
  table.divisor = reduce.divisor;
  table.inverse = 1 / static_cast<double>(reduce.divisor);
  launch(table);
}

// What a reduction becomes: a call of copy(rueda_cuda_copy), or of launch(table), or nothing.
template <class Copy, class Launch>
void LaunchReduction(const rueda_cuda_reduce& reduce, const Copy& copy, const Launch& launch) {
  if (reduce.count <= 0) return;
  if (IsCopy(reduce)) {
    if (reduce.destination == reduce.sources[0]) return;
    const rueda_cuda_segment segment = {reduce.sources[0], reduce.destination, reduce.count};
    return copy(rueda_cuda_copy{&segment, 1, reduce.dtype, kSum, 1});
  }
  if (reduce.source_count <= FewSources::kSources) {
    return LaunchReduce<FewSources>(reduce, launch);
  }
  LaunchReduce<ManySources>(reduce, launch);
}

}  // namespace rueda::cuda
