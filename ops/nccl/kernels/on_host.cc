// The launches, with loops for the blocks and threads.
#include "ops/nccl/kernels/on_host.h"

#include "core/base/check.h"
#include "core/tensor/dtype.h"
#include "core/tensor/signature.h"
#include "ops/nccl/kernels/codecs.h"
#include "ops/nccl/kernels/copy.h"
#include "ops/nccl/kernels/reduce.h"

namespace rueda::cuda {
namespace {

#define RUEDA_SAME(ours, library) static_assert(static_cast<int>(ours) == static_cast<int>(library))
RUEDA_SAME(kUInt8, DType::kUInt8);
RUEDA_SAME(kInt8, DType::kInt8);
RUEDA_SAME(kInt32, DType::kInt32);
RUEDA_SAME(kInt64, DType::kInt64);
RUEDA_SAME(kFloat16, DType::kFloat16);
RUEDA_SAME(kBFloat16, DType::kBFloat16);
RUEDA_SAME(kFloat32, DType::kFloat32);
RUEDA_SAME(kFloat64, DType::kFloat64);
RUEDA_SAME(kBool, DType::kBool);
RUEDA_SAME(kInt16, DType::kInt16);
RUEDA_SAME(kUInt16, DType::kUInt16);
RUEDA_SAME(kUInt32, DType::kUInt32);
RUEDA_SAME(kUInt64, DType::kUInt64);
RUEDA_SAME(kComplex64, DType::kComplex64);
RUEDA_SAME(kComplex128, DType::kComplex128);
RUEDA_SAME(kFloat8E4M3FN, DType::kFloat8E4M3FN);
RUEDA_SAME(kFloat8E5M2, DType::kFloat8E5M2);
RUEDA_SAME(kFloat8E5M2 + 1, kDTypeCount);
RUEDA_SAME(kSum, ReduceOp::kSum);
RUEDA_SAME(kAverage, ReduceOp::kAverage);
RUEDA_SAME(kMin, ReduceOp::kMin);
RUEDA_SAME(kMax, ReduceOp::kMax);
RUEDA_SAME(kProduct, ReduceOp::kProduct);
RUEDA_SAME(kBitAnd, ReduceOp::kBitAnd);
RUEDA_SAME(kBitOr, ReduceOp::kBitOr);
RUEDA_SAME(kBitXor, ReduceOp::kBitXor);
RUEDA_SAME(kAdasum, ReduceOp::kAdasum);
RUEDA_SAME(kAverageLive, ReduceOp::kAverageLive);
RUEDA_SAME(kCodecFloat16, Compressor::kFloat16);
RUEDA_SAME(kCodecBFloat16, Compressor::kBfloat16);
RUEDA_SAME(kCodecInt8, Compressor::kInt8);
#undef RUEDA_SAME

template <class Fn>
void ForThreads(uint32_t blocks, const Fn& fn) {
  for (uint32_t block = 0; block < blocks; ++block) {
    for (uint32_t thread = 0; thread < kThreads; ++thread) fn(ThreadIndex{block, thread});
  }
}

// As the kernels do it: a warp for each block of the codec, in thread blocks of kWarps.
template <class Table, class Fn>
void ForWarps(const Table& table, const Fn& fn) {
  for (uint32_t block = 0; block < table.blocks(); ++block) {
    for (uint32_t warp = 0; warp < kWarps; ++warp) {
      const uint32_t index = block * kWarps + warp;
      if (index < table.blocks_end[table.count - 1]) fn(index);
    }
  }
}

}  // namespace

void CopyOnHost(const rueda_cuda_copy& copy) {
  LaunchCopy(copy, [&](const auto& table) {
    ForThreads(table.blocks(), [&](ThreadIndex index) {
      Multiplies(copy) ? ScaleBody(table, index) : CopyBody(table, index);
    });
  });
}

// Blocks don't wait for each other, nor do their threads: each element is read and written by one.
void ReduceOnHost(const rueda_cuda_reduce& reduce) {
  RUEDA_CHECK(reduce.source_count <= ManySources::kSources) << reduce.source_count;
  LaunchReduction(reduce, CopyOnHost, [&](const auto& table) {
    WithLane(reduce.dtype, reduce.reduce_op, [&](auto lane) {
      ForThreads(table.blocks(),
                 [&](ThreadIndex index) { ReduceBody<decltype(lane)>(table, index); });
    });
  });
}

void EncodeOnHost(const rueda_cuda_codec& codec) {
  LaunchCodec(codec, [&](const auto& table) {
    WithCodec(codec.compressor, [&](auto one) {
      ForWarps(table, [&](uint32_t i) { EncodeBody<decltype(one)>(table, i, HostWarp()); });
    });
  });
}

void CombineOnHost(const rueda_cuda_codec& codec) {
  LaunchCodec(codec, [&](const auto& table) {
    WithCodec(codec.compressor, [&](auto one) {
      ForWarps(table, [&](uint32_t i) { CombineBody<decltype(one)>(table, i, HostWarp()); });
    });
  });
}

void DecodeOnHost(const rueda_cuda_codec& codec) {
  LaunchCodec(codec, [&](const auto& table) {
    WithCodec(codec.compressor, [&](auto one) {
      ForWarps(table, [&](uint32_t i) { DecodeBody<decltype(one)>(table, i, HostWarp()); });
    });
  });
}

}  // namespace rueda::cuda
