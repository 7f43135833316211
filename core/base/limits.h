// Every bound of the project in one place, with the relations that must hold between them. PURE
#pragma once

#include <cstddef>
#include <cstdint>

namespace rueda {

inline constexpr int kRanksMax = 65'536;
inline constexpr int kLocalRanksMax = 1'024;             // ten bits of a log word name the writer
inline constexpr int kProcessSetsMax = 256;              // each has a data area in shared memory
inline constexpr size_t kHostNameBytesMax = 255;         // RFC 1035
inline constexpr size_t kHostsFileBytesMax = 20u << 20;  // of a batch system's list of hosts
inline constexpr int kDimsMax = 32;
inline constexpr size_t kNameBytesMax = 1'024;
// Of what is wrong with an operation, with the operation's name: a name, and as much again.
inline constexpr size_t kFaultBytesMax = 4 * kNameBytesMax;
inline constexpr int kGroupTensorsMax = 65'536;
inline constexpr int kTensorIdsMax =
    1 << 16;  // live entries of the tensor table; then the oldest goes
inline constexpr int kSubmissionsMax = 1 << 15;  // operations in flight on one rank
inline constexpr int kHandlesMax = 1 << 17;  // operations in flight or finished and not released

inline constexpr size_t kControlFrameBytesMax = 16u << 20;
inline constexpr int kPlannedDimsMax = 1 << 20;  // first dimensions of one operation in the plan
inline constexpr size_t kInlineBytesMax = 64u << 10;  // of one operation's data in the plan
inline constexpr size_t kHandshakeBytesMax = 128;     // read from a peer before it is authenticated
inline constexpr size_t kStoreValueBytesMax = 64u << 10;
inline constexpr size_t kStoreKeyBytesMax = 256;
inline constexpr size_t kErrorTextBytesMax = 4'096;
inline constexpr size_t kKeptNameBytesMax = 1'024;     // of what a rank keeps, and its context
inline constexpr int kElasticProcessesMax = 8'192;     // slots of an elastic job
inline constexpr size_t kElasticBytesMax = 64u << 10;  // between one of them and the launcher

inline constexpr int kLogWordsMin = 4'096;  // of the announcement log's ring
inline constexpr int kLogWordsPerWriter = 64;
// Of each writer, for what does not fit a word; touched as used.
inline constexpr size_t kSideRingBytes = 17u << 20;

static_assert(kHandlesMax > kSubmissionsMax, "every accepted operation gets a handle");
static_assert(kSideRingBytes > kControlFrameBytesMax + 64,
              "any announcement or plan that fits a frame also fits a writer's side ring");
static_assert(kPlannedDimsMax * 10 + 4'096 < static_cast<int64_t>(kControlFrameBytesMax),
              "one operation's first dimensions, ten bytes each, fit a frame");
static_assert(kElasticProcessesMax * 6 + 4'096 < kElasticBytesMax,
              "a record of a membership, six bytes a rank, fits a datagram");
static_assert(kHostsFileBytesMax > kRanksMax * (kHostNameBytesMax + 2),
              "a line of the longest name, for each rank, fits");
static_assert(kLocalRanksMax <= (1 << 10), "a log word has ten bits for the writer");
static_assert(kTensorIdsMax <= (1 << 16), "an id has 16 bits for its slot");

}  // namespace rueda
