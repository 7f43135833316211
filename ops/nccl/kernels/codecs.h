// Compression of ranges (ops/compression/codec.h): a warp works on one block of 512 numbers at a
// time, four neighbours and again four to each of its lanes.
//
// The bodies are written for a `Warp`: Each calls a function for the lanes (on the device: the one
// that runs it; on the host: all, one after the other), and what a lane keeps in between is
// PerLane. What the lanes agree on, they agree on between two calls of Each.
#pragma once

#include "ops/nccl/cuda_abi.h"
#include "ops/nccl/kernels/numbers.h"

namespace rueda::cuda {

inline constexpr int64_t kCodecBlock = 512;
inline constexpr uint32_t kWarps = kThreads / kWarp;
inline constexpr int kFours = kCodecBlock / kWarp / 4;  // of a lane
inline constexpr float kLevels = 255;

// The ranges of one launch.
template <size_t kCapacity>
struct CodecTable {
  static constexpr size_t kRanges = kCapacity;

  const uint8_t* from[kCapacity];
  uint8_t* to[kCapacity];
  float* residual[kCapacity];
  int64_t elements[kCapacity];     // at least one
  uint32_t blocks_end[kCapacity];  // codec blocks, of this range and those before it
  uint32_t count;
  int32_t type;
  bool scale_first;
  bool decoded;
  float prescale, divisor, postscale;
  uint64_t sources;
  uint64_t stride;

  uint32_t blocks() const { return (blocks_end[count - 1] + kWarps - 1) / kWarps; }
};
using FewRanges = CodecTable<16>;
using ManyRanges = CodecTable<896>;
static_assert(sizeof(ManyRanges) <= kTableBytesMax);

// ---- a warp ----

#if defined(__CUDACC__)
// The lane that runs this.
struct DeviceWarp {
  template <class T>
  struct PerLane {
    T value;
    __device__ T& operator[](uint32_t) { return value; }
  };
  uint32_t own;

  template <class Fn>
  __device__ void Each(const Fn& fn) const {
    fn(own);
  }
  // All get the same: `fn` is commutative and associative.
  template <class T, class Fn>
  __device__ T Agree(PerLane<T>& mine, const Fn& fn) const {
    T all = mine.value;
#pragma unroll
    for (uint32_t apart = kWarp / 2; apart > 0; apart /= 2) {
      all = fn(all, __shfl_xor_sync(0xffffffff, all, apart));
    }
    return all;
  }
};
#endif

// All lanes, in lockstep.
struct HostWarp {
  template <class T>
  struct PerLane {
    T values[kWarp];
    T& operator[](uint32_t lane) { return values[lane]; }
  };

