// Receiving from any source. A message is named by its sender; a receiver that says of nobody that
// he is one has to hear who would be. Senders tell it through the group's store, and only where
// nobody has taken a message for a moment: others pay nothing for it.
//
// A stranger who can write to the store can make a receiver wait for a message that nobody has
// sent, until its time is up, or end its receiving from any source. Messages themselves don't go
// there.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "bindings/torch/c10d/session.h"
#include "bindings/torch/c10d/work.h"

namespace rueda::libtorch {

// A connection of its own to the group's store, made when it is needed: a thread that waits for a
// key holds up all others with the same. Thread-safe.
class OwnStore {
 public:
  explicit OwnStore(c10::intrusive_ptr<c10d::Store> store) : groups_(std::move(store)) {}
  c10d::Store& get();

 private:
  const c10::intrusive_ptr<c10d::Store> groups_;
  std::once_flag once_;
  c10::intrusive_ptr<c10d::Store> own_;
};

// Messages that this rank has sent, of which receivers may have to be told. Thread-safe.
class SentMessages : public std::enable_shared_from_this<SentMessages> {
 public:
  SentMessages(std::shared_ptr<OwnStore> store, int rank) : store_(std::move(store)), rank_(rank) {}
  // Has been submitted, the `number`th with the tag. Null: and has ended.
  void Add(const std::shared_ptr<Operation>& message, int receiver, int tag, int64_t number);

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<int, int>;  // receiver and tag
  // Messages to one receiver with one tag, which it takes in their order.
  struct Stream {
    std::weak_ptr<Operation> looked_at, latest;
    int64_t number;          // of the latest
    Clock::time_point when;  // to look
  };

  void Watch();
  void LookAt(const Key& key);
  void Tell(int receiver, int tag, int64_t number);

  const std::shared_ptr<OwnStore> store_;
  const int rank_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<Key, Stream> streams_;
  bool is_watching_ = false;
  std::set<int> at_once_;  // receivers that take from any source

  std::mutex telling_;
  std::map<Key, int64_t> told_;  // guarded by telling_: the highest number
};

// A message from whoever sends one.
class AnySourceWork final : public c10d::Work {
 public:
  AnySourceWork(std::vector<at::Tensor> outputs, std::chrono::milliseconds limit)
      : c10d::Work(-1, c10d::OpType::RECVANYSOURCE), outputs_(std::move(outputs)), limit_(limit) {}

  const std::vector<at::Tensor>& outputs() const { return outputs_; }
  // Once: the message is received from `source`, or can't be.
  void Found(c10::intrusive_ptr<GroupWork> work, int source);
  void Failed(std::exception_ptr error);

  // ---- torch.distributed's ----

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { (void)wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  c10::intrusive_ptr<GroupWork> Message() const;
  Error NobodySent(std::chrono::milliseconds limit) const;
  // Once there is a message or an error, if somebody has asked for the future.
  void TellSoon();
  void Tell();

  const std::vector<at::Tensor> outputs_;
  const std::chrono::milliseconds limit_;
  std::atomic<bool> told_ = false;
  // Guarded by the base class's mutex_.
  c10::intrusive_ptr<GroupWork> work_;
  int source_ = -1;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  uint64_t giving_up_ = 0;
};

// Messages that this rank wants from whoever sends them: with one tag, in the order of the calls.
// One thread looks for all. Thread-safe.
class WantedMessages : public std::enable_shared_from_this<WantedMessages> {
 public:
  // Begins to receive the next message from a source with a tag, unless its number is higher than
  // the last that has been sent: then null.
  using Receive = std::function<c10::intrusive_ptr<GroupWork>(const std::vector<at::Tensor>&,
                                                              int source, int tag, int64_t last)>;
  WantedMessages(std::shared_ptr<OwnStore> store, std::shared_ptr<Session> session, int rank,
                 int size, Receive receive)
      : store_(std::move(store)),
        session_(std::move(session)),
        rank_(rank),
        size_(size),
        receive_(std::move(receive)),
        last_(rank) {}
  void Add(c10::intrusive_ptr<AnySourceWork> work, int tag);
  // The group is about to end, and with it what `Receive` works with.
  void Close();

 private:
  using Clock = std::chrono::steady_clock;

  void Look();
  bool TakeAll();
  bool Take(int tag);
  void Hear(int tag);
  bool TakeFor(AnySourceWork* work, int tag);
  void CheckOthers();
  void Fail(const std::exception_ptr& error);
  std::string Get(const std::string& key);
  bool Has(const std::string& key);

  const std::shared_ptr<OwnStore> store_;
  const std::shared_ptr<Session> session_;
  const int rank_;
  const int size_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<int, std::deque<c10::intrusive_ptr<AnySourceWork>>> works_;  // by tag
  bool is_looking_ = false;

  std::mutex receive_mutex_;
  Receive receive_;  // guarded by receive_mutex_; null once it is closed

  // Of the thread that looks: the highest numbers that it was told of, by source and tag; the
  // latest news when it looked for a tag; whom it took from last.
  std::map<std::pair<int, int>, int64_t> told_;
  std::map<int, std::string> news_;
  int last_;
  bool has_asked_ = false;
  Clock::time_point check_at_{};
};

}  // namespace rueda::libtorch
