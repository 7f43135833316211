// FAKE: the module's kernels as tasks of a stream: what the batched calls point to is copied when
// they are made; all memory is checked when they run, and the arithmetic is the host's own.
#pragma once

#include "test/support/fake_cuda/stream.h"

namespace rueda::fake_cuda {

Outcome EnqueueCopy(Stream& stream, const rueda_cuda_copy& copy);
Outcome EnqueueReduce(Stream& stream, const rueda_cuda_reduce& reduce);

enum class Coding { kEncode, kCombine, kDecode };
Outcome EnqueueCodec(Stream& stream, Coding coding, const rueda_cuda_codec& codec);

}  // namespace rueda::fake_cuda