  template <class Fn>
  void Each(const Fn& fn) const {
    for (uint32_t lane = 0; lane < kWarp; ++lane) fn(lane);
  }
  template <class T, class Fn>
  T Agree(PerLane<T>& mine, const Fn& fn) const {
    PerLane<T> all = mine;
    for (uint32_t apart = kWarp / 2; apart > 0; apart /= 2) {
      const PerLane<T> before = all;
      for (uint32_t lane = 0; lane < kWarp; ++lane) {
        all[lane] = fn(before.values[lane], before.values[lane ^ apart]);
      }
    }
    return all[0];
  }
};

// ---- numbers ----

// What a lane has of a block: four neighbours from each of kFours places.
struct Numbers {
  float at[kFours][4];
};
RUEDA_HOST_DEVICE inline int64_t IndexOf(int four, uint32_t lane) {
  return four * static_cast<int64_t>(4 * kWarp) + 4 * static_cast<int64_t>(lane);
}

template <class Element>
struct alignas(4 * sizeof(Element)) Four {
  Element at[4];
};

// Of a block of `count` elements; 0 behind its end.
template <class Lane>
RUEDA_DEVICE inline void LoadFours(const uint8_t* from, int64_t count, uint32_t lane,
                                   Numbers* numbers) {
  using Element = typename Lane::Element;
  const bool aligned = IsAligned(from, sizeof(Four<Element>));
  RUEDA_UNROLL
  for (int f = 0; f < kFours; ++f) {
    const int64_t i = IndexOf(f, lane);
    const uint8_t* const at = from + i * sizeof(Element);
    if (aligned && i + 4 <= count) {
      const auto four = Load<Four<Element>>(at);
      RUEDA_UNROLL
      for (int e = 0; e < 4; ++e) numbers->at[f][e] = Lane::Widen(four.at[e]);
      continue;
    }
    RUEDA_UNROLL
    for (int e = 0; e < 4; ++e) {
      numbers->at[f][e] =
          i + e < count ? Lane::Widen(LoadAnywhere<Element>(at + e * sizeof(Element))) : 0;
    }
  }
}

template <class Element>
RUEDA_DEVICE inline void StoreFour(const Four<Element>& four, int64_t i, int64_t count,
                                   uint8_t* to) {
  uint8_t* const at = to + i * sizeof(Element);
  if (i + 4 <= count && IsAligned(at, sizeof four)) return Store(four, at);
  RUEDA_UNROLL
  for (int e = 0; e < 4; ++e) {
    if (i + e < count) StoreAnywhere(four.at[e], at + e * sizeof(Element));
  }
}

template <class Lane>
RUEDA_DEVICE inline void StoreFours(const Numbers& numbers, int64_t count, uint32_t lane,
                                    uint8_t* to) {
  RUEDA_UNROLL
  for (int f = 0; f < kFours; ++f) {
    Four<typename Lane::Element> four;
    RUEDA_UNROLL
    for (int e = 0; e < 4; ++e) four.at[e] = Lane::Narrow(numbers.at[f][e]);
    StoreFour(four, IndexOf(f, lane), count, to);
  }
}

RUEDA_DEVICE inline void LoadNumbers(int32_t type, const uint8_t* from, int64_t count,
                                     uint32_t lane, Numbers* numbers) {
  if (type == kFloat16) return LoadFours<Float16Lane>(from, count, lane, numbers);
  if (type == kBFloat16) return LoadFours<BFloat16Lane>(from, count, lane, numbers);
  LoadFours<Real<float>>(from, count, lane, numbers);
}

RUEDA_DEVICE inline void StoreNumbers(int32_t type, const Numbers& numbers, int64_t count,
                                      uint32_t lane, uint8_t* to) {
  if (type == kFloat16) return StoreFours<Float16Lane>(numbers, count, lane, to);
  if (type == kBFloat16) return StoreFours<BFloat16Lane>(numbers, count, lane, to);
  StoreFours<Real<float>>(numbers, count, lane, to);
}

// To each number of a lane.
template <class Fn>
RUEDA_DEVICE inline void ForNumbers(Numbers* numbers, const Fn& fn) {
  RUEDA_UNROLL
  for (int f = 0; f < kFours; ++f) {
    RUEDA_UNROLL
    for (int e = 0; e < 4; ++e) numbers->at[f][e] = fn(numbers->at[f][e]);
  }
}

RUEDA_DEVICE inline void AddResidual(const float* residual, int64_t count, uint32_t lane,
                                     Numbers* numbers) {
  Numbers more;
  LoadFours<Real<float>>(reinterpret_cast<const uint8_t*>(residual), count, lane, &more);
  RUEDA_UNROLL
  for (int f = 0; f < kFours; ++f) {
    RUEDA_UNROLL
    for (int e = 0; e < 4; ++e) numbers->at[f][e] += more.at[f][e];
  }
}

// What is missing of what it was; 0 where that is no finite number.
RUEDA_HOST_DEVICE inline float MissingOf(float value, float decoded) {
  const float missing = value - decoded;
  return missing - missing == 0 ? missing : 0;
}

// ---- codecs ----
//   kBlockBytes   of a whole block
//   Encode        numbers to `coded`; what is missing of them replaces them if `remembers`
//   Decode        one lane's numbers

template <class Format>
struct HalfCodec {
  static constexpr int64_t kBlockBytes = 2 * kCodecBlock;

