// Where the engine sleeps, for who has descriptors that it should wake for.
#pragma once

#include "core/base/status.h"

namespace rueda {

// The engine's thread only.
class WaitSet {
 public:
  // Wakes the engine whenever `fd` can be read.
  virtual absl::Status Watch(int fd) = 0;
  virtual void Unwatch(int fd) = 0;

 protected:
  ~WaitSet() = default;
};

}  // namespace rueda
