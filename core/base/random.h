// Random bytes that nobody can guess.
#pragma once

#include <cstddef>

namespace rueda {

// From the kernel, by getrandom or else /dev/urandom; without either RUEDA_CHECK says so.
void FillRandom(void* data, size_t bytes);

}  // namespace rueda
