// The batched copy: all segments of a call in one launch, cut into tiles of equal size whatever the
// segments' sizes are. Two kernels: bytes that are moved as they are, or filled in; and numbers
// that are multiplied on the way.
#pragma once

#include "ops/nccl/cuda_abi.h"
#include "ops/nccl/kernels/numbers.h"

namespace rueda::cuda {

// The segments of one launch.
template <size_t kCapacity>
struct CopyTable {
  static constexpr size_t kSegments = kCapacity;

  const uint8_t* from[kCapacity];  // null: `neutral` is repeated
  uint8_t* to[kCapacity];
  int64_t bytes[kCapacity];       // at least one
  uint32_t tiles_end[kCapacity];  // of this segment and those before it
  uint32_t count;
  int32_t type;  // of the numbers; complex ones are two each
  double factor;
  uint32_t element_bytes;
  alignas(kVectorBytes) uint8_t neutral[kVectorBytes];  // one element

  uint32_t blocks() const { return tiles_end[count - 1]; }
};
// Few segments are quicker to hand over.
using FewCopies = CopyTable<16>;
using ManyCopies = CopyTable<1024>;
static_assert(sizeof(ManyCopies) <= kTableBytesMax);

// The part of a segment that a block moves.
struct CopyTile {
  const uint8_t* from;
  uint8_t* to;
  int64_t bytes;  // of the segment
  int64_t index;  // of the tile in it
  bool last;
};

template <class Table>
RUEDA_HOST_DEVICE inline CopyTile TileOf(const Table& table, uint32_t block) {
  const uint32_t s = OwnerOf(table.tiles_end, table.count, block);
  const uint32_t begin = s == 0 ? 0 : table.tiles_end[s - 1];
  return {table.from[s], table.to[s], table.bytes[s], block - begin,
          block + 1 == table.tiles_end[s]};
}

// What lies between two unaligned ends, in items of `bytes` each, the same for all tiles of a
// segment. `head`: in bytes, until `to` is aligned to an item.
struct Middle {
  RUEDA_HOST_DEVICE Middle(const void* to, int64_t bytes, int64_t item_bytes)
      : head(Smaller(bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) &
                                                 static_cast<uintptr_t>(item_bytes - 1)))),
        items((bytes - head) / item_bytes),
        tail(head + items * item_bytes) {}
  int64_t head;
  int64_t items;
  int64_t tail;  // where it begins
};

// The items of tile `index`, which `items` in all are cut into.
struct Span {
  RUEDA_HOST_DEVICE Span(int64_t index, int64_t items, int64_t item_bytes)
      : begin(Smaller(index * (kTileBytes / item_bytes), items)),
        end(Smaller(begin + kTileBytes / item_bytes, items)) {}
  int64_t begin, end;
};

// The elements that a tile has one by one: all, or those before and behind its vectors. The j-th
// of them is element j + (j < head ? 0 : skip).
struct Singles {
  RUEDA_HOST_DEVICE explicit Singles(const Span& span)
      : head(0), skip(span.begin), count(span.end - span.begin) {}
  RUEDA_HOST_DEVICE Singles(const Middle& middle, bool first, bool last, int64_t bytes,
                            int64_t element_bytes)
      : head(first ? middle.head / element_bytes : 0),
        skip(middle.tail / element_bytes - head),
        count(head + (last ? (bytes - middle.tail) / element_bytes : 0)) {}
  RUEDA_HOST_DEVICE int64_t At(int64_t j) const { return j + (j < head ? 0 : skip); }
  int64_t head, skip, count;
};

// ---- as they are ----

template <class Word>
RUEDA_HOST_DEVICE inline void CopyWords(const CopyTile& tile, uint32_t thread) {
  constexpr int64_t kBytes = sizeof(Word);
  constexpr int64_t kEach = kTileBytes / kBytes / kThreads;
  constexpr int kAtOnce = kEach < 8 ? static_cast<int>(kEach) : 8;
  const Middle middle(tile.to, tile.bytes, kBytes);
  const Span span(tile.index, middle.items, kBytes);
  const uint8_t* const from = tile.from + middle.head;
  uint8_t* const to = tile.to + middle.head;
  for (int64_t first = span.begin + thread; first < span.end; first += kAtOnce * kThreads) {
    Word words[kAtOnce] = {};
    RUEDA_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t i = first + k * static_cast<int64_t>(kThreads);
      if (i < span.end) words[k] = Load<Word>(from + i * kBytes);
    }
    RUEDA_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t i = first + k * static_cast<int64_t>(kThreads);
      if (i < span.end) Store(words[k], to + i * kBytes);
    }
  }
  if (tile.index == 0 && thread < middle.head) tile.to[thread] = tile.from[thread];
  if (tile.last && thread < tile.bytes - middle.tail) {
    tile.to[middle.tail + thread] = tile.from[middle.tail + thread];
  }
}

