// What a process group of torch.distributed and its works share: the context, from its start to its
// end.
#pragma once

#include <unistd.h>

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "rueda/rueda.hpp"

namespace rueda::libtorch {

class GroupWork;

// The group has been destroyed.
class GroupEndedError : public Error {
 public:
  explicit GroupEndedError(const std::string& group)
      : Error(RUEDA_FAILED_PRECONDITION, "the process group " + group + " has been destroyed") {}
};

// Where the group's store has it that a rank has left.
std::string LeftKey(int rank);

// Thread-safe. A forked child has no part in it: there it has ended.
class Session {
 public:
  using Works = std::list<c10::intrusive_ptr<GroupWork>>;

  // Of the ranks of `group`, which have met. The context is the session's. It stays open until it
  // is shut down or aborted, whoever lets go of it.
  // `title`: how errors call it.
  static std::shared_ptr<Session> Open(rueda_context* context, std::string group, std::string title,
                                       int rank, c10::intrusive_ptr<c10d::Store> store);
  // Those that are open.
  static std::vector<std::shared_ptr<Session>> AllOpen();

  // Throws a GroupEndedError when it has ended; another Error in a forked child.
  rueda_context* context() const;
  bool has_ended() const;
  const std::string& group() const { return group_; }
  const std::string& title() const { return title_; }

  // Keeps a work and what it holds until it has ended, and lets go of earlier ones that have.
  void Keep(const c10::intrusive_ptr<GroupWork>& work);
  // Of a work that has ended.
  void LetGoOf(GroupWork* work);
  // Those that are kept.
  Works Pending() const;

  // Leaves, and waits for the others. Nothing the second time, nor after Abort.
  void Shutdown();
  // Ends everything that is under way, on all ranks.
  void Abort(const std::string& reason);

 private:
  Session(rueda_context* context, std::string group, std::string title, int rank,
          c10::intrusive_ptr<c10d::Store> store);
  // The context; null: it has been taken, or this is a forked child.
  rueda_context* Take();
  // Works keep their results and errors; then the context goes.
  void Destroy(rueda_context* context);

  const std::string group_;
  const std::string title_;
  const int rank_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const pid_t pid_ = getpid();

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  rueda_context* context_;
  Works kept_;
};

}  // namespace rueda::libtorch
