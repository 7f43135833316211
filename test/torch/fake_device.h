// FAKE: see fake_device.cc.
#pragma once

#include <c10/core/Stream.h>

namespace rueda::fake_cuda {

// Gives the stream work that takes so long.
void Sleep(const c10::Stream& stream, int ms);

}  // namespace rueda::fake_cuda
