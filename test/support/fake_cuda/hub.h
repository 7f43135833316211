// FAKE: the network between the members of a fake communicator: a thread of the process that made
// the id, to which every member has two connections. It matches what the members enqueue, complains
// where NCCL would hang or mix up bytes, and computes results in the order of the members.
#pragma once

#include <string>

#include "test/support/fake_cuda/machine.h"

namespace rueda::fake_cuda {

// Starts a hub and fills in its address, which the id carries. It ends with its last member; until
// somebody comes it waits.
Outcome StartHub(rueda_cuda_id* id);

// A connection to it; -1 with errno.
int ConnectToHub(const rueda_cuda_id& id);

}  // namespace rueda::fake_cuda
