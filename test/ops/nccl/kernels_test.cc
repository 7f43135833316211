// The CUDA kernels' arithmetic on the host, over all their blocks and threads, against what the CPU
// does: bit for bit, at every alignment, and nothing beside.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/compression/codec.h"
#include "ops/kernels/reduce.h"
#include "ops/nccl/kernels/on_host.h"
#include "test/ops/nccl/numbers.h"

namespace rueda::cuda {
namespace {

constexpr int64_t kTile = 16 << 10;  // bytes that one thread block writes

// Memory that ends where its content ends, which begins `offset` bytes behind an address that is a
// multiple of 64.
class Memory {
 public:
  Memory(int64_t bytes, size_t offset)
      : begin_(offset), bytes_(static_cast<size_t>(bytes)), memory_(New(offset + bytes_)) {
    for (size_t i = 0; i < begin_ + bytes_; ++i) memory_.get()[i] = Before(i);
  }
  uint8_t* data() { return memory_.get() + begin_; }
  const uint8_t* data() const { return memory_.get() + begin_; }
  template <class T>
  T* As() {
    return reinterpret_cast<T*>(data());
  }
  int64_t bytes() const { return static_cast<int64_t>(bytes_); }
  std::vector<uint8_t> Content() const { return {data(), data() + bytes_}; }
  void Fill(const std::vector<uint8_t>& content) {
    std::copy(content.begin(), content.end(), data());
  }
  // Before the content.
  bool IsWholeBefore() const {
    for (size_t i = 0; i < begin_; ++i) {
      if (memory_.get()[i] != Before(i)) return false;
    }
    return true;
  }

 private:
  static constexpr auto kAlignment = std::align_val_t{64};
  struct Delete {
    void operator()(uint8_t* memory) const { operator delete(memory, kAlignment); }
  };
  static uint8_t* New(size_t bytes) {
    return static_cast<uint8_t*>(operator new(bytes, kAlignment));
  }
  static uint8_t Before(size_t i) { return static_cast<uint8_t>(i * 37 + 11); }

