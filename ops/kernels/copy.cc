// Compiled for each instruction set; Highway chooses among them.
#include "ops/kernels/copy.h"

#include <cstdint>

#include "ops/kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kernels/copy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep; re-includes this file
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace rueda::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

// At least four vectors. Whole vectors from the first place in `to` that is aligned on; what is
// before and after them by vectors that overlap them.
void DoCopy(uint8_t* HWY_RESTRICT to, const uint8_t* HWY_RESTRICT from, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  hn::StoreU(hn::LoadU(d, from), d, to);
  const size_t last = bytes - lanes;
  size_t i = lanes - reinterpret_cast<uintptr_t>(to) % lanes;
  for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
    const auto a = hn::LoadU(d, from + i);
    const auto b = hn::LoadU(d, from + i + lanes);
    const auto c = hn::LoadU(d, from + i + 2 * lanes);
    const auto e = hn::LoadU(d, from + i + 3 * lanes);
    hn::Store(a, d, to + i);
    hn::Store(b, d, to + i + lanes);
    hn::Store(c, d, to + i + 2 * lanes);
    hn::Store(e, d, to + i + 3 * lanes);
  }
  for (; i < last; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  hn::StoreU(hn::LoadU(d, from + last), d, to + last);
}

}  // namespace
}  // namespace rueda::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rueda::kernels {

HWY_EXPORT(DoCopy);

void CopyByVectors(void* to, const void* from, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(DoCopy)
  (static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes);
}

}  // namespace rueda::kernels
#endif  // HWY_ONCE