  template <class Warp, class PerLane>
  RUEDA_DEVICE static void Encode(const Warp& warp, int64_t count, uint8_t* coded, bool remembers,
                                  PerLane* numbers) {
    warp.Each([&](uint32_t lane) {
      Numbers& mine = (*numbers)[lane];
      RUEDA_UNROLL
      for (int f = 0; f < kFours; ++f) {
        Four<uint16_t> four;
        RUEDA_UNROLL
        for (int e = 0; e < 4; ++e) {
          four.at[e] = Format::Narrow(Canonical(mine.at[f][e]));
          if (remembers) mine.at[f][e] = MissingOf(mine.at[f][e], Format::Widen(four.at[e]));
        }
        StoreFour(four, IndexOf(f, lane), count, coded);
      }
    });
  }
  RUEDA_DEVICE static void Decode(const uint8_t* coded, int64_t count, uint32_t lane,
                                  Numbers* numbers) {
    LoadFours<Small<Format, uint16_t>>(coded, count, lane, numbers);
  }
};

// Bytes as numbers.
struct Code {
  using Element = uint8_t;
  RUEDA_HOST_DEVICE static float Widen(uint8_t code) {
    return static_cast<float>(static_cast<int32_t>(code));
  }
};

struct LessOf {
  template <class T>
  RUEDA_HOST_DEVICE T operator()(T x, T y) const {
    return y < x ? y : x;
  }
};
struct MoreOf {
  template <class T>
  RUEDA_HOST_DEVICE T operator()(T x, T y) const {
    return y > x ? y : x;
  }
};

// 0 where there is none: of 0, of what is too small or not finite.
RUEDA_HOST_DEVICE inline float InverseOf(float scale) {
  const float inverse = 1 / scale;
  return scale > 0 && scale - scale == 0 && inverse - inverse == 0 ? inverse : 0;
}

struct Int8Codec {
  static constexpr int64_t kHeaderBytes = 2 * sizeof(float);
  static constexpr int64_t kBlockBytes = kHeaderBytes + kCodecBlock;
  static constexpr uint32_t kNowhere = 0xffffffff;

  struct Extremes {
    float least, largest;
  };

  // Of -0 and +0, which are equal, the one that the CPU meets first is taken: it goes through the
  // elements in 16 strands, and then through these. In the lowest bit: whether it is -0.
  template <class Warp, class PerLane>
  RUEDA_DEVICE static float FirstZero(const Warp& warp, int64_t count, PerLane* numbers) {
    typename Warp::template PerLane<uint32_t> first;
    warp.Each([&](uint32_t lane) {
      first[lane] = kNowhere;
      RUEDA_UNROLL
      for (int f = 0; f < kFours; ++f) {
        RUEDA_UNROLL
        for (int e = 0; e < 4; ++e) {
          const auto i = static_cast<uint32_t>(IndexOf(f, lane) + e);
          const float value = (*numbers)[lane].at[f][e];
          const uint32_t rank = (i % 16) * (kCodecBlock / 16) + i / 16;
          const uint32_t place = 2 * rank + (BitsOf(value) >> 31);
          if (i < count && value == 0 && place < first[lane]) first[lane] = place;
        }
      }
    });
    return warp.Agree(first, LessOf()) % 2 == 1 ? FloatOf(0x80000000) : 0;
  }

  template <class Warp, class PerLane>
  RUEDA_DEVICE static Extremes ExtremesOf(const Warp& warp, int64_t count, PerLane* numbers) {
    typename Warp::template PerLane<float> low, high;
    typename Warp::template PerLane<uint32_t> poison;
    warp.Each([&](uint32_t lane) {
      low[lane] = FloatOf(0x7f800000);
      high[lane] = FloatOf(0xff800000);
      poison[lane] = 0;
      RUEDA_UNROLL
      for (int f = 0; f < kFours; ++f) {
        RUEDA_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float value = (*numbers)[lane].at[f][e];
          if (IndexOf(f, lane) + e >= count) continue;
          low[lane] = LessOf()(low[lane], value);
          high[lane] = MoreOf()(high[lane], value);
          if (!(value - value == 0)) poison[lane] = 1;
        }
      }
    });
    Extremes extremes = {warp.Agree(low, LessOf()), warp.Agree(high, MoreOf())};
    if (warp.Agree(poison, MoreOf()) != 0) {
      extremes.least = extremes.largest = FloatOf(0x7fc00000);
    } else if (extremes.least == 0 || extremes.largest == 0) {
      const float zero = FirstZero(warp, count, numbers);
      if (extremes.least == 0) extremes.least = zero;
      if (extremes.largest == 0) extremes.largest = zero;
    }
    return extremes;
  }