  size_t begin_, bytes_;
  std::unique_ptr<uint8_t, Delete> memory_;
};

// ---- copies ----

void Copy(DType dtype, ReduceOp op, double factor,
          const std::vector<rueda_cuda_segment>& segments) {
  rueda_cuda_copy copy = {};
  copy.segments = segments.data();
  copy.count = segments.size();
  copy.dtype = static_cast<int32_t>(dtype);
  copy.reduce_op = static_cast<int32_t>(op);
  copy.factor = factor;
  CopyOnHost(copy);
}

std::vector<int64_t> SizesAroundBoundaries() {
  std::vector<int64_t> sizes = {0, 1, 2, 3, 5, 8, 11, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100};
  for (const int64_t boundary : {int64_t{4096}, kTile, 2 * kTile}) {
    for (const int64_t beside : {-17, -16, -1, 0, 1, 15, 16, 17})
      sizes.push_back(boundary + beside);
  }
  return sizes;
}

TEST(CudaCopy, MovesEveryByteAndNoOtherAtEveryAlignment) {
  std::mt19937 random(1);
  for (const int64_t bytes : SizesAroundBoundaries()) {
    // The last bytes before and behind a segment are another's in the same memory.
    for (size_t from_offset = 0; from_offset < 16; ++from_offset) {
      Memory from(bytes, from_offset);
      from.Fill(RandomBytes(bytes, &random));
      for (size_t to_offset = 0; to_offset < 16; ++to_offset) {
        Memory to(bytes + 40, to_offset);
        std::vector<uint8_t> wanted = to.Content();
        std::copy_n(from.data(), bytes, wanted.begin() + 20);
        Copy(DType::kUInt8, ReduceOp::kNone, 1, {{from.data(), to.data() + 20, bytes}});
        ASSERT_EQ(to.Content(), wanted) << bytes << ": " << from_offset << " to " << to_offset;
        ASSERT_TRUE(to.IsWholeBefore());
      }
    }
  }
}

TEST(CudaCopy, AnyNumberOfSegmentsOfAnySizes) {
  std::mt19937 random(2);
  for (const size_t count : {size_t{1}, size_t{2}, size_t{15}, size_t{16}, size_t{17}, size_t{161},
                             size_t{1023}, size_t{1024}, size_t{1025}, size_t{2500}}) {
    std::vector<int64_t> elements(count);
    int64_t all = 0;
    for (int64_t& each : elements) {
      each = random() % 8 == 0 ? 0 : random() % 50 == 0 ? 20000 : random() % 300;
      all += each;
    }
    Memory from(all * 4, 4);
    Memory to(all * 4, 8);
    from.Fill(RandomBytes(all * 4, &random));
    std::vector<rueda_cuda_segment> segments;
    std::vector<uint8_t> wanted = to.Content();
    int64_t at = 0;
    for (const int64_t each : elements) {  // the last of the one are the first of the other
      segments.push_back({from.data() + at * 4, to.data() + (all - at - each) * 4, each});
      std::copy_n(from.data() + at * 4, each * 4, wanted.begin() + (all - at - each) * 4);
      at += each;
    }
    Copy(DType::kFloat32, ReduceOp::kNone, 1, segments);
    ASSERT_EQ(to.Content(), wanted) << count;
  }
}

TEST(CudaCopy, NothingAtAllIsCopied) {
  Copy(DType::kFloat32, ReduceOp::kSum, 1, {});
  Memory to(16, 0);
  const std::vector<uint8_t> before = to.Content();
  Copy(DType::kFloat32, ReduceOp::kSum, 1, {{nullptr, to.data(), 0}, {to.data(), to.data(), 0}});
  EXPECT_EQ(to.Content(), before);
}

TEST(CudaCopy, FillsInWhatChangesNothing) {
  for (const DType dtype : AllDTypes()) {
    const auto size = static_cast<int64_t>(DTypeSize(dtype));
    for (const ReduceOp op : OpsOf(dtype)) {
      for (const int64_t elements : {int64_t{1}, int64_t{3}, int64_t{17}, kTile / size + 3}) {
        for (size_t offset = 0; offset < 16; ++offset) {
          for (const double factor : {1.0, 2.0}) {
            if (factor != 1 && !IsFloating(dtype) && !IsComplex(dtype)) continue;
            Memory to(elements * size + 32, offset);
            std::vector<uint8_t> wanted = to.Content();
            kernels::FillNeutral(dtype, op, wanted.data() + 16, elements);
            Copy(dtype, op, factor, {{nullptr, to.data() + 16, elements}});
            ASSERT_EQ(to.Content(), wanted)
                << DTypeName(dtype) << " " << ReduceOpName(op) << " " << elements << " " << offset;
          }
        }
      }
    }
  }
}

TEST(CudaCopy, MultipliesAsTheCpuDoes) {
  std::mt19937 random(3);
  for (const DType dtype : AllDTypes()) {
    if (!IsFloating(dtype) && !IsComplex(dtype)) continue;
    const auto size = static_cast<int64_t>(DTypeSize(dtype));
    for (const double factor :
         {0.5, 1.0 / 3, -7.25, 1e-30, 1e30, 0.0, std::numeric_limits<double>::infinity(),
          std::numeric_limits<double>::quiet_NaN()}) {
      Scaling scaling;
      scaling.prescale = factor;
      for (const int64_t elements : {int64_t{1}, int64_t{13}, kTile / size + 5}) {
        for (size_t from_offset = 0; from_offset < 16; ++from_offset) {
          if (elements > 13 && from_offset % 4 != 0) continue;
          for (size_t to_offset = 0; to_offset < 16; to_offset += 1 + from_offset % 3) {
            if (elements > 13 && (to_offset + from_offset) % 3 != 0) continue;
            Memory from(elements * size, from_offset);
            from.Fill(RandomNumbers(dtype, elements, &random));
            Memory to(elements * size + 16, to_offset);
            std::vector<uint8_t> wanted = to.Content();
            const void* const source = from.data();
            kernels::Reduce(dtype, ReduceOp::kSum, {&source, 1}, wanted.data() + 8, elements,
                            scaling);
            Copy(dtype, ReduceOp::kSum, factor, {{from.data(), to.data() + 8, elements}});
            ASSERT_EQ(to.Content(), wanted) << DTypeName(dtype) << " " << factor << " " << elements
                                            << ": " << from_offset << " to " << to_offset;
          }
        }
      }
    }
  }
}

TEST(CudaCopy, MultipliesAllNarrowNumbersAsTheCpuDoes) {
  for (const DType dtype :
       {DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
    const int64_t size = static_cast<int64_t>(DTypeSize(dtype));
    const int64_t elements = int64_t{1} << (8 * size);
    Memory from(elements * size, 0), to(elements * size, 0);
    for (int64_t i = 0; i < elements; ++i) std::memcpy(from.data() + i * size, &i, size);
    const void* const source = from.data();
    for (const double factor : {0.75, 1.5, 0.015625, 64.0, -1.0, 3e-5, 4e4}) {
      Scaling scaling;
      scaling.prescale = factor;
      std::vector<uint8_t> wanted(static_cast<size_t>(elements * size));
      kernels::Reduce(dtype, ReduceOp::kSum, {&source, 1}, wanted.data(), elements, scaling);
      Copy(dtype, ReduceOp::kSum, factor, {{from.data(), to.data(), elements}});
      ASSERT_EQ(to.Content(), wanted) << DTypeName(dtype) << " " << factor;
    }
  }
}

// ---- reductions ----

rueda_cuda_reduce ReduceOf(DType dtype, ReduceOp op, const std::vector<const void*>& sources,
                           void* destination, int64_t count, const Scaling& scaling) {
  rueda_cuda_reduce reduce = {};
  reduce.dtype = static_cast<int32_t>(dtype);
  reduce.reduce_op = static_cast<int32_t>(op);
  reduce.sources = sources.data();
  reduce.source_count = sources.size();
  reduce.destination = destination;
  reduce.count = count;
  reduce.prescale = scaling.prescale;
  reduce.postscale = scaling.postscale;
  reduce.divisor = scaling.divisor;
  return reduce;
}

std::string Describe(DType dtype, ReduceOp op, size_t sources, int64_t count,
                     const Scaling& scaling) {
  return std::string(ReduceOpName(op)) + " of " + std::to_string(sources) + " " +
         std::string(DTypeName(dtype)) + "[" + std::to_string(count) + "], " +
         std::to_string(scaling.prescale) + ", " + std::to_string(scaling.postscale) + ", " +
         std::to_string(scaling.divisor);
}

// Sources and destination at these offsets; the destination is source `in_place` if that is one.
void ExpectTheCpusReduction(DType dtype, ReduceOp op, int64_t count,
                            const std::vector<size_t>& offsets, size_t to_offset,
                            const Scaling& scaling, std::mt19937* random,
                            size_t in_place = SIZE_MAX) {
  const auto size = static_cast<int64_t>(DTypeSize(dtype));
  std::vector<Memory> memory;
  std::vector<const void*> sources;
  for (const size_t offset : offsets) {
    memory.emplace_back(count * size, offset);
    memory.back().Fill(RandomNumbers(dtype, count, random));
  }
  for (Memory& one : memory) sources.push_back(one.data());
  std::vector<uint8_t> wanted(static_cast<size_t>(count * size));
  kernels::Reduce(dtype, op, sources, wanted.data(), count, scaling);
  Memory separate(count * size + 48, to_offset);
  std::vector<uint8_t> around = separate.Content();
  uint8_t* const to = in_place < memory.size() ? memory[in_place].data() : separate.data() + 16;
  ReduceOnHost(ReduceOf(dtype, op, sources, to, count, scaling));
  ASSERT_EQ(std::vector<uint8_t>(to, to + count * size), wanted)
      << Describe(dtype, op, offsets.size(), count, scaling);
  if (in_place < memory.size()) return;
  std::copy(wanted.begin(), wanted.end(), around.begin() + 16);
  ASSERT_EQ(separate.Content(), around) << Describe(dtype, op, offsets.size(), count, scaling);
}

std::vector<Scaling> Scalings(DType dtype, ReduceOp op) {
  Scaling both, all, power, wild, nan;
  both.prescale = 0.7;
  both.postscale = 1.3;
  all.prescale = -1.5;
  all.postscale = 0.001;
  all.divisor = 3;
  power.divisor = 4;
  wild.prescale = 1e20;
  wild.postscale = 1e-25;
  wild.divisor = 7;
  nan.prescale = std::numeric_limits<double>::quiet_NaN();
  nan.postscale = std::numeric_limits<double>::infinity();
  if (dtype == DType::kBool) return {{}, both};
  if (IsAverage(op)) return {{}, power, all};
  return {{}, both, all, power, wild, nan};
}

class CudaReduce : public testing::TestWithParam<int> {};

TEST_P(CudaReduce, HasTheCpusBitsForEveryOperationAndScaling) {
  const auto dtype = static_cast<DType>(GetParam());
  std::mt19937 random(4);
  for (const ReduceOp op : OpsOf(dtype)) {
    for (const Scaling& scaling : Scalings(dtype, op)) {
      for (size_t sources = 1; sources <= 5; ++sources) {
        for (const int64_t count : {int64_t{1}, int64_t{37}, int64_t{1000}}) {
          ExpectTheCpusReduction(dtype, op, count, std::vector<size_t>(sources, 0), 0, scaling,
                                 &random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(CudaReduce, HasTheCpusBitsAtEveryAlignmentAndSize) {
  const auto dtype = static_cast<DType>(GetParam());
  const auto size = static_cast<int64_t>(DTypeSize(dtype));
  std::mt19937 random(5);
  for (size_t offset = 0; offset < 16; ++offset) {
    for (size_t apart = 0; apart < 16; ++apart) {
      const size_t other = (offset + apart) % 16;
      const auto count = static_cast<int64_t>(random() % 80);
      ExpectTheCpusReduction(dtype, ReduceOp::kSum, count, {offset, other}, offset, {}, &random);
      ExpectTheCpusReduction(dtype, ReduceOp::kProduct, count, {offset, offset}, other, {},
                             &random);
      if (HasFatalFailure()) return;
    }
    for (const int64_t beside : {-17, -1, 0, 1, 16, 33}) {
      const int64_t count = kTile / size + beside;
      ExpectTheCpusReduction(dtype, ReduceOp::kSum, count, {offset, offset}, offset, {}, &random);
      ExpectTheCpusReduction(dtype, ReduceOp::kProduct, 2 * count, {offset, offset}, offset, {},
                             &random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CudaReduce, TheDestinationMayBeASource) {
  const auto dtype = static_cast<DType>(GetParam());
  const auto size = static_cast<int64_t>(DTypeSize(dtype));
  std::mt19937 random(6);
  for (const Scaling& scaling : Scalings(dtype, ReduceOp::kSum)) {
    for (const size_t offset : {size_t{0}, size_t{1}, size_t{8}}) {
      for (size_t place = 0; place < 3; ++place) {
        ExpectTheCpusReduction(dtype, ReduceOp::kSum, kTile / size + 9, {offset, offset, offset}, 0,
                               scaling, &random, place);
        if (HasFatalFailure()) return;
      }
      ExpectTheCpusReduction(dtype, ReduceOp::kSum, 500, {offset}, 0, scaling, &random, 0);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CudaReduce, ManySourcesAreAddedInTheirOrder) {
  const auto dtype = static_cast<DType>(GetParam());
  std::mt19937 random(7);
  for (const size_t sources : {size_t{63}, size_t{64}, size_t{65}, size_t{300}}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
      ExpectTheCpusReduction(dtype, op, 70, std::vector<size_t>(sources, 8), 8, {}, &random);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaReduce, testing::Range(0, kDTypeCount), [](const auto& type) {
  return std::string(DTypeName(static_cast<DType>(type.param)));
});

TEST(CudaReduceLimits, AsManySourcesAsThereIsRoomFor) {
  std::mt19937 random(8);
  ExpectTheCpusReduction(DType::kFloat32, ReduceOp::kSum, 5, std::vector<size_t>(4000, 0), 0, {},
                         &random);
}

TEST(CudaReduceLimits, NothingIsReducedToNothing) {
  ReduceOnHost(ReduceOf(DType::kFloat32, ReduceOp::kSum, {nullptr, nullptr}, nullptr, 0, {}));
}

// ---- codecs ----

constexpr Compressor kCompressors[] = {Compressor::kFloat16, Compressor::kBfloat16,
                                       Compressor::kInt8};
constexpr DType kCodecTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// As CompressedCommunicator loads and stores it.
std::vector<float> ToFloats(DType dtype, const uint8_t* from, int64_t count, double prescale) {
  std::vector<float> values(static_cast<size_t>(count));
  if (dtype == DType::kFloat32) {
    std::memcpy(values.data(), from, values.size() * 4);
  } else {
    kernels::ToFloat32(dtype, from, values.data(), count);
  }
  if (prescale == 1) return values;
  for (float& value : values) value *= static_cast<float>(prescale);
  return values;
}

std::vector<uint8_t> FromFloats(DType dtype, const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * DTypeSize(dtype));
  if (dtype == DType::kFloat32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    kernels::FromFloat32(dtype, values.data(), bytes.data(), static_cast<int64_t>(values.size()));
  }
  return bytes;
}

// Equal bits, but for NaNs of float32, which the CPU leaves as an instruction made them.
bool AreSame(DType dtype, const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a == b) return true;
  if (dtype != DType::kFloat32 || a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); i += 4) {
    float x, y;
    std::memcpy(&x, &a[i], 4);
    std::memcpy(&y, &b[i], 4);
    if (std::memcmp(&x, &y, 4) != 0 && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

enum class Content { kOrdinary, kEqual, kZeros, kZerosAbove, kZerosBelow, kTiny, kWild };
constexpr Content kContents[] = {Content::kOrdinary,   Content::kEqual,      Content::kZeros,
                                 Content::kZerosAbove, Content::kZerosBelow, Content::kTiny,
                                 Content::kWild};

float OneOf(Content content, std::mt19937* random) {
  const float ordinary = std::normal_distribution<float>()(*random);
  const float zero = (*random)() % 2 == 0 ? 0.0f : -0.0f;
  switch (content) {
    case Content::kEqual:
      return 2.5f;
    case Content::kZeros:
      return zero;
    case Content::kZerosAbove:
      return (*random)() % 3 == 0 ? -std::fabs(ordinary) : zero;
    case Content::kZerosBelow:
      return (*random)() % 3 == 0 ? std::fabs(ordinary) : zero;
    case Content::kTiny:
      return std::bit_cast<float>(static_cast<uint32_t>((*random)() & 0x807fffff));
    case Content::kWild:
      return (*random)() % 900 == 0   ? std::bit_cast<float>(static_cast<uint32_t>((*random)()))
             : (*random)() % 300 == 0 ? 3e38f * ordinary
                                      : ordinary;
    default:
      return ordinary;
  }
}

std::vector<float> Floats(Content content, int64_t count, std::mt19937* random) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = OneOf(content, random);
  return values;
}

template <class T>
std::vector<uint8_t> BytesOfAll(const std::vector<T>& values) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
  return {bytes, bytes + values.size() * sizeof(T)};
}

rueda_cuda_codec CodecOf(Compressor compressor, DType dtype,
                         const std::vector<rueda_cuda_range>& ranges) {
  rueda_cuda_codec codec = {};
  codec.ranges = ranges.data();
  codec.count = ranges.size();
  codec.compressor = static_cast<int32_t>(compressor);
  codec.dtype = static_cast<int32_t>(dtype);
  codec.prescale = codec.divisor = codec.postscale = 1;
  return codec;
}

struct Case {
  Compressor compressor;
  DType dtype;
  Content content;
  int64_t count;
  bool remembers;
  size_t offset;
};

std::string Describe(const Case& c) {
  return std::string(CompressorName(c.compressor)) + " of " + std::string(DTypeName(c.dtype)) +
         "[" + std::to_string(c.count) + "], content " +
         std::to_string(static_cast<int>(c.content)) + (c.remembers ? ", remembers" : "") +
         ", at " + std::to_string(c.offset);
}

template <class Fn>
void ForCases(const Fn& fn) {
  const std::vector<int64_t> counts = {1, 3, 4, 5, 31, 129, 511, 512, 513, 1027, 4096, 5000};
  size_t turn = 0;
  for (const Compressor compressor : kCompressors) {
    for (const DType dtype : kCodecTypes) {
      for (const Content content : kContents) {
        for (const int64_t count : counts) {
          for (const bool remembers : {false, true}) {
            fn(Case{compressor, dtype, content, count, remembers, turn++ % 17});
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(CudaCodec, EncodesAsTheCpuDoes) {
  std::mt19937 random(9);
  ForCases([&](const Case& c) {
    const size_t size = DTypeSize(c.dtype);
    for (const double prescale : {1.0, 0.3}) {
      Memory from(c.count * static_cast<int64_t>(size), c.offset / size * size);
      from.Fill(FromFloats(c.dtype, Floats(c.content, c.count, &random)));
      Memory coded(CodedBytes(c.compressor, c.count), c.offset);
      Memory residual(c.count * 4, c.offset / 4 * 4);
      std::vector<float> kept = Floats(Content::kOrdinary, c.count, &random);
      for (float& value : kept) value *= 0.01f;
      residual.Fill(BytesOfAll(kept));

      std::vector<float> values = ToFloats(c.dtype, from.data(), c.count, prescale);
      std::vector<char> wanted(static_cast<size_t>(coded.bytes()));
      if (c.remembers) {
        for (size_t i = 0; i < values.size(); ++i) values[i] += kept[i];
        EncodeWithResidual(c.compressor, values.data(), c.count, wanted.data(), kept.data());
      } else {
        Encode(c.compressor, values.data(), c.count, wanted.data());
      }

      const std::vector<rueda_cuda_range> ranges = {
          {from.data(), coded.data(), c.remembers ? residual.As<float>() : nullptr, c.count}};
      rueda_cuda_codec codec = CodecOf(c.compressor, c.dtype, ranges);
      codec.prescale = prescale;
      EncodeOnHost(codec);
      ASSERT_EQ(coded.Content(), BytesOfAll(wanted)) << Describe(c);
      ASSERT_EQ(residual.Content(), BytesOfAll(kept)) << Describe(c);
      ASSERT_TRUE(coded.IsWholeBefore() && residual.IsWholeBefore());
    }
  });
}

TEST(CudaCodec, DecodesAsTheCpuDoes) {
  std::mt19937 random(10);
  ForCases([&](const Case& c) {
    const size_t size = DTypeSize(c.dtype);
    std::vector<float> values = Floats(c.content, c.count, &random);
    Memory coded(CodedBytes(c.compressor, c.count), c.offset);
    Encode(c.compressor, values.data(), c.count, coded.As<char>());
    Decode(c.compressor, coded.As<char>(), c.count, values.data());
    Memory to(c.count * static_cast<int64_t>(size), c.offset / size * size);
    const std::vector<rueda_cuda_range> ranges = {{coded.data(), to.data(), nullptr, c.count}};
    DecodeOnHost(CodecOf(c.compressor, c.dtype, ranges));
    ASSERT_TRUE(AreSame(c.dtype, to.Content(), FromFloats(c.dtype, values))) << Describe(c);
    ASSERT_TRUE(to.IsWholeBefore());
  });
}

// As ScatterReduce::CombineSome does it.
std::vector<float> SumOf(Compressor compressor, const Memory& received, int64_t count,
                         size_t sources, size_t stride, double divisor, double postscale) {
  std::vector<float> sum(static_cast<size_t>(count), 0.0f);
  for (size_t k = 0; k < sources; ++k) {
    const auto* const coded = reinterpret_cast<const char*>(received.data()) + k * stride;
    DecodeAndAdd(compressor, coded, count, sum.data());
  }
  for (float& value : sum) {
    value = value / static_cast<float>(divisor) * static_cast<float>(postscale);
  }
  return sum;
}

TEST(CudaCodec, CombinesAsTheCpuDoes) {
  std::mt19937 random(11);
  ForCases([&](const Case& c) {
    const size_t sources = 1 + random() % 4;
    const int64_t bytes = CodedBytes(c.compressor, c.count);
    const auto stride = static_cast<size_t>(bytes) + random() % 20;
    Memory received(static_cast<int64_t>((sources - 1) * stride) + bytes, c.offset);
    for (size_t k = 0; k < sources; ++k) {
      const std::vector<float> values = Floats(c.content, c.count, &random);
      Encode(c.compressor, values.data(), c.count, received.As<char>() + k * stride);
    }
    std::vector<float> sum =
        SumOf(c.compressor, received, c.count, sources, stride, 3, c.count % 2 == 0 ? 1 : 0.7);

    Memory residual(c.count * 4, c.offset / 4 * 4);
    std::vector<float> kept = Floats(Content::kOrdinary, c.count, &random);
    residual.Fill(BytesOfAll(kept));
    Memory coded(bytes, c.offset);
    const size_t size = DTypeSize(c.dtype);
    Memory decoded(c.count * static_cast<int64_t>(size), c.offset / size * size);

    std::vector<rueda_cuda_range> ranges = {
        {received.data(), coded.data(), c.remembers ? residual.As<float>() : nullptr, c.count}};
    rueda_cuda_codec codec = CodecOf(c.compressor, c.dtype, ranges);
    codec.sources = sources;
    codec.stride = stride;
    codec.divisor = 3;
    codec.postscale = c.count % 2 == 0 ? 1 : 0.7;
    CombineOnHost(codec);
    ranges[0].to = decoded.data();
    codec.decoded = 1;
    CombineOnHost(codec);

    ASSERT_TRUE(AreSame(c.dtype, decoded.Content(), FromFloats(c.dtype, sum))) << Describe(c);
    std::vector<char> wanted(static_cast<size_t>(bytes));
    if (c.remembers) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += kept[i];
      EncodeWithResidual(c.compressor, sum.data(), c.count, wanted.data(), kept.data());
    } else {
      Encode(c.compressor, sum.data(), c.count, wanted.data());
    }
    ASSERT_EQ(coded.Content(), BytesOfAll(wanted)) << Describe(c);
    ASSERT_EQ(residual.Content(), BytesOfAll(kept)) << Describe(c);
  });
}

TEST(CudaCodec, AnyNumberOfRanges) {
  std::mt19937 random(12);
  for (const Compressor compressor : kCompressors) {
    for (const size_t count :
         {size_t{15}, size_t{16}, size_t{17}, size_t{896}, size_t{897}, size_t{1500}}) {
      std::vector<int64_t> elements(count);
      int64_t all = 0, bytes = 0;
      for (int64_t& each : elements) {
        each = random() % 6 == 0 ? 0 : random() % 30 == 0 ? 6000 : random() % 700;
        all += each;
        bytes += CodedBytes(compressor, each);
      }
      Memory from(all * 4, 0), coded(bytes, 3), back(all * 4, 4), residual(all * 4, 0);
      from.Fill(BytesOfAll(Floats(Content::kOrdinary, all, &random)));
      std::vector<float> kept = Floats(Content::kOrdinary, all, &random);
      residual.Fill(BytesOfAll(kept));
      std::vector<char> wanted(static_cast<size_t>(bytes));
      std::vector<float> values = ToFloats(DType::kFloat32, from.data(), all, 1);
      std::vector<rueda_cuda_range> encoded, decoded;
      int64_t at = 0, byte = 0;
      for (const int64_t each : elements) {
        encoded.push_back(
            {from.data() + at * 4, coded.data() + byte, residual.As<float>() + at, each});
        decoded.push_back({coded.data() + byte, back.data() + at * 4, nullptr, each});
        for (int64_t i = at; i < at + each; ++i) values[i] += kept[i];
        EncodeWithResidual(compressor, values.data() + at, each, wanted.data() + byte,
                           kept.data() + at);
        at += each;
        byte += CodedBytes(compressor, each);
      }
      EncodeOnHost(CodecOf(compressor, DType::kFloat32, encoded));
      ASSERT_EQ(coded.Content(), BytesOfAll(wanted)) << CompressorName(compressor) << " " << count;
      ASSERT_EQ(residual.Content(), BytesOfAll(kept)) << CompressorName(compressor) << " " << count;
      DecodeOnHost(CodecOf(compressor, DType::kFloat32, decoded));
      ASSERT_EQ(back.Content(), BytesOfAll(values)) << CompressorName(compressor) << " " << count;
    }
  }
}

TEST(CudaCodec, ARankWithoutInputEncodesZeros) {
  for (const Compressor compressor : kCompressors) {
    Memory coded(CodedBytes(compressor, 700), 0);
    const std::vector<float> zeros(700, 0.0f);
    std::vector<char> wanted(static_cast<size_t>(coded.bytes()));
    Encode(compressor, zeros.data(), 700, wanted.data());
    const std::vector<rueda_cuda_range> ranges = {{nullptr, coded.data(), nullptr, 700}};
    EncodeOnHost(CodecOf(compressor, DType::kFloat32, ranges));
    EXPECT_EQ(coded.Content(), BytesOfAll(wanted)) << CompressorName(compressor);
  }
}

}  // namespace
}  // namespace rueda::cuda
