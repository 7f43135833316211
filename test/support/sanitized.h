// Whether this is a sanitizer's build, which takes its time.
#pragma once

namespace rueda::testing {

#if !defined(__has_feature)
#define __has_feature(feature) 0  // Clang's
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace rueda::testing