  RUEDA_HOST_DEVICE static uint8_t LevelOf(float value, float least, float inverse) {
    if (inverse == 0) return 0;
    float level = (value - least) * inverse + 0.5f;
    level = level < 255.5f ? level : 255.5f;
    return static_cast<uint8_t>(static_cast<int32_t>(level));
  }

  template <class Warp, class PerLane>
  RUEDA_DEVICE static void Encode(const Warp& warp, int64_t count, uint8_t* coded, bool remembers,
                                  PerLane* numbers) {
    const Extremes extremes = ExtremesOf(warp, count, numbers);
    const float least = extremes.least;
    const float step = (extremes.largest - least) / kLevels;
    const float inverse = InverseOf(step);
    warp.Each([&](uint32_t lane) {
      if (lane == 0) {
        StoreAnywhere(least, coded);
        StoreAnywhere(extremes.largest, coded + sizeof(float));
      }
      Numbers& mine = (*numbers)[lane];
      RUEDA_UNROLL
      for (int f = 0; f < kFours; ++f) {
        Four<uint8_t> four;
        RUEDA_UNROLL
        for (int e = 0; e < 4; ++e) {
          float& value = mine.at[f][e];
          // Behind the end there is nothing that fits the levels.
          const bool inside = IndexOf(f, lane) + e < count;
          four.at[e] = inside ? LevelOf(value, least, inverse) : uint8_t{0};
          if (remembers) value = MissingOf(value, Code::Widen(four.at[e]) * step + least);
        }
        StoreFour(four, IndexOf(f, lane), count, coded + kHeaderBytes);
      }
    });
  }

  RUEDA_DEVICE static void Decode(const uint8_t* coded, int64_t count, uint32_t lane,
                                  Numbers* numbers) {
    const auto least = LoadAnywhere<float>(coded);
    const float step = (LoadAnywhere<float>(coded + sizeof(float)) - least) / kLevels;
    LoadFours<Code>(coded + kHeaderBytes, count, lane, numbers);
    ForNumbers(numbers, [&](float code) { return code * step + least; });
  }
};

// ---- bodies ----

// The block that a warp works on.
struct CodecBlock {
  const uint8_t* from;
  uint8_t* to;
  float* residual;  // its part
  int64_t begin;    // in elements
  int64_t count;
  int64_t coded_begin;  // in bytes
};

template <class TheCodec, class Table>
RUEDA_DEVICE inline CodecBlock BlockOf(const Table& table, uint32_t index) {
  const uint32_t r = OwnerOf(table.blocks_end, table.count, index);
  const int64_t k = index - (r == 0 ? 0 : table.blocks_end[r - 1]);
  const int64_t begin = k * kCodecBlock;
  float* const residual = table.residual[r];
  return {table.from[r],
          table.to[r],
          residual == nullptr ? nullptr : residual + begin,
          begin,
          Smaller(kCodecBlock, table.elements[r] - begin),
          k * TheCodec::kBlockBytes};
}

// Adds what was left out, encodes, and remembers what is left out now.
template <class TheCodec, class Warp, class PerLane>
RUEDA_DEVICE inline void EncodeBlock(const Warp& warp, const CodecBlock& block, PerLane* numbers) {
  const bool remembers = block.residual != nullptr;
  if (remembers) {
    warp.Each(
        [&](uint32_t lane) { AddResidual(block.residual, block.count, lane, &(*numbers)[lane]); });
  }
  TheCodec::Encode(warp, block.count, block.to + block.coded_begin, remembers, numbers);
  if (!remembers) return;
  warp.Each([&](uint32_t lane) {
    StoreFours<Real<float>>((*numbers)[lane], block.count, lane,
                            reinterpret_cast<uint8_t*>(block.residual));
  });
}

template <class TheCodec, class Table, class Warp>
RUEDA_DEVICE inline void EncodeBody(const Table& table, uint32_t index, const Warp& warp) {
  const CodecBlock block = BlockOf<TheCodec>(table, index);
  typename Warp::template PerLane<Numbers> numbers;
  warp.Each([&](uint32_t lane) {
    Numbers& mine = numbers[lane];
    if (block.from == nullptr) return ForNumbers(&mine, [](float) { return 0.0f; });
    const int64_t size = table.type == kFloat32 ? 4 : 2;
    LoadNumbers(table.type, block.from + block.begin * size, block.count, lane, &mine);
    if (table.scale_first) ForNumbers(&mine, [&](float x) { return x * table.prescale; });
  });
  EncodeBlock<TheCodec>(warp, block, &numbers);
}

