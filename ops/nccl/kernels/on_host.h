// The CUDA kernels on the CPU: the same index arithmetic and the same arithmetic on the elements,
// block by block and thread by thread, split into the same launches. For tests. Any thread.
//
// Pointers are of ordinary memory. When a function returns, all is done.
#pragma once

#include "ops/nccl/cuda_abi.h"

namespace rueda::cuda {

void CopyOnHost(const rueda_cuda_copy& copy);
void ReduceOnHost(const rueda_cuda_reduce& reduce);
void EncodeOnHost(const rueda_cuda_codec& codec);
void CombineOnHost(const rueda_cuda_codec& codec);
void DecodeOnHost(const rueda_cuda_codec& codec);

}  // namespace rueda::cuda
