// How the ranks of a job find each other when a membership begins. Three kinds: processes of one
// host meet over unix sockets, those of several over TCP, threads of one process by ThreadRanks.
#pragma once

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "controller/bus/link.h"
#include "controller/failure/verdict_board.h"
#include "controller/protocol/lost.h"
#include "controller/protocol/rueda.pb.h"
#include "ops/backend/store.h"
#include "ops/host/neighbours.h"
#include "ops/host/segment.h"

namespace rueda {

// What a rank brings to its neighbours, and gets of each of them.
struct NeighbourOffer {
  std::shared_ptr<SharedMemory> arena;
  std::shared_ptr<const Bells> bells;
};
struct Neighbourhood {
  std::unique_ptr<Segment> segment;
  std::vector<std::shared_ptr<SharedMemory>> arenas;  // by local index
  std::vector<Bells> bells;                           // by local index
};

// Used once, by the thread that initializes; every call blocks until the other ranks make it too,
// or until `deadline`.
class Meeting {
 public:
  virtual ~Meeting() = default;

  // Where a launcher says how ranks of this host have ended; before the rest.
  virtual void Consult(std::unique_ptr<VerdictBoard> /*board*/) {}
  virtual VerdictBoard* board() const { return nullptr; }

  // Everybody's hello, by rank, but for what rank 0 alone has to know (size, version, knobs).
  // FAILED_PRECONDITION, the same on every rank, when the hellos don't fit together;
  // DEADLINE_EXCEEDED names the ranks that did not come.
  virtual absl::StatusOr<std::vector<wire::Hello>> Gather(const wire::Hello& mine,
                                                          Nanos deadline) = 0;

  // Makes the ranks of one host neighbours: shares a new control segment, the arenas and the
  // doorbells. `ranks`: all of this host, ascending.
  virtual absl::StatusOr<Neighbourhood> Introduce(absl::Span<const Rank> ranks, Rank self,
                                                  const NeighbourOffer& mine, size_t log_bytes,
                                                  Nanos deadline) = 0;

  // This rank's start has failed. The others' calls fail then, and say why, where no connection
  // tells them that this rank is gone. For any thread.
  virtual void GiveUp(Rank /*self*/, const absl::Status& /*why*/) {}

  // Why a rank whose connection has ended is gone, where that is known otherwise; OK: it isn't, or
  // not yet.
  virtual absl::Status WhatBecameOf(Rank /*rank*/) const { return absl::OkStatus(); }

  // The connections that tell when a neighbour ends: at the host's first rank one to each other, at
  // the others one to the first. None between threads.
  virtual std::vector<std::unique_ptr<Link>> TakeLinks() = 0;

  // Where ranks of other hosts reach this one, and by which interface; both empty: all ranks are on
  // this host. At rank 0 from the start, elsewhere after Gather.
  virtual std::string address() const { return ""; }
  virtual std::string network_interface() const { return ""; }

  // Threads' own store; null where it is reached over links.
  virtual std::shared_ptr<Store> store() = 0;
  // The secret for TCP between these ranks, from Gather on; empty: there is none.
  virtual Secret secret() const = 0;
  // Where rank 0 has waited for the others, for people; empty: they come by a name, or this is
  // another.
  virtual std::string waited_at() const { return ""; }
};

// Checks that the hellos of a job fit together: sizes, versions, ranks, agreed knobs.
absl::Status CheckHellos(absl::Span<const wire::Hello> hellos);

// What rank 0 answers: the roster of all. Or why there is none: see controller/protocol/lost.h.
// PURE
wire::Roster MakeRoster(absl::Span<const wire::Hello> hellos);
// The hellos of `size` ranks, of which the roster was made; or its error.
absl::StatusOr<std::vector<wire::Hello>> HellosOf(const wire::Roster& roster, int size);

}  // namespace rueda