template <class TheCodec, class Table, class Warp>
RUEDA_DEVICE inline void CombineBody(const Table& table, uint32_t index, const Warp& warp) {
  const CodecBlock block = BlockOf<TheCodec>(table, index);
  typename Warp::template PerLane<Numbers> sums;
  warp.Each([&](uint32_t lane) {
    Numbers& sum = sums[lane];
    ForNumbers(&sum, [](float) { return 0.0f; });
    const uint8_t* coded = block.from + block.coded_begin;
    for (uint64_t k = 0; k < table.sources; ++k, coded += table.stride) {
      Numbers more;
      TheCodec::Decode(coded, block.count, lane, &more);
      RUEDA_UNROLL
      for (int f = 0; f < kFours; ++f) {
        RUEDA_UNROLL
        for (int e = 0; e < 4; ++e) sum.at[f][e] += more.at[f][e];
      }
    }
    ForNumbers(&sum, [&](float x) { return x / table.divisor * table.postscale; });
    if (!table.decoded) return;
    const int64_t size = table.type == kFloat32 ? 4 : 2;
    StoreNumbers(table.type, sum, block.count, lane, block.to + block.begin * size);
  });
  if (!table.decoded) EncodeBlock<TheCodec>(warp, block, &sums);
}

template <class TheCodec, class Table, class Warp>
RUEDA_DEVICE inline void DecodeBody(const Table& table, uint32_t index, const Warp& warp) {
  const CodecBlock block = BlockOf<TheCodec>(table, index);
  warp.Each([&](uint32_t lane) {
    Numbers numbers;
    TheCodec::Decode(block.from + block.coded_begin, block.count, lane, &numbers);
    const int64_t size = table.type == kFloat32 ? 4 : 2;
    StoreNumbers(table.type, numbers, block.count, lane, block.to + block.begin * size);
  });
}

// ---- launches ----

// Calls launch(table) for as many ranges at a time as fit into one; never for none.
template <class Table, class Launch>
void LaunchRanges(const rueda_cuda_codec& codec, const Launch& launch) {
  Table table;
  table.type = codec.dtype;
  table.scale_first = codec.prescale != 1;
  table.decoded = codec.decoded != 0;
  table.prescale = static_cast<float>(codec.prescale);
  table.divisor = static_cast<float>(codec.divisor);
  table.postscale = static_cast<float>(codec.postscale);
  table.sources = codec.sources;
  table.stride = codec.stride;
  table.count = 0;
  int64_t blocks = 0;
  const auto flush = [&] {
    if (table.count > 0) launch(table);
    table.count = 0;
    blocks = 0;
  };
  for (size_t i = 0; i < codec.count; ++i) {
    const rueda_cuda_range& range = codec.ranges[i];
    if (range.elements <= 0) continue;
    const int64_t more = (range.elements + kCodecBlock - 1) / kCodecBlock;
    if (table.count == Table::kRanges || blocks + more > kBlocksMax) flush();
    blocks += more;
    table.from[table.count] = static_cast<const uint8_t*>(range.from);
    table.to[table.count] = static_cast<uint8_t*>(range.to);
    table.residual[table.count] = range.residual;
    table.elements[table.count] = range.elements;
    table.blocks_end[table.count] = static_cast<uint32_t>(blocks);
    ++table.count;
  }
  flush();
}

// The same with the table that suits it.
template <class Launch>
void LaunchCodec(const rueda_cuda_codec& codec, const Launch& launch) {
  if (codec.count <= FewRanges::kRanges) return LaunchRanges<FewRanges>(codec, launch);
  LaunchRanges<ManyRanges>(codec, launch);
}

// Calls fn(TheCodec()) for the codec of this number.
template <class Fn>
auto WithCodec(int32_t compressor, const Fn& fn) {
  if (compressor == kCodecFloat16) return fn(HalfCodec<Float16>());
  if (compressor == kCodecBFloat16) return fn(HalfCodec<BFloat16>());
  return fn(Int8Codec());
}

}  // namespace rueda::cuda
