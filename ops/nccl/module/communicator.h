// Communicators over NCCL, non-blocking ones: a call begins, and is waited for by asking NCCL now
// and then, and whether it was aborted meanwhile. Each is used by one thread at a time, but for
// `Abort`. The contracts are those of cuda_abi.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/nccl/cuda_abi.h"

namespace rueda::cuda {

int32_t MakeId(rueda_cuda_id* id, char* message);
int32_t Connect(const rueda_cuda_id* id, int32_t members, int32_t self, int32_t device,
                rueda_cuda_communicator** communicator, char* message);
int32_t Split(rueda_cuda_communicator* parent, int32_t color, int32_t key,
              rueda_cuda_communicator** communicator, char* message);
int32_t Await(rueda_cuda_communicator* communicator, int64_t timeout, char* message);
int32_t AllocateBuffer(rueda_cuda_communicator* communicator, size_t bytes, void** memory,
                       char* message);
void ReleaseBuffer(int32_t device, rueda_cuda_communicator* communicator, void* memory);
int32_t Supports(rueda_cuda_communicator* communicator, int32_t dtype, int32_t reduce_op);
int32_t Begin(rueda_cuda_communicator* communicator, char* message);
int32_t End(rueda_cuda_communicator* communicator, char* message);
int32_t Allreduce(rueda_cuda_communicator* communicator, void* stream, const void* in, void* out,
                  int64_t count, int32_t dtype, int32_t reduce_op, double factor, char* message);
int32_t ReduceTo(rueda_cuda_communicator* communicator, void* stream, const void* in, void* out,
                 int64_t count, int32_t dtype, int32_t reduce_op, double factor, int32_t root,
                 char* message);
int32_t Reducescatter(rueda_cuda_communicator* communicator, void* stream, const void* in,
                      void* out, int64_t count, int32_t dtype, int32_t reduce_op, double factor,
                      char* message);
int32_t Allgather(rueda_cuda_communicator* communicator, void* stream, const void* in, void* out,
                  size_t bytes, char* message);
int32_t Broadcast(rueda_cuda_communicator* communicator, void* stream, const void* in, void* out,
                  size_t bytes, int32_t root, char* message);
int32_t Send(rueda_cuda_communicator* communicator, void* stream, const void* data, size_t bytes,
             int32_t peer, char* message);
int32_t Receive(rueda_cuda_communicator* communicator, void* stream, void* data, size_t bytes,
                int32_t peer, char* message);
int32_t Check(rueda_cuda_communicator* communicator, char* message);
void Abort(rueda_cuda_communicator* communicator);
void Destroy(rueda_cuda_communicator* communicator);

}  // namespace rueda::cuda
