// FAKE: see kernels.h.
#include "test/support/fake_cuda/kernels.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor/signature.h"
#include "ops/compression/codec.h"
#include "ops/kernels/reduce.h"
#ifdef RUEDA_FAKE_CUDA_HAVE_ON_HOST
#include "ops/nccl/kernels/on_host.h"
#endif

namespace rueda::fake_cuda {
namespace {

// A range of memory that a task reads or writes.
struct Touched {
  const void* memory;
  size_t bytes;
  size_t alignment;
  bool written;
};

// The accesses of one task, all of which may happen at the same time.
class Access {
 public:
  void Read(const void* memory, size_t bytes, size_t alignment) {
    touched_.push_back({memory, bytes, alignment, false});
  }
  void Write(const void* memory, size_t bytes, size_t alignment) {
    touched_.push_back({memory, bytes, alignment, true});
  }

  Outcome Check(int32_t device) const {
    for (const Touched& one : touched_) {
      Outcome checked = CheckRange(device, one.memory, one.bytes, one.alignment);
      if (!checked.ok()) return checked;
    }
    return {};
  }
  // Whether two overlap, at least one of which is written.
  Outcome CheckApart() const {
    std::vector<Touched> sorted;
    for (const Touched& one : touched_) {
      if (one.bytes > 0) sorted.push_back(one);
    }
    std::sort(sorted.begin(), sorted.end(),
              [](const Touched& a, const Touched& b) { return a.memory < b.memory; });
    uintptr_t read_end = 0;
    uintptr_t written_end = 0;
    for (const Touched& one : sorted) {
      const auto begin = reinterpret_cast<uintptr_t>(one.memory);
      if (begin < written_end || (one.written && begin < read_end)) {
        return Internal("ranges of one kernel overlap");
      }
      uintptr_t& end = one.written ? written_end : read_end;
      end = std::max(end, begin + one.bytes);
    }
    return {};
  }

