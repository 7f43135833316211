// How long the launcher process waits for others. PURE
#pragma once

#include "core/base/clock.h"

namespace rueda {

// The supervisor is done 1.5 s after the grace; one that isn't by then is stopped or stuck.
inline constexpr Nanos kSupervisorSlack = 3 * kSecond;
// How often within their time limit those on the hosts are asked whether they are there. A host
// that swaps may take its time; the ranks look after each other by themselves.
inline constexpr int kQuestions = 6;
// How long readers may keep ruedarun once it was asked to end and the ranks have.
inline constexpr Nanos kDrainWhenAsked = kSecond;

}  // namespace rueda
