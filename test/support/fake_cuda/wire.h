// FAKE: what the members of a fake communicator and its hub say to each other over Unix sockets,
// and how they send and receive. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "ops/nccl/cuda_abi.h"

namespace rueda::fake_cuda {

enum class Channel : int32_t {
  kData,     // tasks of streams, and their results
  kControl,  // everything else
};

// The first words on a connection.
struct Hello {
  int32_t members;
  int32_t self;
  Channel channel;
};

enum class Say : int32_t {
  // To the hub.
  kTask,   // data: `number` operations follow, each with its bytes
  kSplit,  // control: a Choice follows
  kLeave,  // control: this member ends in good order
  // From the hub.
  kDone,      // data: `bytes` for all outputs of the task, one after the other
  kWrong,     // data: `bytes` of words: what the members enqueued does not match
  kGo,        // control: all members are there
  kRefused,   // control: `bytes` of words: they contradict each other
  kPart,      // control: a Part
  kLost,      // control: member `number` has vanished
  kMayLeave,  // control: all members are leaving, or have vanished
};

struct Choice {
  int32_t color;  // -1: no part, and no answer
  int32_t key;
};

// What came of a split for one member.
struct Part {
  rueda_cuda_id id;
  int32_t members;
  int32_t self;
};

struct Header {
  Say say;
  int32_t number;
  uint64_t bytes;
};

enum class Collective : int32_t {
  kAllreduce,
  kReduceTo,
  kReducescatter,
  kAllgather,
  kBroadcast,
  kSend,
  kReceive,
};

// An operation of a task. Its `in_bytes` follow it.
struct Description {
  Collective kind;
  int32_t dtype;      // -1: it moves bytes
  int32_t reduce_op;  // -1
  int32_t peer;       // or root; -1
  int64_t count;      // elements, or bytes
  double factor;
  uint64_t in_bytes;
  uint64_t out_bytes;
};

// False: the connection is gone, or `stop` (looked at every few milliseconds; null: never) said so.
using Stop = std::function<bool()>;
bool SendAll(int socket, const void* data, size_t bytes, const Stop& stop);
bool ReceiveAll(int socket, void* data, size_t bytes, const Stop& stop);

}  // namespace rueda::fake_cuda
