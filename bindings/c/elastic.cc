// Elastic jobs: memberships that the launcher's authority decides, and what is due of them.
#include "bindings/c/elastic.h"

#include <unistd.h>

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "bindings/c/arguments.h"
#include "bindings/c/guard.h"
#include "bindings/c/structs.h"

namespace rueda::capi {
namespace {

// Contexts of other names are numbered within a membership of the process's.
constexpr int kNumberBits = 20;

void Follow(const wire::Record& record, RuntimeOptions* options) {
  Config& config = options->config;
  const int host = record.hosts(record.rank());
  config.rank = record.rank();
  config.size = record.slots_size();
  config.local_size = std::count(record.hosts().begin(), record.hosts().end(), host);
  config.local_rank =
      std::count(record.hosts().begin(), record.hosts().begin() + record.rank(), host);
  config.meeting_address = record.meeting_address();
  options->slots.assign(record.slots().begin(), record.slots().end());
  options->membership = options->number = record.membership();
}

// Whether others were lost while this one began, so that another membership will do.
bool MayGoOn(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
}

}  // namespace

absl::StatusOr<AuthorityLink*> LinkOf(const Config& config) {
  if (config.elastic_fd < 0) {
    return absl::FailedPreconditionError(
        "this job is not elastic: start it with ruedarun --min-np N");
  }
  return AuthorityLink::Of(static_cast<int>(config.elastic_fd));
}

bool ComesLater(const rueda_context* context) {
  const Config& config = context->options.config;
  if (config.elastic_fd < 0 || config.elastic_ranks == 0) return false;
  const absl::StatusOr<AuthorityLink*> link = LinkOf(config);
  return link.ok() && (*link)->last().membership() == 0;
}

absl::Status StartAlone(rueda_context* context, RuntimeOptions options) {
  Config& config = options.config;
  const int32_t waits_as = static_cast<int32_t>(config.elastic_ranks);
  config.rank = config.local_rank = 0;
  config.size = config.local_size = 1;
  config.job_id = absl::StrCat(config.job_id, "/", getpid());  // nobody else meets by it
  config.meeting_address.clear();
  config.agent_fd = config.agent_bell_fd = -1;
  config.hosts_fake = 0;
  options.membership = options.number = 0;
  RUEDA_ASSIGN_OR_RETURN(context->runtime, Runtime::Create(std::move(options)));
  context->waits_as = waits_as;
  context->completions = context->runtime->completions();
  return absl::OkStatus();
}

absl::Status StartElastic(rueda_context* context, RuntimeOptions options, uint64_t commits,
                          int32_t blames) {
  RUEDA_ASSIGN_OR_RETURN(AuthorityLink* const link, LinkOf(options.config));
  const uint64_t count = options.membership;
  while (true) {
    wire::Record record = link->last();
    const bool asks = options.context.empty() || record.membership() == 0;
    if (asks) {
      RUEDA_ASSIGN_OR_RETURN(record, link->Ask(commits, blames));
    }
    Follow(record, &options);
    if (!options.context.empty()) {
      options.membership = (record.membership() << kNumberBits) + count;
    }
    absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Create(options);
    if (runtime.ok()) {
      context->survivors = record.survivors();
      context->source = record.source();
      context->waits_as = -1;
      context->runtime = *std::move(runtime);
      context->completions = context->runtime->completions();
      return absl::OkStatus();
    }
    if (!asks || !MayGoOn(runtime.status())) return runtime.status();
    blames = -1;
  }
}

int32_t SlotOfLost(const Runtime& runtime) {
  const FailurePtr failure = runtime.failure();
  const std::vector<int32_t>& slots = runtime.world().slots;
  // Not of one that has ended the membership itself, and lives.
  if (failure == nullptr || failure->rank < 0 || failure->pid == 0) return -1;
  const size_t rank = static_cast<size_t>(failure->rank);
  return rank < slots.size() && failure->rank != runtime.rank() ? slots[rank] : -1;
}

namespace {

// What this process has heard; nothing where the job is not elastic.
AuthorityLink::Due DueOf(const Runtime& runtime) {
  const absl::StatusOr<AuthorityLink*> link = LinkOf(runtime.config());
  return link.ok() ? (*link)->due() : AuthorityLink::Due();
}

absl::Status Info(const rueda_context* context, rueda_membership* membership) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  if (membership == nullptr) {
    return absl::InvalidArgumentError("rueda_membership_info: `membership` is null");
  }
  RUEDA_RETURN_IF_ERROR(CheckStruct(membership));
  rueda_membership info = RUEDA_MEMBERSHIP_INIT;
  info.number = runtime->world().membership;
  const int32_t waits_as = context->waits_as;
  info.rank = waits_as >= 0 ? waits_as : runtime->rank();
  info.ranks = waits_as >= 0 ? waits_as + 1 : runtime->world().size();
  info.survivors = context->survivors;
  info.source = context->source;
  info.keeping = DueOf(*runtime).keeping;
  WriteStruct(info, membership);
  return absl::OkStatus();
}

int32_t Due(const Runtime& runtime) {
  const AuthorityLink::Due due = DueOf(runtime);
  return (due.added ? RUEDA_RANKS_ADDED : 0) | (due.removed() ? RUEDA_RANKS_REMOVED : 0);
}

absl::Status Leaving(const rueda_context* context, int32_t* ranks, size_t capacity, size_t* count) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  const std::vector<int32_t> leaving = DueOf(*runtime).leaving;
  const std::vector<int32_t>& slots = runtime->world().slots;
  std::vector<Rank> found;
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    if (absl::c_linear_search(leaving, slots[rank])) found.push_back(static_cast<Rank>(rank));
  }
  return WriteRanks("rueda_leaving_ranks", found, ranks, capacity, count);
}

absl::Status Check(rueda_context* context, int32_t* change) {
  if (change == nullptr) {
    return absl::InvalidArgumentError("rueda_check_membership: `change` is null");
  }
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  if (const int32_t own = Due(*runtime); own != 0) runtime->Wish(static_cast<uint8_t>(own));
  *change = runtime->agreed() & (kWishForAdded | kWishForRemoved);
  return absl::OkStatus();
}

}  // namespace
}  // namespace rueda::capi

extern "C" {

using namespace rueda;        // NOLINT: the definitions below belong to the C API
using namespace rueda::capi;  // NOLINT

rueda_status rueda_membership_info(const rueda_context* context, rueda_membership* membership) {
  return Guard([&] { return Info(context, membership); });
}

int32_t rueda_membership_due(const rueda_context* context) {
  return GuardOr(0, [&]() -> int32_t {
    const absl::StatusOr<Call> runtime = RuntimeOf(context);
    return runtime.ok() ? Due(**runtime) : 0;
  });
}

rueda_status rueda_leaving_ranks(const rueda_context* context, int32_t* ranks, size_t capacity,
                                 size_t* count) {
  return Guard([&] { return Leaving(context, ranks, capacity, count); });
}

rueda_status rueda_check_membership(rueda_context* context, int32_t* change) {
  return Guard([&] { return Check(context, change); });
}

}  // extern "C"
