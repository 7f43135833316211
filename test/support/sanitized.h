// Whether this is a sanitizer's build, which takes its time.
#pragma once

namespace rueda::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace rueda::testing
