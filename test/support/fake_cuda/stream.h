// FAKE: streams and events. A stream is a queue of tasks and a thread of its own that runs them in
// order; nothing runs inside the call that enqueues it. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "test/support/fake_cuda/machine.h"

namespace rueda::fake_cuda {

class Stream;  // stream.cc

// Null and what CUDA calls the legacy (1) and the thread's own (2) default stream: the device's
// default stream, an ordinary one here. Null result: there is no such stream, or it is another
// device's.
std::shared_ptr<Stream> FindStream(int32_t device, void* handle);

void* OpenStream(int32_t device);
// What is enqueued is done all the same. False: there is no such stream.
bool CloseStream(int32_t device, void* handle);
// Sleeps until nothing is pending on any of its streams, closed ones included.
void DrainDevice(int32_t device);
int32_t LiveStreams();

int32_t NumberOf(const Stream& stream);
int32_t DeviceOf(const Stream& stream);
// A task that does nothing on a failed device, and may fail it. INTERNAL on a capturing stream.
Outcome Enqueue(Stream& stream, std::function<void()> task);
// The same, also when the device has failed: what others wait for.
Outcome EnqueueAlways(Stream& stream, std::function<void()> task);
void Hold(Stream& stream, bool held);
void Step(Stream& stream, int32_t tasks);
int32_t Pending(Stream& stream);
void Drain(Stream& stream);
void SetCapturing(Stream& stream, bool capturing);
bool IsCapturing(Stream& stream);

// A part of a task that waits for other streams or processes: with FAKE_CUDA_SEED streams
// take turns in an order drawn by lot, and this one is out of it meanwhile.
class Waiting {
 public:
  Waiting();
  ~Waiting();
};

void* OpenEvent(int32_t device);
bool CloseEvent(void* handle);
int32_t LiveEvents();
int32_t EventNumber(void* handle);  // -1: there is none

Outcome Record(int32_t device, void* event, Stream& stream);
Outcome Wait(Stream& stream, void* event);
Outcome Synchronize(int32_t device, void* event);

}  // namespace rueda::fake_cuda
