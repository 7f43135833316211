// How a kernel is launched. For the .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/nccl/kernels/thread_index.h"

namespace rueda::cuda {

// A kernel with one table of arguments; `error` keeps the first one.
template <class Table>
void Launch(void (*kernel)(Table), const Table& table, cudaStream_t stream, cudaError_t* error) {
  if (*error != cudaSuccess) return;
  void* arguments[] = {const_cast<Table*>(&table)};
  *error = cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(table.blocks()),
                            dim3(kThreads), arguments, 0, stream);
}

// Brings it to the device.
template <class Table>
void LoadKernel(void (*kernel)(Table), cudaError_t* error) {
  if (*error != cudaSuccess) return;
  cudaFuncAttributes attributes;
  *error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

// Those of each .cu file.
cudaError_t LoadCopies();
cudaError_t LoadReductions();
cudaError_t LoadCodecs();

}  // namespace rueda::cuda
