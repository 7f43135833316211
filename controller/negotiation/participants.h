// Who takes part in an operation: the members of its process set, or the two ranks of a send/recv.
// A view: the spec and the set outlive it. PURE
#pragma once

#include "controller/membership/process_sets.h"
#include "controller/negotiation/messages.h"

namespace rueda {

class Participants {
 public:
  Participants(const TensorSpec& spec, const ProcessSet& set)
      : Participants(set, spec.signature.root, spec.signature.peer) {}
  // `to`: -1 when it is no send/recv.
  Participants(const ProcessSet& set, Rank from, Rank to) : set_(set), from_(from), to_(to) {}

  int size() const { return pair() ? 2 : set_.size(); }
  // A rank's index among them; -1 when it takes no part.
  int IndexOf(Rank rank) const {
    if (!pair()) return set_.IndexOf(rank);
    return rank == from_ ? 0 : rank == to_ ? 1 : -1;
  }
  Rank rank(int index) const {
    if (!pair()) return set_.ranks[index];
    return index == 0 ? from_ : to_;
  }

 private:
  bool pair() const { return to_ >= 0; }

  const ProcessSet& set_;
  const Rank from_;
  const Rank to_;
};

}  // namespace rueda
