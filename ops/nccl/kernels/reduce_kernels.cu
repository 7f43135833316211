// Reductions on the device: a kernel for each lane type.
#include "ops/nccl/kernels/reduce.h"

#include "ops/nccl/kernels/kernels.h"
#include "ops/nccl/kernels/launch.h"

namespace rueda::cuda {
namespace {

template <class Lane, class Table>
__global__ void __launch_bounds__(kThreads) ReduceKernel(const __grid_constant__ Table table) {
  ReduceBody<Lane>(table, {blockIdx.x, threadIdx.x});
}

}  // namespace

cudaError_t Reduce(const rueda_cuda_reduce& reduce, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  LaunchReduction(
      reduce, [&](const rueda_cuda_copy& copy) { error = Copy(copy, stream); },
      [&]<class Table>(const Table& table) {
        WithLane(reduce.dtype, reduce.reduce_op, [&](auto lane) {
          Launch(&ReduceKernel<decltype(lane), Table>, table, stream, &error);
        });
      });
  return error;
}

cudaError_t LoadReductions() {
  cudaError_t error = cudaSuccess;
  for (int32_t type = kUInt8; type <= kFloat8E5M2; ++type) {
    for (const int32_t operation : {kSum, kAverage, kProduct}) {
      WithLane(type, operation, [&](auto lane) {
        LoadKernel(&ReduceKernel<decltype(lane), FewSources>, &error);
        LoadKernel(&ReduceKernel<decltype(lane), ManySources>, &error);
      });
    }
  }
  return error;
}

}  // namespace rueda::cuda