template <class Table>
RUEDA_HOST_DEVICE inline void FillTile(const Table& table, const CopyTile& tile, uint32_t thread) {
  const Middle middle(tile.to, tile.bytes, kVectorBytes);
  const Span span(tile.index, middle.items, kVectorBytes);
  // Vectors hold whole elements, but may begin within one.
  const int64_t within = table.element_bytes - 1;  // sizes are powers of two
  uint8_t rotated[kVectorBytes];
  RUEDA_UNROLL
  for (int64_t i = 0; i < kVectorBytes; ++i) rotated[i] = table.neutral[(middle.head + i) & within];
  Vector vector;
  memcpy(&vector, rotated, sizeof vector);
  for (int64_t i = span.begin + thread; i < span.end; i += kThreads) {
    Store(vector, tile.to + middle.head + i * kVectorBytes);
  }
  if (tile.index == 0 && thread < middle.head) tile.to[thread] = table.neutral[thread & within];
  if (tile.last && thread < tile.bytes - middle.tail) {
    tile.to[middle.tail + thread] = table.neutral[(middle.tail + thread) & within];
  }
}

// The kernel that moves bytes.
template <class Table>
RUEDA_HOST_DEVICE inline void CopyBody(const Table& table, ThreadIndex index) {
  const CopyTile tile = TileOf(table, index.block);
  if (tile.from == nullptr) return FillTile(table, tile, index.thread);
  // The widest words which both sides are aligned to at the same places.
  const uintptr_t apart =
      reinterpret_cast<uintptr_t>(tile.from) ^ reinterpret_cast<uintptr_t>(tile.to);
  if (apart % 16 == 0) return CopyWords<Vector>(tile, index.thread);
  if (apart % 8 == 0) return CopyWords<uint64_t>(tile, index.thread);
  if (apart % 4 == 0) return CopyWords<uint32_t>(tile, index.thread);
  if (apart % 2 == 0) return CopyWords<uint16_t>(tile, index.thread);
  CopyWords<uint8_t>(tile, index.thread);
}

// ---- multiplied ----

template <class Lane>
RUEDA_HOST_DEVICE inline typename Lane::Element Scaled(typename Lane::Element element,
                                                       typename Lane::Wide factor) {
  return Lane::Narrow(Times(Lane::Widen(element), factor));
}

template <class Lane>
RUEDA_HOST_DEVICE inline void ScaleVectors(const CopyTile& tile, const Middle& middle,
                                           uint32_t thread, typename Lane::Wide factor) {
  using Element = typename Lane::Element;
  constexpr int kEach = kVectorBytes / sizeof(Element);
  constexpr int kAtOnce = kTileBytes / kVectorBytes / kThreads;
  const Span span(tile.index, middle.items, kVectorBytes);
  const uint8_t* const from = tile.from + middle.head;
  uint8_t* const to = tile.to + middle.head;
  Vector vectors[kAtOnce] = {};
  RUEDA_UNROLL
  for (int k = 0; k < kAtOnce; ++k) {
    const int64_t i = span.begin + thread + k * static_cast<int64_t>(kThreads);
    if (i < span.end) vectors[k] = Load<Vector>(from + i * kVectorBytes);
  }
  RUEDA_UNROLL
  for (int k = 0; k < kAtOnce; ++k) {
    const int64_t i = span.begin + thread + k * static_cast<int64_t>(kThreads);
    if (i >= span.end) continue;
    Element elements[kEach];
    memcpy(elements, &vectors[k], sizeof elements);
    RUEDA_UNROLL
    for (int e = 0; e < kEach; ++e) elements[e] = Scaled<Lane>(elements[e], factor);
    memcpy(&vectors[k], elements, sizeof elements);
    Store(vectors[k], to + i * kVectorBytes);
  }
}

template <class Lane>
RUEDA_HOST_DEVICE inline void ScaleTile(const CopyTile& tile, uint32_t thread, double factor64) {
  using Element = typename Lane::Element;
  constexpr int64_t kSize = sizeof(Element);
  const auto factor = static_cast<typename Lane::Wide>(factor64);
  const uintptr_t apart =
      reinterpret_cast<uintptr_t>(tile.from) ^ reinterpret_cast<uintptr_t>(tile.to);
  Singles singles(Span(tile.index, tile.bytes / kSize, kSize));
  if (apart % kVectorBytes == 0 && IsAligned(tile.to, kSize)) {
    const Middle middle(tile.to, tile.bytes, kVectorBytes);
    ScaleVectors<Lane>(tile, middle, thread, factor);
    singles = Singles(middle, tile.index == 0, tile.last, tile.bytes, kSize);
  }
  for (int64_t j = thread; j < singles.count; j += kThreads) {
    const int64_t at = singles.At(j) * kSize;
    const auto element = LoadAnywhere<Element>(tile.from + at);
    StoreAnywhere(Scaled<Lane>(element, factor), tile.to + at);
  }
}

