// The backend's messages, and the barrier that is made of them.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "bindings/torch/c10d/backend.h"
#include "bindings/torch/c10d/errors.h"
#include "bindings/torch/c10d/tensors.h"

namespace rueda::libtorch {
namespace {

using c10d::OpType;

void CheckTag(int tag) {
  TORCH_CHECK_VALUE(tag >= 0, "tag is ", tag, ": it must not be negative");
}

}  // namespace

// ---- point to point ----

// Those with tag 0 have no names: the library has an order for these, which is quicker than names
// that come once.
c10::intrusive_ptr<GroupWork> GroupBackend::Message(const Tensors& tensors, int peer, int tag,
                                                    Way way, int64_t last) {
  CheckTag(tag);
  (void)WithPythonsErrors([&] { return session_->context(); });  // ahead of locks: a forked child's
  c10::intrusive_ptr<GroupWork> work;
  int64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(messages_mutex_);
    int64_t& next = messages_[{peer, tag, way}];
    if (next > last) return nullptr;
    number = next;
    const std::string name =
        tag == 0 ? "" : "tag " + std::to_string(tag) + " message " + std::to_string(number);
    work = way == Way::kTo ? Send(tensors, peer, name) : Receive(tensors, peer, name);
    ++next;
  }
  if (way == Way::kTo) sent_->Add(work->Running(), peer, tag, number);
  return work;
}

c10::intrusive_ptr<GroupWork> GroupBackend::Send(const Tensors& tensors, int peer,
                                                 const std::string& name) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = Flat(OnlyOne(tensors, "send"));
  return Begin({OpType::SEND, "rueda:send"},
               {.kind = RUEDA_SEND, .tensors = flat, .name = name, .root = peer}, tensors, {},
               nullptr);
}

c10::intrusive_ptr<GroupWork> GroupBackend::Receive(const Tensors& tensors, int peer,
                                                    const std::string& name) {
  const at::NoGradGuard no_grad;
  const at::Tensor tensor = OnlyOne(tensors, "recv");
  const bool is_plain = IsPlain(tensor);
  const at::Tensor flat = (is_plain ? tensor.detach() : ContiguousLike(tensor)).view(-1);
  Finish finish;
  if (!is_plain) finish = [tensor, flat](Operation&) { Put(tensor, flat); };
  return Begin({OpType::RECV, "rueda:recv"},
               {.kind = RUEDA_RECV, .tensors = flat, .in_place = true, .name = name, .root = peer},
               tensors, {}, std::move(finish));
}

GroupBackend::WorkPtr GroupBackend::send(Tensors& tensors, int peer, int tag) {
  return Together(Message(tensors, peer, tag, Way::kTo));
}

GroupBackend::WorkPtr GroupBackend::recv(Tensors& tensors, int peer, int tag) {
  return Together(Message(tensors, peer, tag, Way::kFrom));
}

GroupBackend::WorkPtr GroupBackend::recvAnysource(Tensors& tensors, int tag) {
  CheckTag(tag);
  (void)OnlyOne(tensors, "recv");
  (void)WithPythonsErrors([&] { return session_->context(); });
  const auto work = c10::make_intrusive<AnySourceWork>(tensors, timeout_.load());
  wanted_->Add(work, tag);
  return work;
}

// ---- barriers ----

// Messages of each call have names of their own, and rank 0 answers those that are late, too: after
// one that has failed the next is as good as any.
void GroupBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  const Milliseconds limit = opts.timeout.count() >= 0 ? opts.timeout : timeout_.load();
  (void)WithPythonsErrors([&] { return session_->context(); });
  int64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(messages_mutex_);
    number = monitored_barriers_++;
  }
  WithPythonsErrors([&] { rank_ == 0 ? AwaitAll(limit, number) : AwaitVerdict(limit, number); });
}

namespace {

std::string BarrierMessage(int64_t number, const char* what) {
  return "monitored barrier " + std::to_string(number) + " " + what;
}

// Whether it came in time. Throws why it never can.
bool Came(GroupWork& work, std::chrono::milliseconds limit) {
  const std::shared_ptr<Operation> operation = work.Running();
  if (operation != nullptr && !WaitInSlices(limit, [&](std::chrono::nanoseconds slice) {
        return operation->WaitFor(slice.count());
      })) {
    return false;
  }
  work.Complete();
  try {
    work.Check();
  } catch (const Error& error) {
    if (error.status() == RUEDA_CANCELLED) return false;  // its rank waits for something else
    throw;
  }
  return true;
}

}  // namespace

void GroupBackend::AwaitAll(Milliseconds limit, int64_t number) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::vector<c10::intrusive_ptr<GroupWork>> arrivals;
  for (int peer = 1; peer < size_; ++peer) {
    arrivals.push_back(Receive({at::zeros({1}, at::kByte)}, peer, BarrierMessage(number, "here")));
  }
  std::vector<int64_t> missing;
  for (int peer = 1; peer < size_; ++peer) {
    const auto left =
        std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
    if (Came(*arrivals[static_cast<size_t>(peer - 1)], std::max(left, Milliseconds(1)))) continue;
    missing.push_back(global_ranks_[static_cast<size_t>(peer)]);
  }
  const at::Tensor word = at::full({1}, missing.empty() ? 1 : 0, at::kByte);
  for (int peer = 1; peer < size_; ++peer) {
    (void)Send({word}, peer, BarrierMessage(number, "verdict"));
  }
  TORCH_CHECK(missing.empty(), "monitored_barrier: ", missing.size() == 1 ? "rank " : "ranks ",
              c10::Join(", ", missing), " did not come within ", InSeconds(limit));
}

void GroupBackend::AwaitVerdict(Milliseconds limit, int64_t number) {
  constexpr std::chrono::seconds kAnswer{30};  // which comes when rank 0's time is up
  (void)Send({at::zeros({1}, at::kByte)}, 0, BarrierMessage(number, "here"));
  const at::Tensor answer = at::zeros({1}, at::kByte);
  (void)Receive({answer}, 0, BarrierMessage(number, "verdict"))->wait(limit + kAnswer);
  TORCH_CHECK(answer.item<uint8_t>() == 1,
              "monitored_barrier: some ranks did not come; rank 0 names them");
}

}  // namespace rueda::libtorch
