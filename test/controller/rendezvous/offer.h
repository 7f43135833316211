// What a rank brings to a meeting, for tests of meetings.
#pragma once

#include "controller/rendezvous/meeting.h"

namespace rueda {

inline NeighbourOffer MakeOffer() {
  Bells bells = {*Doorbell::Create(), *Doorbell::Create()};
  return {*SharedMemory::Create("arena", 1 << 12), std::make_shared<const Bells>(std::move(bells))};
}

}  // namespace rueda
