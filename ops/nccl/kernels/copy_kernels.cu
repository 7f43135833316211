// The batched copy on the device.
#include "ops/nccl/kernels/copy.h"

#include "ops/nccl/kernels/kernels.h"
#include "ops/nccl/kernels/launch.h"

namespace rueda::cuda {
namespace {

template <class Table>
__global__ void __launch_bounds__(kThreads) CopyKernel(const __grid_constant__ Table table) {
  CopyBody(table, {blockIdx.x, threadIdx.x});
}

template <class Table>
__global__ void __launch_bounds__(kThreads) ScaleKernel(const __grid_constant__ Table table) {
  ScaleBody(table, {blockIdx.x, threadIdx.x});
}

}  // namespace

cudaError_t Copy(const rueda_cuda_copy& copy, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  LaunchCopy(copy, [&]<class Table>(const Table& table) {
    Launch(Multiplies(copy) ? &ScaleKernel<Table> : &CopyKernel<Table>, table, stream, &error);
  });
  return error;
}

cudaError_t LoadCopies() {
  cudaError_t error = cudaSuccess;
  LoadKernel(&CopyKernel<FewCopies>, &error);
  LoadKernel(&CopyKernel<ManyCopies>, &error);
  LoadKernel(&ScaleKernel<FewCopies>, &error);
  LoadKernel(&ScaleKernel<ManyCopies>, &error);
  return error;
}

cudaError_t LoadKernels() {
  for (const auto load : {&LoadCopies, &LoadReductions, &LoadCodecs}) {
    const cudaError_t error = load();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace rueda::cuda
