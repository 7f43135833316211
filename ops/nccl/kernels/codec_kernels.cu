// Compression on the device.
#include "ops/nccl/kernels/codecs.h"

#include "ops/nccl/kernels/kernels.h"
#include "ops/nccl/kernels/launch.h"

namespace rueda::cuda {
namespace {

// The block of the codec that a warp works on; none of its lanes is without one.
__device__ uint32_t IndexOfWarp() {
  return blockIdx.x * kWarps + threadIdx.x / kWarp;
}

__device__ DeviceWarp OwnWarp() {
  return {threadIdx.x % kWarp};
}

template <class TheCodec, class Table>
__global__ void __launch_bounds__(kThreads) EncodeKernel(const __grid_constant__ Table table) {
  const uint32_t index = IndexOfWarp();
  if (index >= table.blocks_end[table.count - 1]) return;
  EncodeBody<TheCodec>(table, index, OwnWarp());
}

template <class TheCodec, class Table>
__global__ void __launch_bounds__(kThreads) CombineKernel(const __grid_constant__ Table table) {
  const uint32_t index = IndexOfWarp();
  if (index >= table.blocks_end[table.count - 1]) return;
  CombineBody<TheCodec>(table, index, OwnWarp());
}

template <class TheCodec, class Table>
__global__ void __launch_bounds__(kThreads) DecodeKernel(const __grid_constant__ Table table) {
  const uint32_t index = IndexOfWarp();
  if (index >= table.blocks_end[table.count - 1]) return;
  DecodeBody<TheCodec>(table, index, OwnWarp());
}

template <class Table>
void LoadCodecsOf(cudaError_t* error) {
  for (const int32_t compressor : {kCodecFloat16, kCodecBFloat16, kCodecInt8}) {
    WithCodec(compressor, [&](auto one) {
      LoadKernel(&EncodeKernel<decltype(one), Table>, error);
      LoadKernel(&CombineKernel<decltype(one), Table>, error);
      LoadKernel(&DecodeKernel<decltype(one), Table>, error);
    });
  }
}

}  // namespace

cudaError_t Encode(const rueda_cuda_codec& codec, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  LaunchCodec(codec, [&]<class Table>(const Table& table) {
    WithCodec(codec.compressor, [&](auto one) {
      Launch(&EncodeKernel<decltype(one), Table>, table, stream, &error);
    });
  });
  return error;
}

cudaError_t Combine(const rueda_cuda_codec& codec, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  LaunchCodec(codec, [&]<class Table>(const Table& table) {
    WithCodec(codec.compressor, [&](auto one) {
      Launch(&CombineKernel<decltype(one), Table>, table, stream, &error);
    });
  });
  return error;
}

cudaError_t Decode(const rueda_cuda_codec& codec, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  LaunchCodec(codec, [&]<class Table>(const Table& table) {
    WithCodec(codec.compressor, [&](auto one) {
      Launch(&DecodeKernel<decltype(one), Table>, table, stream, &error);
    });
  });
  return error;
}

cudaError_t LoadCodecs() {
  cudaError_t error = cudaSuccess;
  LoadCodecsOf<FewRanges>(&error);
  LoadCodecsOf<ManyRanges>(&error);
  return error;
}

}  // namespace rueda::cuda
