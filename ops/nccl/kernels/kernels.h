// The kernels as the module enqueues them: one or more launches, behind what the stream has, on the
// current device. What they are given has been looked at. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/nccl/cuda_abi.h"

namespace rueda::cuda {

cudaError_t Copy(const rueda_cuda_copy& copy, cudaStream_t stream);
cudaError_t Reduce(const rueda_cuda_reduce& reduce, cudaStream_t stream);
cudaError_t Encode(const rueda_cuda_codec& codec, cudaStream_t stream);
cudaError_t Combine(const rueda_cuda_codec& codec, cudaStream_t stream);
cudaError_t Decode(const rueda_cuda_codec& codec, cudaStream_t stream);

// Brings all of them to the device. CUDA else does that at a kernel's first launch, and may wait
// then for what runs on the device: an operation, say, which waits for that launch.
cudaError_t LoadKernels();

}  // namespace rueda::cuda
