// The record of a failure that all ranks of a host share: the first that fails writes down why, and
// all end with that.
//
// Owner: the engine; the holder of the baton.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "controller/failure/failure.h"
#include "controller/lanes/request.h"
#include "controller/negotiation/member.h"
#include "controller/rendezvous/bootstrap.h"
#include "core/base/clock.h"
#include "ops/host/neighbours.h"

namespace rueda {

class FailureRecord {
 public:
  // All outlive this. `in_flight`: this rank's operations, by token; null: none.
  FailureRecord(const World* world, const Neighbours* neighbours, const Member* member,
                const std::vector<Request*>* in_flight)
      : world_(*world), neighbours_(*neighbours), member_(*member), in_flight_(*in_flight) {}

  // Whether somebody of this host writes it, or has written it.
  bool exists() const { return world_.neighbourhood.segment->failed(); }
  // Writes the failure down, with what is known here of the rank that it names, unless somebody did
  // before; and rings the neighbours.
  void Write(Failure failure);
  // As it travels; nothing while it is being written. A writer that dies over that has a moment:
  // then the record says so.
  std::optional<std::string> Read(Nanos now);
  // For people, with the flight recorder's file; how many operations in flight here failed with it.
  static void Log(const Failure& failure, int operations);

 private:
  void SayWhatItWasDoing(Failure* failure) const;

  const World& world_;
  const Neighbours& neighbours_;
  const Member& member_;
  const std::vector<Request*>& in_flight_;
  Nanos due_ = kForever;  // somebody began to write it, and has until then
};

}  // namespace rueda
