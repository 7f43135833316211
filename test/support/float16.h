// The compiler's float16, by one name: g++ 12 has no _Float16 in C++ for Arm. PURE
#pragma once

namespace rueda::testing {

#ifdef __aarch64__
using Float16 = __fp16;
#else
using Float16 = _Float16;
#endif

}  // namespace rueda::testing
