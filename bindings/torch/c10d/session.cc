#include "bindings/torch/c10d/session.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "bindings/torch/c10d/errors.h"
#include "bindings/torch/c10d/work.h"

namespace rueda::libtorch {
namespace {

std::mutex& OpenMutex() {
  static auto& mutex = *new std::mutex;  // threads may come at the program's end
  return mutex;
}
std::vector<std::shared_ptr<Session>>& OpenSessions() {
  static auto& sessions = *new std::vector<std::shared_ptr<Session>>;
  return sessions;
}

}  // namespace

std::string LeftKey(int rank) {
  return "left " + std::to_string(rank);
}

Session::Session(rueda_context* context, std::string group, std::string title, int rank,
                 c10::intrusive_ptr<c10d::Store> store)
    : group_(std::move(group)),
      title_(std::move(title)),
      rank_(rank),
      store_(std::move(store)),
      context_(context) {}

std::shared_ptr<Session> Session::Open(rueda_context* context, std::string group, std::string title,
                                       int rank, c10::intrusive_ptr<c10d::Store> store) {
  std::shared_ptr<Session> session(
      new Session(context, std::move(group), std::move(title), rank, std::move(store)));
  const std::lock_guard<std::mutex> lock(OpenMutex());
  OpenSessions().push_back(session);
  return session;
}

std::vector<std::shared_ptr<Session>> Session::AllOpen() {
  const std::lock_guard<std::mutex> lock(OpenMutex());
  return OpenSessions();
}

rueda_context* Session::context() const {
  if (pid_ != getpid()) {  // the mutex, too, in whatever state
    throw Error(RUEDA_FAILED_PRECONDITION,
                "this process was forked after the process group " + group_ +
                    " was made, and can't use it; make one in the child, or start it with exec");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (context_ != nullptr) return context_;
  throw GroupEndedError(group_);
}

bool Session::has_ended() const {
  if (pid_ != getpid()) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  return context_ == nullptr;
}

void Session::Keep(const c10::intrusive_ptr<GroupWork>& work) {
  constexpr int kLooks = 2;  // more than are added
  std::vector<c10::intrusive_ptr<GroupWork>> oldest;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < kLooks && i < static_cast<int>(kept_.size()); ++i) {
      oldest.push_back(kept_.front());
      kept_.splice(kept_.end(), kept_, kept_.begin());
    }
    kept_.push_back(work);
    work->kept_at_ = std::prev(kept_.end());
  }
  for (const auto& each : oldest) {
    try {
      (void)each->isCompleted();
    } catch (const std::exception&) {  // that is for those who wait for it
    }
  }
}

void Session::LetGoOf(GroupWork* work) {
  c10::intrusive_ptr<GroupWork> last;  // goes without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!work->kept_at_.has_value()) return;
  last = std::move(**work->kept_at_);
  kept_.erase(*work->kept_at_);
  work->kept_at_.reset();
}

Session::Works Session::Pending() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return kept_;
}

rueda_context* Session::Take() {
  if (pid_ != getpid()) return nullptr;
  {
    const std::lock_guard<std::mutex> lock(OpenMutex());
    auto& sessions = OpenSessions();
    const auto is_this = [this](const auto& session) { return session.get() == this; };
    sessions.erase(std::remove_if(sessions.begin(), sessions.end(), is_this), sessions.end());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(context_, nullptr);
}

void Session::Destroy(rueda_context* context) {
  for (const auto& work : Pending()) work->Complete();
  rueda_context_destroy(context);
}

void Session::Shutdown() {
  const WithoutPython no_python;
  rueda_context* const context = Take();
  if (context == nullptr) return;
  try {
    store_->set(LeftKey(rank_), std::string());
  } catch (const std::exception&) {  // the store may have gone before
  }
  (void)rueda_shutdown(context);
  Destroy(context);
}

void Session::Abort(const std::string& reason) {
  const WithoutPython no_python;
  rueda_context* const context = Take();
  if (context == nullptr) return;
  (void)rueda_abort(context, reason.c_str());
  Destroy(context);
}

}  // namespace rueda::libtorch