// The kernel that multiplies.
template <class Table>
RUEDA_HOST_DEVICE inline void ScaleBody(const Table& table, ThreadIndex index) {
  const CopyTile tile = TileOf(table, index.block);
  if (tile.from == nullptr) return FillTile(table, tile, index.thread);
  const double factor = table.factor;
  switch (table.type) {
    case kFloat16:
      return ScaleTile<Float16Lane>(tile, index.thread, factor);
    case kBFloat16:
      return ScaleTile<BFloat16Lane>(tile, index.thread, factor);
    case kFloat8E4M3FN:
      return ScaleTile<Float8E4M3FNLane>(tile, index.thread, factor);
    case kFloat8E5M2:
      return ScaleTile<Float8E5M2Lane>(tile, index.thread, factor);
    case kFloat32:
    case kComplex64:
      return ScaleTile<Real<float>>(tile, index.thread, factor);
    default:
      return ScaleTile<Real<double>>(tile, index.thread, factor);
  }
}

// ---- launches ----

template <class T>
T NeutralOf(int32_t operation) {
  using Limits = std::numeric_limits<T>;
  switch (operation) {
    case kMin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case kMax:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case kProduct:
      return 1;
    case kBitAnd:
      return static_cast<T>(-1);
    default:
      return 0;
  }
}

template <class T>
void PutNeutral(int32_t operation, uint8_t* to) {
  const T value = NeutralOf<T>(operation);
  std::memcpy(to, &value, sizeof value);
}

// What changes nothing as an operand: one element.
inline void NeutralElement(int32_t type, int32_t operation, uint8_t* to) {
  const float number = NeutralOf<float>(operation);
  switch (type) {
    case kUInt8:
      return PutNeutral<uint8_t>(operation, to);
    case kInt8:
      return PutNeutral<int8_t>(operation, to);
    case kInt16:
      return PutNeutral<int16_t>(operation, to);
    case kUInt16:
      return PutNeutral<uint16_t>(operation, to);
    case kInt32:
      return PutNeutral<int32_t>(operation, to);
    case kUInt32:
      return PutNeutral<uint32_t>(operation, to);
    case kInt64:
      return PutNeutral<int64_t>(operation, to);
    case kUInt64:
      return PutNeutral<uint64_t>(operation, to);
    case kBool:
      return PutNeutral<bool>(operation, to);
    case kFloat16:
      return Store(HostFloat16::Narrow(number), to);
    case kBFloat16:
      return Store(BFloat16::Narrow(number), to);
    case kFloat8E5M2:
      return Store(Float8E5M2::Narrow(number), to);
    case kFloat8E4M3FN: {  // which has no infinity
      const float most = number > 448 ? 448 : number < -448 ? -448 : number;
      return Store(Float8E4M3FN::Narrow(most), to);
    }
    case kFloat32:
      return PutNeutral<float>(operation, to);
    case kFloat64:
      return PutNeutral<double>(operation, to);
    case kComplex64:  // the real part; the other one is 0
      std::memset(to, 0, 8);
      return PutNeutral<float>(operation, to);
    case kComplex128:
      std::memset(to, 0, 16);
      return PutNeutral<double>(operation, to);
    default:
      return;
  }
}

// Calls launch(table) for as many segments at a time as fit into one; never for none.
template <class Table, class Launch>
void LaunchCopies(const rueda_cuda_copy& copy, const Launch& launch) {
  Table table;
  const int64_t size = BytesOf(copy.dtype);
  table.type = copy.dtype;
  table.factor = copy.factor;
  table.element_bytes = static_cast<uint32_t>(size);
  NeutralElement(copy.dtype, copy.reduce_op, table.neutral);
  table.count = 0;
  int64_t tiles = 0;
  const auto flush = [&] {
    if (table.count > 0) launch(table);
    table.count = 0;
    tiles = 0;
  };
  for (size_t i = 0; i < copy.count; ++i) {
    const rueda_cuda_segment& segment = copy.segments[i];
    const int64_t bytes = segment.elements * size;
    if (bytes <= 0) continue;
    if (table.count == Table::kSegments || tiles + TilesOf(bytes) > kBlocksMax) flush();
    tiles += TilesOf(bytes);
    table.from[table.count] = static_cast<const uint8_t*>(segment.from);
    table.to[table.count] = static_cast<uint8_t*>(segment.to);
    table.bytes[table.count] = bytes;
    table.tiles_end[table.count] = static_cast<uint32_t>(tiles);
    ++table.count;
  }
  flush();
}

// The same with the table that suits it.
template <class Launch>
void LaunchCopy(const rueda_cuda_copy& copy, const Launch& launch) {
  if (copy.count <= FewCopies::kSegments) return LaunchCopies<FewCopies>(copy, launch);
  LaunchCopies<ManyCopies>(copy, launch);
}

// Whether what LaunchCopy launches is ScaleBody; else CopyBody.
inline bool Multiplies(const rueda_cuda_copy& copy) {
  return copy.factor != 1;
}

}  // namespace rueda::cuda
