// Runs tests that know only the CPU on CUDA tensors. Linked into a test with the option --wrap for
// the calls in CMakeLists.txt, it stands between the test and the C API: what the test submits
// is copied to device memory, on a stream of the caller's, and goes through the library as CUDA
// tensors; what the operation wrote is back in the test's memory before the test can know that it
// has ended. Tensors that lie one behind the other, in one another, or at odd places do so on the
// device, too. Barriers are the device's. Any thread; all state is by context.
//
// Beside that it checks, for every operation, that what is only read is not written, and nothing
// around a tensor either.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace rueda::testing {

// Why something went to the CPU after all.
enum class OnCpu {
  kAdasum,      // by design: the library says UNIMPLEMENTED
  kCompressor,  // one that is for the CPU: the library says UNIMPLEMENTED
  kBytes,       // strings of bytes are the CPU's
  kOwnDevice,   // the test names a device or an exec itself
  kUnreadable,  // no operations at all, or of another version's size
  kMisaligned,  // tensors in one another, not all of which can be aligned
  kNoDevice,
  kCount
};
bool IsByDesign(OnCpu reason);

struct MirrorCounts {
  int64_t mirrored = 0;  // submits of an operation or a group, those that were refused included
  int64_t on_cpu[static_cast<int>(OnCpu::kCount)] = {};
};
// Of this process and of all that were forked from it.
MirrorCounts CountMirrored();
// "1,234 operations on CUDA; on the CPU: 5 adasum".
std::string ToString(const MirrorCounts& counts);

// Knobs that contexts get from now on beside their own.
void SetMirrorKnobs(std::vector<std::pair<std::string, std::string>> knobs);

}  // namespace rueda::testing
