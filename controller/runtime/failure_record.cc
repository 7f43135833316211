#include "controller/runtime/failure_record.h"

#include <algorithm>
#include <utility>

#include "core/base/log.h"
#include "core/trace/recorder.h"

namespace rueda {
namespace {

// How long a failure may take to be written down.
constexpr Nanos kRecordLimit = 100 * kMillisecond;

}  // namespace

void FailureRecord::Log(const Failure& failure, int operations) {
  const absl::StatusOr<std::string> dump = trace::DumpToFile();
  RUEDA_LOG(Error) << failure.ToString() << " (" << operations
                   << (operations == 1 ? " operation" : " operations") << " in flight here failed"
                   << (dump.ok() ? "; flight recorder: " : "") << (dump.ok() ? *dump : "") << ")";
}

void FailureRecord::Write(Failure failure) {
  failure.membership = world_.membership;
  if (failure.accuser < 0) failure.accuser = world_.rank;
  if (failure.rank >= 0 && failure.rank < world_.size()) {
    failure.pid = world_.infos[failure.rank].pid;
    failure.host = world_.infos[failure.rank].host_name;
    if (failure.operation.empty()) SayWhatItWasDoing(&failure);
  }
  world_.neighbourhood.segment->Fail(EncodeFailure(failure));
  neighbours_.RingAll();
}

std::optional<std::string> FailureRecord::Read(Nanos now) {
  std::string record = world_.neighbourhood.segment->failure();
  if (!record.empty()) return record;
  due_ = std::min(due_, now + kRecordLimit);
  if (now < due_) return std::nullopt;
  Failure failure;
  failure.membership = world_.membership;
  failure.cause = "a rank died while it reported a failure";
  return EncodeFailure(failure);
}

// As far as it can be known here: of a rank of this host what it did, else what this rank waits
// for.
void FailureRecord::SayWhatItWasDoing(Failure* failure) const {
  SpecPtr spec;
  if (const int local = world_.LocalIndex(failure->rank); local >= 0) {
    const RankPage& page = world_.neighbourhood.segment->page(local);
    spec = member_.tensors().GetOrRecall(page.activity.load(std::memory_order_relaxed));
  }
  if (spec == nullptr && failure->rank != world_.rank) {
    const Request* oldest = nullptr;
    for (const Request* request : in_flight_) {
      if (request == nullptr || request->spec == nullptr) continue;
      const ProcessSet* const set = member_.process_sets().Find(request->spec->set);
      if (set == nullptr || !set->Contains(failure->rank)) continue;
      if (oldest == nullptr || request->submitted_at < oldest->submitted_at) oldest = request;
    }
    if (oldest == nullptr) return;
    spec = oldest->spec;
    failure->awaiter = world_.rank;
  }
  if (spec == nullptr) return;
  failure->operation = std::string(OpKindName(spec->signature.kind));
  failure->tensor = spec->name;
}

}  // namespace rueda
