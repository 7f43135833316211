#include "ops/nccl/nccl_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/backend/make.h"

namespace rueda {
namespace {

// What has been freed a moment ago may need a few tasks to come to its end.
constexpr Nanos kGrace = 100 * kMillisecond;

}  // namespace

NcclBackend::NcclBackend(NcclOptions options)
    : job_(std::move(options.job)),
      membership_(options.membership),
      context_(std::make_shared<DeviceContext>(std::move(options.context))) {}

absl::Status NcclBackend::Viable([[maybe_unused]] const Members& members) const {
  return context_->args().device->Check();
}

absl::Status NcclBackend::CheckOperation(OpKind kind, ReduceOp op,
                                         const Compression& compression) const {
  if (op == ReduceOp::kAdasum) {
    return absl::UnimplementedError(
        "adasum is for tensors on the CPU: copy this one there, or take another operation");
  }
  if (!compression.none() && !HasDeviceCodec(compression.compressor)) {
    return absl::UnimplementedError(
        absl::StrCat("the compressor ", compression.ToString(), " of ", OpKindName(kind),
                     " is for tensors on the CPU; on CUDA there are fp16, bf16 and int8"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclBackend::ConnectOn(const Members& members,
                                                                     bool urgent,
                                                                     Communicator* parent) {
  RUEDA_RETURN_IF_ERROR(device().Check());
  DeviceCommunicator::Args args;
  args.prefix = absl::StrCat("nccl/", JobKey(job_, membership_), "/", members.set, ".",
                             members.generation, urgent ? "/urgent" : "");
  args.members = static_cast<int>(members.ranks.size());
  args.self = members.self;
  args.urgent = urgent;
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<DeviceCommunicator> communicator,
                         DeviceCommunicator::Create(context_, std::move(args)));
  if (parent != nullptr && members.ranks.size() > 1) {
    communicator->SplitFrom(static_cast<DeviceCommunicator*>(parent), members.set);
  }
  return communicator;
}

void NcclBackend::Retire(std::unique_ptr<Communicator> communicator) {
  std::erase_if(retired_, [](const auto& retired) { return retired->ended(); });
  retired_.emplace_back();  // which may throw
  retired_.back().reset(static_cast<DeviceCommunicator*>(communicator.release()));
  retired_.back()->BeginEnd();
}

bool NcclBackend::WaitUntilLeft() {
  context_->Cancel();  // if nothing that an abort reaches was left
  Nanos deadline = 0;
  if (!std::exchange(asked_, true)) {
    deadline = std::max(context_->patient_until(), MonotonicNow() + kGrace);
  }
  if (context_->AwaitWatchers(deadline)) return true;
  context_->WarnOfRest();
  return false;
}

void NcclBackend::SkipSplit(Communicator* parent) {
  static_cast<DeviceCommunicator*>(parent)->SkipSplit();
}

std::unique_ptr<Backend> MakeNccl(const BackendArgs& args) {
  NcclOptions options;
  options.job = args.job;
  options.membership = args.membership;
  options.context.device = std::make_shared<CudaDevice>(args.local_rank);
  options.context.store = args.store;
  options.context.timeout = static_cast<Nanos>(args.config->nccl_timeout_s * kSecond);
  options.context.in_rank_order = args.config->deterministic != 0;
  options.context.wake = args.wake;
  return std::make_unique<NcclBackend>(std::move(options));
}

}  // namespace rueda
