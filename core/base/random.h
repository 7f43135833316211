// Random bytes that nobody can guess.
#pragma once

#include <cstddef>

namespace rueda {

// From the kernel; a system without any is beyond help: RUEDA_CHECK.
void FillRandom(void* data, size_t bytes);

}  // namespace rueda
