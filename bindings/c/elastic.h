// Memberships that the launcher's authority decides.
#pragma once

#include <cstdint>

#include "bindings/c/context.h"
#include "controller/rendezvous/authority_link.h"

namespace rueda::capi {

// The process's way to the launcher. FAILED_PRECONDITION: the job is not elastic.
absl::StatusOr<AuthorityLink*> LinkOf(const Config& config);

// What ranks wish for together (Runtime::Wish): bits.
inline constexpr uint8_t kWishForAdded = RUEDA_RANKS_ADDED;
inline constexpr uint8_t kWishForRemoved = RUEDA_RANKS_REMOVED;
inline constexpr uint8_t kWishToStop = 4;

// Whether the context's first init does not ask for a membership, as the job has one already: until
// rueda_regroup the process is alone.
bool ComesLater(const rueda_context* context);
// Starts its runtime then.
absl::Status StartAlone(rueda_context* context, RuntimeOptions options);

// Starts the context's runtime in the membership that comes next; waits for that as long as it
// takes. A context that is not the default one follows the membership that the process is in.
// `commits`, `blames`: wire::Ask. CANCELLED: this process is not wanted any more.
absl::Status StartElastic(rueda_context* context, RuntimeOptions options, uint64_t commits,
                          int32_t blames);

// The slot of the rank that a membership was lost with; -1: none, or it is nobody's in particular.
int32_t SlotOfLost(const Runtime& runtime);

}  // namespace rueda::capi
