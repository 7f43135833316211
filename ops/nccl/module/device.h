// What the table has of devices: streams, events, memory, and kernels on them. Any thread. The
// contracts are those of cuda_abi.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/nccl/cuda_abi.h"

namespace rueda::cuda {

int32_t Probe(rueda_cuda_info* info, char* message);
int32_t Describe(int32_t device, rueda_cuda_device* description, char* message);
int32_t Locate(const void* pointer, int32_t* device, char* message);

int32_t OpenStream(int32_t device, int32_t urgent, void** stream, char* message);
void CloseStream(int32_t device, void* stream);
int32_t IsCapturing(int32_t device, void* stream, int32_t* capturing, char* message);

int32_t OpenEvent(int32_t device, void** event, char* message);
void CloseEvent(int32_t device, void* event);
int32_t Record(int32_t device, void* event, void* stream, char* message);
int32_t Wait(int32_t device, void* stream, void* event, char* message);
int32_t Synchronize(int32_t device, void* event, char* message);

int32_t Allocate(int32_t device, size_t bytes, void** memory, char* message);
void Release(int32_t device, void* memory);
int32_t Transfer(int32_t device, void* to, const void* from, size_t bytes, char* message);

int32_t EnqueueCopy(int32_t device, void* stream, const rueda_cuda_copy* copy, char* message);
int32_t EnqueueReduce(int32_t device, void* stream, const rueda_cuda_reduce* reduce, char* message);
int32_t EnqueueEncode(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message);
int32_t EnqueueCombine(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message);
int32_t EnqueueDecode(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message);

}  // namespace rueda::cuda
