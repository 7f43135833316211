// Threads for what may wait for operations of this process: as many as there is to do at once.
#pragma once

#include <functional>

namespace rueda::libtorch {

// Soon, on a thread of its own. Must not throw. Threads stay, and are used again; at the program's
// end they are left where they are.
void RunSoon(std::function<void()> task);

}  // namespace rueda::libtorch
