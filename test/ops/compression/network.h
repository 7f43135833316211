// Members of a communicator in one thread, for tests of what is built on top: a real one in what it
// gives, and a counter of the bytes that would be sent.
#pragma once

#include <cstring>
#include <numeric>
#include <vector>

#include "ops/backend/communicator.h"
#include "ops/kernels/reduce.h"

namespace rueda {

class Network {
 public:
  explicit Network(int members) : members_(static_cast<size_t>(members)) {
    for (int i = 0; i < members; ++i) ends_.push_back(std::make_unique<End>(this, i));
  }
  Communicator* end(int member) { return ends_[static_cast<size_t>(member)].get(); }
  // By all members to others.
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Member {
    BucketOperation operation;
    bool waits = false;
  };

  class End : public Communicator {
   public:
    End(Network* network, int self) : network_(*network), self_(static_cast<size_t>(self)) {}
    void Start(const BucketOperation& operation) override {
      network_.members_[self_] = {operation, true};
    }
    absl::StatusOr<Progress> Advance() override {
      network_.Run();
      return network_.members_[self_].waits ? Progress::kBlocked : Progress::kDone;
    }
    void Abort() override {}

   private:
    Network& network_;
    const size_t self_;
  };

  size_t size() const { return members_.size(); }
  const Piece& PieceOf(size_t member) const { return members_[member].operation.pieces[0]; }

  // When all have come.
  void Run() {
    for (const Member& member : members_) {
      if (!member.waits) return;
    }
    const BucketOperation& one = members_[0].operation;
    const size_t bytes = DTypeSize(one.dtype);
    switch (one.kind) {
      case OpKind::kAlltoall:
        for (size_t taker = 0; taker < size(); ++taker) {
          char* to = static_cast<char*>(PieceOf(taker).output);
          for (size_t giver = 0; giver < size(); ++giver) {
            const int64_t* const counts = &one.counts[giver * size()];
            const int64_t before = std::accumulate(counts, counts + taker, int64_t{0});
            Move(giver, taker, static_cast<size_t>(before) * bytes,
                 static_cast<size_t>(counts[taker]) * bytes, &to);
          }
        }
        break;
      case OpKind::kAllgather:
        for (size_t taker = 0; taker < size(); ++taker) {
          char* to = static_cast<char*>(PieceOf(taker).output);
          for (size_t giver = 0; giver < size(); ++giver) {
            Move(giver, taker, 0, static_cast<size_t>(one.counts[giver]) * bytes, &to);
          }
        }
        break;
      default: {  // an allreduce, of which a ring sends this much
        std::vector<const void*> inputs;
        for (size_t i = 0; i < size(); ++i) inputs.push_back(PieceOf(i).input);
        std::vector<char> sum(static_cast<size_t>(one.elements) * bytes);
        kernels::Reduce(one.dtype, one.reduce_op, inputs, sum.data(), one.elements, {});
        for (size_t i = 0; i < size(); ++i) memcpy(PieceOf(i).output, sum.data(), sum.size());
        bytes_sent_ += static_cast<int64_t>(2 * (size() - 1) * sum.size());
      }
    }
    for (Member& member : members_) member.waits = false;
  }

  void Move(size_t giver, size_t taker, size_t from, size_t bytes, char** to) {
    if (bytes > 0) memmove(*to, static_cast<const char*>(PieceOf(giver).input) + from, bytes);
    *to += bytes;
    if (giver != taker) bytes_sent_ += static_cast<int64_t>(bytes);
  }

  std::vector<Member> members_;
  std::vector<std::unique_ptr<End>> ends_;
  int64_t bytes_sent_ = 0;
};

}  // namespace rueda