 private:
  std::vector<Touched> touched_;
};

size_t Part(DType dtype) {  // what its elements are aligned to
  return DTypeSize(dtype) / (IsComplex(dtype) ? 2 : 1);
}

// Whether the task may run; else the device has failed.
bool May(int32_t device, const Outcome& outcome) {
  if (!outcome.ok()) FailDevice(device, outcome.words);
  return outcome.ok();
}

#ifdef RUEDA_FAKE_CUDA_HAVE_ON_HOST
using cuda::CombineOnHost;
using cuda::CopyOnHost;
using cuda::DecodeOnHost;
using cuda::EncodeOnHost;
using cuda::ReduceOnHost;
#else
void CopyOnHost(const rueda_cuda_copy& copy) {
  const auto dtype = static_cast<DType>(copy.dtype);
  for (size_t i = 0; i < copy.count; ++i) {
    const rueda_cuda_segment& segment = copy.segments[i];
    if (segment.from == nullptr) {
      kernels::FillNeutral(dtype, static_cast<ReduceOp>(copy.reduce_op), segment.to,
                           segment.elements);
    } else {
      Scaling scaling;
      scaling.prescale = copy.factor;
      kernels::Reduce(dtype, ReduceOp::kSum, {&segment.from, 1}, segment.to, segment.elements,
                      scaling);
    }
  }
}
void ReduceOnHost(const rueda_cuda_reduce& reduce) {
  Scaling scaling;
  scaling.prescale = reduce.prescale;
  scaling.postscale = reduce.postscale;
  scaling.divisor = reduce.divisor;
  kernels::Reduce(static_cast<DType>(reduce.dtype), static_cast<ReduceOp>(reduce.reduce_op),
                  {reduce.sources, reduce.source_count}, reduce.destination, reduce.count, scaling);
}
void EncodeOnHost(const rueda_cuda_codec&) {}
void CombineOnHost(const rueda_cuda_codec&) {}
void DecodeOnHost(const rueda_cuda_codec&) {}
#endif

}  // namespace

Outcome EnqueueCopy(Stream& stream, const rueda_cuda_copy& copy) {
  if (!IsDType(copy.dtype)) return InvalidArgument("no such dtype");
  const auto dtype = static_cast<DType>(copy.dtype);
  if (copy.factor != 1 && !IsFloating(dtype)) {
    return InvalidArgument("only floating types have a factor");
  }
  Access access;
  std::vector<rueda_cuda_segment> segments(copy.segments, copy.segments + copy.count);
  for (const rueda_cuda_segment& segment : segments) {
    const size_t bytes = static_cast<size_t>(segment.elements) * DTypeSize(dtype);
    if (segment.from != nullptr) access.Read(segment.from, bytes, Part(dtype));
    access.Write(segment.to, bytes, Part(dtype));
  }
  if (Outcome apart = access.CheckApart(); !apart.ok()) return apart;
  return Enqueue(stream, [device = DeviceOf(stream), copy, segments, access] {
    if (!May(device, access.Check(device))) return;
    rueda_cuda_copy mine = copy;
    mine.segments = segments.data();
    CopyOnHost(mine);
  });
}

Outcome EnqueueReduce(Stream& stream, const rueda_cuda_reduce& reduce) {
  if (!IsDType(reduce.dtype) || reduce.source_count == 0) {
    return InvalidArgument("no such dtype, or no source");
  }
  const auto dtype = static_cast<DType>(reduce.dtype);
  const size_t bytes = static_cast<size_t>(reduce.count) * DTypeSize(dtype);
  std::vector<const void*> sources(reduce.sources, reduce.sources + reduce.source_count);
  Access all;
  Access apart;  // without those that the destination equals
  for (const void* const source : sources) {
    all.Read(source, bytes, Part(dtype));
    if (source != reduce.destination) apart.Read(source, bytes, 1);
  }
  all.Write(reduce.destination, bytes, Part(dtype));
  apart.Write(reduce.destination, bytes, 1);
  if (Outcome checked = apart.CheckApart(); !checked.ok()) return checked;
  return Enqueue(stream, [device = DeviceOf(stream), reduce, sources, all] {
    if (!May(device, all.Check(device))) return;
    rueda_cuda_reduce mine = reduce;
    mine.sources = sources.data();
    ReduceOnHost(mine);
  });
}

Outcome EnqueueCodec(Stream& stream, Coding coding, const rueda_cuda_codec& codec) {
  const auto dtype = static_cast<DType>(codec.dtype);
  const auto compressor = static_cast<Compressor>(codec.compressor);
  if (dtype != DType::kFloat32 && dtype != DType::kFloat16 && dtype != DType::kBFloat16) {
    return InvalidArgument("the codecs are for float32, float16 and bfloat16");
  }
  if (compressor != Compressor::kFloat16 && compressor != Compressor::kBfloat16 &&
      compressor != Compressor::kInt8) {
    return InvalidArgument("the codecs are fp16, bf16 and int8");
  }
  Access access;
  std::vector<rueda_cuda_range> ranges(codec.ranges, codec.ranges + codec.count);
  for (const rueda_cuda_range& range : ranges) {
    const size_t plain = static_cast<size_t>(range.elements) * DTypeSize(dtype);
    const auto coded = static_cast<size_t>(CodedBytes(compressor, range.elements));
    const size_t alignment = DTypeSize(dtype);
    if (coding == Coding::kEncode) {
      access.Read(range.from, plain, alignment);
    } else {
      const size_t sources = coding == Coding::kCombine ? codec.sources : 1;
      for (size_t i = 0; i < sources; ++i) {
        access.Read(static_cast<const char*>(range.from) + i * codec.stride, coded, 1);
      }
    }
    const bool numbers =
        coding == Coding::kDecode || (coding == Coding::kCombine && codec.decoded != 0);
    access.Write(range.to, numbers ? plain : coded, numbers ? alignment : 1);
    if (range.residual != nullptr) {
      access.Write(range.residual, static_cast<size_t>(range.elements) * sizeof(float),
                   sizeof(float));
    }
  }
  if (Outcome apart = access.CheckApart(); !apart.ok()) return apart;
  return Enqueue(stream, [device = DeviceOf(stream), coding, codec, ranges, access] {
    if (!May(device, access.Check(device))) return;
    rueda_cuda_codec mine = codec;
    mine.ranges = ranges.data();
    if (coding == Coding::kEncode) {
      EncodeOnHost(mine);
    } else if (coding == Coding::kCombine) {
      CombineOnHost(mine);
    } else {
      DecodeOnHost(mine);
    }
  });
}

}  // namespace rueda::fake_cuda
