// The module of CUDA and NCCL itself. Without a device: that it loads, has a whole table and says
// in one line what is missing. With one: that its kernels have the host's bits, that streams and
// events order them, and that NCCL takes its calls.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/tensor/dtype.h"
#include "core/tensor/signature.h"
#include "ops/compression/codec.h"
#include "ops/kernels/reduce.h"
#include "ops/nccl/cuda_library.h"
#include "ops/nccl/kernels/on_host.h"

namespace rueda {
namespace {

absl::StatusOr<const rueda_cuda*> Module() {
  return LoadCuda(RUEDA_MODULE_DIRECTORY);
}

TEST(NcclModule, LoadsAndSaysInOneLineWhatIsMissing) {
  const absl::StatusOr<const rueda_cuda*> cuda = Module();
  if (!cuda.ok()) GTEST_SKIP() << cuda.status().message();
  rueda_cuda_info info = {};
  const absl::Status status = CallCuda((*cuda)->probe, &info);
  EXPECT_GE(info.runtime_version, 12010);
  EXPECT_GE(info.nccl_header_version, 21801);
  if (status.ok()) {
    EXPECT_GT(info.devices, 0);
    EXPECT_GE(info.driver_version, info.runtime_version / 1000 * 1000);
    EXPECT_GE(info.nccl_version, 21801);
    return;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const std::string words(status.message());
  EXPECT_EQ(words.find('\n'), std::string::npos) << words;
  EXPECT_TRUE(words.find("CUDA") != std::string::npos || words.find("NCCL") != std::string::npos)
      << words;
  // And what needs a device says so, too, and does not crash.
  void* stream = nullptr;
  EXPECT_FALSE(CallCuda((*cuda)->open_stream, 0, 0, &stream).ok());
  void* memory = nullptr;
  EXPECT_FALSE(CallCuda((*cuda)->allocate, 0, size_t{16}, &memory).ok());
  int32_t device = 5;
  EXPECT_FALSE(CallCuda((*cuda)->locate, &info, &device).ok());
  EXPECT_EQ(device, -1);
}

TEST(NcclModule, OneThatIsNotThereIsSaidToBeMissingOrNotBuilt) {
  const absl::StatusOr<const rueda_cuda*> cuda = LoadCuda("/no/such");
  EXPECT_EQ(cuda.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string words(cuda.status().message());
  EXPECT_EQ(words.find(BuiltWithCuda() ? "a part of this library is missing"
                                       : "this library was built without CUDA"),
            0u)
      << words;
  EXPECT_NE(words.find("there is no /no/such/librueda_nccl.so"), std::string::npos) << words;
}

// With stand-ins for libcuda.so.1 and libnccl.so.2, which are too old: all that is wrong is said.
TEST(NcclModuleTooOld, TheDriverAndNcclAreNamed) {
  const absl::StatusOr<const rueda_cuda*> cuda = Module();
  if (!cuda.ok()) GTEST_SKIP() << cuda.status().message();
  rueda_cuda_info info = {};
  const absl::Status status = CallCuda((*cuda)->probe, &info);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const std::string words(status.message());
  EXPECT_NE(words.find("the NVIDIA driver can't be used: libcuda.so.1 has no cu"),
            std::string::npos)
      << words;
  EXPECT_EQ(words.find("installed"), std::string::npos) << words;
  EXPECT_NE(words.find("; and NCCL 2.10.3 is too old, 2.18 or newer is needed"), std::string::npos)
      << words;
  EXPECT_EQ(info.nccl_version, 21003);
}

// ---- with a device ----

class OnADevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<const rueda_cuda*> cuda = Module();
    if (!cuda.ok()) GTEST_SKIP() << cuda.status().message();
    cuda_ = *cuda;
    rueda_cuda_info info = {};
    const absl::Status status = CallCuda(cuda_->probe, &info);
    if (!status.ok()) GTEST_SKIP() << status.message();
    Check(CallCuda(cuda_->open_stream, 0, 0, &stream_));
    Check(CallCuda(cuda_->open_event, 0, &event_));
  }
  void TearDown() override {
    for (void* memory : memory_) cuda_->release(0, memory);
    if (event_ != nullptr) cuda_->close_event(0, event_);
    if (stream_ != nullptr) cuda_->close_stream(0, stream_);
  }

  static void Check(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }
  void Drain() {
    Check(CallCuda(cuda_->record, 0, event_, stream_));
    Check(CallCuda(cuda_->synchronize, 0, event_));
  }
  // Device memory with this content.
  char* Upload(const std::vector<char>& bytes) {
    void* memory = nullptr;
    Check(CallCuda(cuda_->allocate, 0, bytes.size(), &memory));
    memory_.push_back(memory);
    Check(
        CallCuda(cuda_->transfer, 0, memory, static_cast<const void*>(bytes.data()), bytes.size()));
    return static_cast<char*>(memory);
  }
  std::vector<char> Download(const void* memory, size_t bytes) {
    std::vector<char> content(bytes);
    Check(CallCuda(cuda_->transfer, 0, static_cast<void*>(content.data()), memory, bytes));
    return content;
  }
  std::vector<char> Random(size_t bytes) {
    std::vector<char> content(bytes);
    for (char& byte : content) byte = static_cast<char>(bits_());
    return content;
  }
  // Finite float32s.
  std::vector<char> RandomFloats(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(bits_);
    std::vector<char> content(values.size() * sizeof(float));
    std::memcpy(content.data(), values.data(), content.size());
    return content;
  }

  const rueda_cuda* cuda_ = nullptr;
  void* stream_ = nullptr;
  void* event_ = nullptr;
  std::vector<void*> memory_;
  std::mt19937 bits_{1};
};

TEST_F(OnADevice, TheBatchedCopyMovesWhatItShouldAndNothingElse) {
  for (const size_t bytes : {1, 15, 16, 17, 4096, 70'001, 1'000'003}) {
    for (const size_t from_offset : {0, 1, 8}) {
      for (const size_t to_offset : {0, 3, 8}) {
        const std::vector<char> source = Random(bytes + 32), target = Random(bytes + 32);
        char* const from = Upload(source);
        char* const to = Upload(target);
        const int64_t half = static_cast<int64_t>(bytes / 2);
        const rueda_cuda_segment segments[] = {
            {from + from_offset, to + to_offset, half},
            {from + from_offset + half, to + to_offset + half, static_cast<int64_t>(bytes) - half}};
        const rueda_cuda_copy copy = {segments, 2, static_cast<int32_t>(DType::kUInt8),
                                      static_cast<int32_t>(ReduceOp::kNone), 1};
        Check(CallCuda(cuda_->copy, 0, stream_, &copy));
        Drain();
        std::vector<char> expected = target;
        std::memcpy(expected.data() + to_offset, source.data() + from_offset, bytes);
        ASSERT_EQ(Download(to, bytes + 32), expected)
            << bytes << " bytes from " << from_offset << " to " << to_offset;
      }
    }
  }
}

TEST_F(OnADevice, ManySegmentsAreMovedTogether) {
  constexpr int kSegments = 3000;
  std::vector<rueda_cuda_segment> segments;
  const std::vector<char> source = Random(kSegments * 100);
  char* const from = Upload(source);
  char* const to = Upload(std::vector<char>(source.size()));
  for (int i = 0; i < kSegments; ++i) {
    segments.push_back({from + i * 100, to + (kSegments - 1 - i) * 100, 100});
  }
  const rueda_cuda_copy copy = {segments.data(), segments.size(),
                                static_cast<int32_t>(DType::kUInt8),
                                static_cast<int32_t>(ReduceOp::kNone), 1};
  Check(CallCuda(cuda_->copy, 0, stream_, &copy));
  Drain();
  const std::vector<char> moved = Download(to, source.size());
  for (int i = 0; i < kSegments; ++i) {
    ASSERT_EQ(std::memcmp(&moved[static_cast<size_t>(kSegments - 1 - i) * 100],
                          &source[static_cast<size_t>(i) * 100], 100),
              0)
        << i;
  }
}

// All types and operations, on any bits: the CPU's result.
TEST_F(OnADevice, ReductionsHaveTheCpusBits) {
  constexpr int64_t kElements = 10'007;
  for (int type = 0; type < kDTypeCount; ++type) {
    const auto dtype = static_cast<DType>(type);
    const size_t bytes = kElements * DTypeSize(dtype);
    for (int number = 0; number < kReduceOpCount; ++number) {
      const auto op = static_cast<ReduceOp>(number);
      if (op == ReduceOp::kAdasum || !kernels::CheckReducible(dtype, op).ok()) continue;
      std::vector<std::vector<char>> sources;
      std::vector<const void*> here, there;
      for (int i = 0; i < 3; ++i) sources.push_back(Random(bytes));
      for (const std::vector<char>& source : sources) {
        here.push_back(source.data());
        there.push_back(Upload(source));
      }
      std::vector<char> expected(bytes);
      const Scaling scaling = {0.75, 1.5, IsAverage(op) ? 3 : 1};
      kernels::Reduce(dtype, op, here, expected.data(), kElements, scaling);
      char* const to = Upload(std::vector<char>(bytes));
      const rueda_cuda_reduce reduce = {type,
                                        number,
                                        there.data(),
                                        3,
                                        to,
                                        kElements,
                                        scaling.prescale,
                                        scaling.postscale,
                                        scaling.divisor};
      Check(CallCuda(cuda_->reduce, 0, stream_, &reduce));
      Drain();
      ASSERT_EQ(Download(to, bytes), expected) << DTypeName(dtype) << " " << ReduceOpName(op);
    }
  }
}

TEST_F(OnADevice, CodecsHaveTheHostsBits) {
  constexpr int64_t kElements = 5'003;
  for (const Compressor compressor :
       {Compressor::kFloat16, Compressor::kBfloat16, Compressor::kInt8}) {
    const std::vector<char> values = RandomFloats(kElements);
    const auto coded_bytes = static_cast<size_t>(CodedBytes(compressor, kElements));
    std::vector<char> residual = RandomFloats(kElements);
    std::vector<char> coded(coded_bytes);
    char* const there = Upload(values);
    char* const residual_there = Upload(residual);
    char* const coded_there = Upload(coded);
    rueda_cuda_codec codec = {};
    codec.count = 1;
    codec.compressor = static_cast<int32_t>(compressor);
    codec.dtype = static_cast<int32_t>(DType::kFloat32);
    codec.prescale = 0.3;
    const rueda_cuda_range device_range = {there, coded_there,
                                           reinterpret_cast<float*>(residual_there), kElements};
    codec.ranges = &device_range;
    Check(CallCuda(cuda_->encode, 0, stream_, static_cast<const rueda_cuda_codec*>(&codec)));
    Drain();
    const rueda_cuda_range host_range = {values.data(), coded.data(),
                                         reinterpret_cast<float*>(residual.data()), kElements};
    codec.ranges = &host_range;
    cuda::EncodeOnHost(codec);
    EXPECT_EQ(Download(coded_there, coded_bytes), coded) << CompressorName(compressor);
    EXPECT_EQ(Download(residual_there, residual.size()), residual) << CompressorName(compressor);

    std::vector<char> decoded(values.size());
    char* const decoded_there = Upload(decoded);
    const rueda_cuda_range decode_there = {coded_there, decoded_there, nullptr, kElements};
    const rueda_cuda_range decode_here = {coded.data(), decoded.data(), nullptr, kElements};
    codec.ranges = &decode_there;
    Check(CallCuda(cuda_->decode, 0, stream_, static_cast<const rueda_cuda_codec*>(&codec)));
    Drain();
    codec.ranges = &decode_here;
    cuda::DecodeOnHost(codec);
    EXPECT_EQ(Download(decoded_there, decoded.size()), decoded) << CompressorName(compressor);

    codec.sources = 1;
    codec.stride = coded_bytes;
    codec.divisor = 3;
    codec.postscale = 2;
    std::vector<char> sums(coded_bytes);
    char* const sums_there = Upload(sums);
    const rueda_cuda_range combine_there = {coded_there, sums_there, nullptr, kElements};
    const rueda_cuda_range combine_here = {coded.data(), sums.data(), nullptr, kElements};
    codec.ranges = &combine_there;
    Check(CallCuda(cuda_->combine, 0, stream_, static_cast<const rueda_cuda_codec*>(&codec)));
    Drain();
    codec.ranges = &combine_here;
    cuda::CombineOnHost(codec);
    EXPECT_EQ(Download(sums_there, coded_bytes), sums) << CompressorName(compressor);
  }
}

TEST_F(OnADevice, MemoryIsFoundOnItsDevice) {
  int32_t device = -1;
  Check(CallCuda(cuda_->locate, static_cast<const void*>(Upload(std::vector<char>(16)) + 8),
                 &device));
  EXPECT_EQ(device, 0);
  const int here = 0;
  Check(CallCuda(cuda_->locate, static_cast<const void*>(&here), &device));
  EXPECT_EQ(device, -1);
}

// A communicator of one rank, from its id to its end.
TEST_F(OnADevice, NcclTakesEveryCall) {
  rueda_cuda_id id = {};
  Check(CallCuda(cuda_->make_id, &id));
  rueda_cuda_communicator* one = nullptr;
  Check(CallCuda(cuda_->connect, static_cast<const rueda_cuda_id*>(&id), 1, 0, 0, &one));
  Check(CallCuda(cuda_->await, one, int64_t{60'000'000'000}));
  EXPECT_NE(cuda_->supports(one, static_cast<int32_t>(DType::kFloat32),
                            static_cast<int32_t>(ReduceOp::kSum)),
            0);
  EXPECT_EQ(cuda_->supports(one, static_cast<int32_t>(DType::kInt16),
                            static_cast<int32_t>(ReduceOp::kSum)),
            0);
  void* buffer = nullptr;
  Check(CallCuda(cuda_->allocate_buffer, one, size_t{1} << 20, &buffer));
  const std::vector<char> values = RandomFloats(1000);
  Check(
      CallCuda(cuda_->transfer, 0, buffer, static_cast<const void*>(values.data()), values.size()));
  const auto dtype = static_cast<int32_t>(DType::kFloat32);
  const void* const in = buffer;
  Check(CallCuda(cuda_->allreduce, one, stream_, in, buffer, int64_t{1000}, dtype,
                 static_cast<int32_t>(ReduceOp::kSum), 2.0));
  Check(CallCuda(cuda_->begin, one));
  Check(CallCuda(cuda_->reduce_to, one, stream_, in, buffer, int64_t{1000}, dtype,
                 static_cast<int32_t>(ReduceOp::kAverage), 1.0, 0));
  Check(CallCuda(cuda_->broadcast, one, stream_, in, buffer, values.size(), 0));
  Check(CallCuda(cuda_->end, one));
  Check(CallCuda(cuda_->allgather, one, stream_, in, buffer, values.size()));
  Check(CallCuda(cuda_->reducescatter, one, stream_, in, buffer, int64_t{1000}, dtype,
                 static_cast<int32_t>(ReduceOp::kMax), 1.0));
  Drain();
  Check(CallCuda(cuda_->check, one));
  const std::vector<char> doubled = Download(buffer, values.size());
  for (size_t i = 0; i < 1000; ++i) {
    float before, after;
    std::memcpy(&before, &values[i * 4], 4);
    std::memcpy(&after, &doubled[i * 4], 4);
    ASSERT_EQ(after, 2 * before) << i;
  }
  rueda_cuda_communicator* part = nullptr;
  Check(CallCuda(cuda_->split, one, 7, 0, &part));
  Check(CallCuda(cuda_->await, part, int64_t{60'000'000'000}));
  cuda_->destroy(part);
  cuda_->release_buffer(0, one, buffer);
  cuda_->destroy(one);
}

}  // namespace
}  // namespace rueda
