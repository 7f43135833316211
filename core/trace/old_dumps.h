// Dumps of the flight recorder that earlier jobs left in a directory that nobody looks after.
#pragma once

#include <string>

namespace rueda::trace {

// "rueda-recorder.4711.txt", for this or another process.
std::string DumpName(int pid);

// Removes this user's dumps in `directory` but for the newest 16 and those of the last hour, which
// may be of one failure. What goes wrong is left alone.
void RemoveOldDumps(const std::string& directory);

}  // namespace rueda::trace
