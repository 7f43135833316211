// NCCL, opened when it is first asked for: the one that the process has, torch's say, or else the
// one the build has found. Any thread.
#pragma once

#include <nccl.h>

#include <string>

#include "ops/nccl/module/answer.h"

namespace rueda::cuda {

// Without these it will not do. From 2.18 on, which is the oldest that splits communicators.
#define RUEDA_NCCL_REQUIRED(each)                                                        \
  each(GetVersion) each(GetErrorString) each(GetLastError) each(GetUniqueId)             \
      each(CommInitRankConfig) each(CommSplit) each(CommFinalize) each(CommDestroy)      \
          each(CommAbort) each(CommGetAsyncError) each(GroupStart) each(GroupEnd)        \
              each(RedOpCreatePreMulSum) each(RedOpDestroy) each(AllReduce) each(Reduce) \
                  each(ReduceScatter) each(AllGather) each(Broadcast) each(Send) each(Recv)
// Null in older ones.
#define RUEDA_NCCL_OPTIONAL(each) \
  each(MemAlloc) each(MemFree) each(CommRegister) each(CommDeregister)

struct Nccl {
  std::string missing;  // why it can't be used; else empty
  int version = 0;      // 23203: 2.32.3; 0: not known
#define RUEDA_NCCL_MEMBER(name) decltype(&nccl##name) name = nullptr;
  RUEDA_NCCL_REQUIRED(RUEDA_NCCL_MEMBER)
  RUEDA_NCCL_OPTIONAL(RUEDA_NCCL_MEMBER)
#undef RUEDA_NCCL_MEMBER
};
const Nccl& TheNccl();

// "ncclAllReduce: remote process exited or there was a network error (its words)".
int32_t SayNccl(char* message, ncclResult_t result, const char* what);

}  // namespace rueda::cuda
