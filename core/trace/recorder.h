// The flight recorder: every thread keeps its last 1,024 events in a ring of its own, always on.
// The rings are written out when a job fails and when the process gets SIGUSR2.
//
// Recording costs one time-stamp and one 32-byte store; no lock, no allocation after a thread's
// first event. Rings belong to the process: they outlive their threads and are handed to new ones.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace rueda::trace {

enum class Event : uint16_t {
  kNone = 0,
  kInit,  // a: world size
  kShutdown,
  kSubmit,       // when it was submitted, on whatever thread; a: handle
  kDefine,       // id; a, b: the name's first 16 bytes
  kOrder,        // a: lane; b: number of tensors
  kReject,       // a: handle
  kBucketStart,  // id: its first tensor; a: lane; b: bytes
  kBucketDone,   // id: its first tensor; a: lane; b: bytes
  kComplete,     // a: handle; b: status code
  kWaitBegin,    // a: handle
  kWaitEnd,      // a: handle; b: status code
  kSleep,        // a: 1 background thread, 2 waiter
  kWake,
  kFail,  // a: the lost rank
  kCount,
};

inline constexpr int kEventsPerThread = 1'024;

// Adds an event to the calling thread's ring. Returns the time that it took.
Nanos Record(Event event, uint32_t id = 0, uint64_t a = 0, uint64_t b = 0);
// The same for an event of that time, which may be earlier than the one before.
void RecordAt(Nanos time, Event event, uint32_t id = 0, uint64_t a = 0, uint64_t b = 0);
// kDefine with the name's beginning packed into a and b.
void RecordName(uint32_t id, absl::string_view name);

// Writes all rings to `fd`, oldest event of a thread first. Async-signal-safe.
void Dump(int fd);

// Where dumps go: `directory`/rueda-recorder.<pid>.txt. Empty: the system's temporary directory.
// The last one to be set, by any thread, counts for the process.
void SetDirectory(absl::string_view directory);
// Writes a dump file and returns its path. Any thread; of several at once the last one's is kept.
absl::StatusOr<std::string> DumpToFile();
// Dumps on SIGUSR2, unless the program already has a handler for it. Idempotent.
void InstallSignalHandler();

}  // namespace rueda::trace
