// FAKE: the table of ops/nccl/cuda_abi.h over the fake device, and the tests' own of control_abi.h.
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/tensor/dtype.h"
#include "core/tensor/signature.h"
#include "ops/nccl/cuda_abi.h"
#include "test/support/fake_cuda/communicator.h"
#include "test/support/fake_cuda/control_abi.h"
#include "test/support/fake_cuda/kernels.h"
#include "test/support/fake_cuda/machine.h"
#include "test/support/fake_cuda/stream.h"

struct rueda_cuda_communicator {
  std::shared_ptr<rueda::fake_cuda::Communicator> it;
};

namespace rueda::fake_cuda {
namespace {

// One call of the table: fails where a test wants it to, or its device has failed, and is logged.
class Call {
 public:
  Call(const char* function, int32_t device, char* message)
      : entry{function, device, -1, -1, -1, -1, nullptr, nullptr, 0, -1, -1, -1, 1, 0},
        message_(message) {}
  Call(const char* function, const rueda_cuda_communicator* communicator, char* message)
      : Call(function, communicator->it->device, message) {
    entry.communicator = communicator->it->number;
    entry.member = communicator->it->self();
  }

  template <class F>  // Outcome()
  int32_t Do(F body) {
    Outcome outcome = TakeFailure(entry.function, entry.device);
    if (outcome.ok() && entry.device != -1) outcome = CheckDevice(entry.device);
    if (outcome.ok()) outcome = body();
    entry.status = static_cast<int32_t>(outcome.code);
    Log(entry);
    return Report(outcome, message_);
  }
  // The same with a stream of the device: Outcome(const std::shared_ptr<Stream>&).
  template <class F>
  int32_t On(void* handle, F body) {
    const std::shared_ptr<Stream> stream = CheckDevice(entry.device).ok()
                                               ? FindStream(entry.device, handle)
                                               : std::shared_ptr<Stream>();
    entry.stream = stream == nullptr ? -1 : NumberOf(*stream);
    return Do([&]() -> Outcome {
      if (stream == nullptr) return InvalidArgument("the device has no such stream");
      return body(stream);
    });
  }

  fake_cuda_call entry;

 private:
  char* const message_;
};

// ---- devices ----

int32_t Probe(rueda_cuda_info* info, char* message) {
  *info = {13000, 13000, 23203, 23203, CountDevices()};
  Outcome outcome = TakeFailure("probe", -1);
  if (outcome.ok() && info->devices == 0) {
    outcome = {absl::StatusCode::kFailedPrecondition, "there is no CUDA device"};
  }
  return Report(outcome, message);
}

int32_t Describe(int32_t device, rueda_cuda_device* description, char* message) {
  const Outcome checked = CheckDevice(device);
  if (!checked.ok()) return Report(checked, message);
  *description = {"fake", 0, 0, int64_t{16} << 30};
  return 0;
}

int32_t LocateMemory(const void* pointer, int32_t* device, char* message) {
  *device = Locate(pointer);
  return Report(TakeFailure("locate", *device), message);
}

// ---- streams and events ----

int32_t OpenStreamOn(int32_t device, int32_t urgent, void** stream, char* message) {
  Call call("open_stream", device, message);
  call.entry.count = urgent;
  return call.Do([&]() -> Outcome {
    *stream = OpenStream(device);
    call.entry.stream = NumberOf(*FindStream(device, *stream));
    return {};
  });
}

void CloseStreamOn(int32_t device, void* stream) {
  Call call("close_stream", device, nullptr);
  if (CloseStream(device, stream)) return Log(call.entry);
  FailDevice(device, "a stream was closed that the device does not have");
}

int32_t IsCapturingOn(int32_t device, void* handle, int32_t* capturing, char* message) {
  const Outcome failure = TakeFailure("is_capturing", device);
  if (!failure.ok()) return Report(failure, message);
  const Outcome checked = CheckDevice(device);
  if (!checked.ok()) return Report(checked, message);
  const std::shared_ptr<Stream> stream = FindStream(device, handle);
  if (stream == nullptr) {
    return Report(InvalidArgument("the device has no such stream"), message);
  }
  *capturing = IsCapturing(*stream);
  return 0;
}

int32_t OpenEventOn(int32_t device, void** event, char* message) {
  Call call("open_event", device, message);
  return call.Do([&]() -> Outcome {
    *event = OpenEvent(device);
    call.entry.event = EventNumber(*event);
    return {};
  });
}

void CloseEventOn(int32_t device, void* event) {
  Call call("close_event", device, nullptr);
  call.entry.event = EventNumber(event);
  if (CloseEvent(event)) return Log(call.entry);
  FailDevice(device, "an event was closed that is not there");
}

int32_t RecordOn(int32_t device, void* event, void* handle, char* message) {
  Call call("record", device, message);
  call.entry.event = EventNumber(event);
  return call.On(handle, [&](const std::shared_ptr<Stream>& stream) {
    return Record(device, event, *stream);
  });
}

int32_t WaitOn(int32_t device, void* handle, void* event, char* message) {
  Call call("wait", device, message);
  call.entry.event = EventNumber(event);
  return call.On(handle,
                 [&](const std::shared_ptr<Stream>& stream) { return Wait(*stream, event); });
}

int32_t SynchronizeWith(int32_t device, void* event, char* message) {
  Call call("synchronize", device, message);
  call.entry.event = EventNumber(event);
  return call.Do([&] { return Synchronize(device, event); });
}

// ---- memory ----

int32_t AllocateOn(int32_t device, size_t bytes, void** memory, char* message) {
  Call call("allocate", device, message);
  call.entry.count = static_cast<int64_t>(bytes);
  return call.Do([&] {
    const Outcome outcome = Allocate(device, bytes, memory);
    call.entry.out = *memory;
    return outcome;
  });
}

// A failed device, which touches nothing any more, is one whose streams have come to rest.
void ReleaseQuietly(int32_t device, void* memory) {
  if (HasFailed(device)) DrainDevice(device);
  Release(device, memory);
}

void ReleaseOn(int32_t device, void* memory) {
  Call call("release", device, nullptr);
  call.entry.out = memory;
  Log(call.entry);
  ReleaseQuietly(device, memory);
}

int32_t TransferOn(int32_t device, void* to, const void* from, size_t bytes, char* message) {
  Call call("transfer", device, message);
  call.entry.in = from;
  call.entry.out = to;
  call.entry.count = static_cast<int64_t>(bytes);
  return call.Do([&]() -> Outcome {
    const bool writes = Locate(to) >= 0;
    for (const void* const side : {static_cast<const void*>(to), from}) {
      if (writes ? Locate(side) < 0 : side == to) continue;  // the host's
      if (Outcome checked = CheckRange(device, side, bytes, 1); !checked.ok()) return checked;
    }
    if (bytes > 0) memcpy(to, from, bytes);
    return {};
  });
}

// ---- kernels ----

int32_t CopyOn(int32_t device, void* handle, const rueda_cuda_copy* copy, char* message) {
  Call call("copy", device, message);
  call.entry.count = static_cast<int64_t>(copy->count);
  call.entry.dtype = copy->dtype;
  call.entry.reduce_op = copy->reduce_op;
  call.entry.factor = copy->factor;
  if (copy->count > 0) {
    call.entry.in = copy->segments[0].from;
    call.entry.out = copy->segments[0].to;
  }
  return call.On(
      handle, [&](const std::shared_ptr<Stream>& stream) { return EnqueueCopy(*stream, *copy); });
}

int32_t ReduceOn(int32_t device, void* handle, const rueda_cuda_reduce* reduce, char* message) {
  Call call("reduce", device, message);
  call.entry.in = reduce->source_count == 0 ? nullptr : reduce->sources[0];
  call.entry.out = reduce->destination;
  call.entry.count = reduce->count;
  call.entry.dtype = reduce->dtype;
  call.entry.reduce_op = reduce->reduce_op;
  return call.On(handle, [&](const std::shared_ptr<Stream>& stream) {
    return EnqueueReduce(*stream, *reduce);
  });
}

int32_t CodecOn(const char* function, Coding coding, int32_t device, void* handle,
                const rueda_cuda_codec* codec, char* message) {
  Call call(function, device, message);
  call.entry.count = static_cast<int64_t>(codec->count);
  call.entry.dtype = codec->dtype;
  if (codec->count > 0) {
    call.entry.in = codec->ranges[0].from;
    call.entry.out = codec->ranges[0].to;
  }
  return call.On(handle, [&](const std::shared_ptr<Stream>& stream) {
    return EnqueueCodec(*stream, coding, *codec);
  });
}
int32_t EncodeOn(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message) {
  return CodecOn("encode", Coding::kEncode, device, stream, codec, message);
}
int32_t CombineOn(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message) {
  return CodecOn("combine", Coding::kCombine, device, stream, codec, message);
}
int32_t DecodeOn(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message) {
  return CodecOn("decode", Coding::kDecode, device, stream, codec, message);
}

// ---- communicators ----

int32_t MakeId(rueda_cuda_id* id, char* message) {
  return Call("make_id", -1, message).Do([&] { return StartHub(id); });
}

int32_t Connect(const rueda_cuda_id* id, int32_t members, int32_t self, int32_t device,
                rueda_cuda_communicator** communicator, char* message) {
  *communicator = nullptr;
  Call call("connect", device, message);
  call.entry.count = members;
  call.entry.member = self;
  return call.Do([&] {
    std::shared_ptr<Communicator> made;
    Outcome outcome = Communicator::Connect(*id, members, self, device, &made);
    if (outcome.ok()) {
      call.entry.communicator = made->number;
      *communicator = new rueda_cuda_communicator{std::move(made)};
    }
    return outcome;
  });
}

// The parent's number is what the log has; the child's is in `count`, 0 if there is none.
int32_t Split(rueda_cuda_communicator* parent, int32_t color, int32_t key,
              rueda_cuda_communicator** communicator, char* message) {
  *communicator = nullptr;
  Call call("split", parent, message);
  return call.Do([&]() -> Outcome {
    if (Outcome usable = parent->it->Usable(); !usable.ok()) return usable;
    std::shared_ptr<Communicator> made;
    Outcome outcome = parent->it->Split(color, key, &made);
    if (made != nullptr) {
      call.entry.count = made->number;
      *communicator = new rueda_cuda_communicator{std::move(made)};
    }
    return outcome;
  });
}

int32_t Await(rueda_cuda_communicator* communicator, int64_t timeout, char* message) {
  Call call("await", communicator, message);
  return call.Do([&] { return communicator->it->Await(timeout); });
}

int32_t AllocateBuffer(rueda_cuda_communicator* communicator, size_t bytes, void** memory,
                       char* message) {
  Call call("allocate_buffer", communicator, message);
  call.entry.count = static_cast<int64_t>(bytes);
  return call.Do([&]() -> Outcome {
    if (Outcome usable = communicator->it->Usable(); !usable.ok()) return usable;
    const Outcome outcome = communicator->it->AllocateBuffer(bytes, memory);
    call.entry.out = *memory;
    return outcome;
  });
}

void ReleaseBuffer(int32_t device, rueda_cuda_communicator* communicator, void* memory) {
  Call call("release_buffer", device, nullptr);
  if (communicator != nullptr) call.entry.communicator = communicator->it->number;
  call.entry.out = memory;
  Log(call.entry);
  if (communicator == nullptr) return ReleaseQuietly(device, memory);
  communicator->it->ReleaseBuffer(memory);
}

int32_t SupportsOn(rueda_cuda_communicator*, int32_t dtype, int32_t reduce_op) {
  return Supports(dtype, reduce_op);
}

int32_t Begin(rueda_cuda_communicator* communicator, char* message) {
  return Call("begin", communicator, message).Do([&] { return communicator->it->Begin(); });
}

int32_t End(rueda_cuda_communicator* communicator, char* message) {
  return Call("end", communicator, message).Do([&] { return communicator->it->End(); });
}

int32_t Enqueue(const char* function, rueda_cuda_communicator* communicator, void* handle,
                const Transfer& transfer, char* message) {
  Call call(function, communicator, message);
  const Description& what = transfer.what;
  call.entry.in = transfer.in;
  call.entry.out = transfer.out;
  call.entry.count = what.count;
  call.entry.dtype = what.dtype;
  call.entry.reduce_op = what.reduce_op;
  call.entry.peer = what.peer;
  call.entry.factor = what.factor;
  return call.On(handle, [&](const std::shared_ptr<Stream>& stream) -> Outcome {
    Communicator& it = *communicator->it;
    if (Outcome usable = it.Usable(); !usable.ok()) return usable;
    if (what.count < 0) return InvalidArgument("a negative count");
    if (what.peer < -1 || what.peer >= it.members()) return InvalidArgument("no such member");
    if (what.dtype >= 0 && !Supports(what.dtype, what.reduce_op)) {
      return InvalidArgument(absl::StrCat("NCCL does not reduce dtype ", what.dtype,
                                          " with operation ", what.reduce_op));
    }
    if (what.factor != 1 && (!IsFloating(static_cast<DType>(what.dtype)) ||
                             static_cast<ReduceOp>(what.reduce_op) != ReduceOp::kSum)) {
      return InvalidArgument("only sums of floating types have a factor");
    }
    return it.Enqueue(stream, transfer);
  });
}

// With the bytes that this member gives and gets, in elements.
Transfer Reduction(Collective kind, const void* in, void* out, int64_t count, int32_t dtype,
                   int32_t reduce_op, double factor) {
  const size_t size = IsDType(dtype) ? DTypeSize(static_cast<DType>(dtype)) : 0;
  const uint64_t bytes = static_cast<uint64_t>(count) * size;
  return {{kind, dtype, reduce_op, -1, count, factor, bytes, bytes}, in, out};
}

int32_t Allreduce(rueda_cuda_communicator* communicator, void* stream, const void* in, void* out,
                  int64_t count, int32_t dtype, int32_t reduce_op, double factor, char* message) {
  const Transfer transfer =
      Reduction(Collective::kAllreduce, in, out, count, dtype, reduce_op, factor);
  return Enqueue("allreduce", communicator, stream, transfer, message);
}

int32_t ReduceTo(rueda_cuda_communicator* communicator, void* stream, const void* in, void* out,
                 int64_t count, int32_t dtype, int32_t reduce_op, double factor, int32_t root,
                 char* message) {
  Transfer transfer = Reduction(Collective::kReduceTo, in, out, count, dtype, reduce_op, factor);
  transfer.what.peer = root;
  if (root != communicator->it->self()) transfer.what.out_bytes = 0;
  return Enqueue("reduce_to", communicator, stream, transfer, message);
}

int32_t Reducescatter(rueda_cuda_communicator* communicator, void* stream, const void* in,
                      void* out, int64_t count, int32_t dtype, int32_t reduce_op, double factor,
                      char* message) {
  Transfer transfer =
      Reduction(Collective::kReducescatter, in, out, count, dtype, reduce_op, factor);
  transfer.what.in_bytes *= static_cast<uint64_t>(communicator->it->members());
  return Enqueue("reducescatter", communicator, stream, transfer, message);
}

Transfer Bytes(Collective kind, int32_t peer, const void* in, void* out, size_t bytes) {
  const uint64_t in_bytes = kind == Collective::kReceive ? 0 : bytes;
  const uint64_t out_bytes = kind == Collective::kSend ? 0 : bytes;
  return {{kind, -1, -1, peer, static_cast<int64_t>(bytes), 1, in_bytes, out_bytes}, in, out};
}

int32_t Allgather(rueda_cuda_communicator* communicator, void* stream, const void* in, void* out,
                  size_t bytes, char* message) {
  Transfer transfer = Bytes(Collective::kAllgather, -1, in, out, bytes);
  transfer.what.out_bytes *= static_cast<uint64_t>(communicator->it->members());
  return Enqueue("allgather", communicator, stream, transfer, message);
}

int32_t Broadcast(rueda_cuda_communicator* communicator, void* stream, const void* in, void* out,
                  size_t bytes, int32_t root, char* message) {
  Transfer transfer = Bytes(Collective::kBroadcast, root, in, out, bytes);
  if (root != communicator->it->self()) transfer.what.in_bytes = 0;
  return Enqueue("broadcast", communicator, stream, transfer, message);
}

int32_t Send(rueda_cuda_communicator* communicator, void* stream, const void* data, size_t bytes,
             int32_t peer, char* message) {
  const Transfer transfer = Bytes(Collective::kSend, peer, data, nullptr, bytes);
  return Enqueue("send", communicator, stream, transfer, message);
}

int32_t Receive(rueda_cuda_communicator* communicator, void* stream, void* data, size_t bytes,
                int32_t peer, char* message) {
  const Transfer transfer = Bytes(Collective::kReceive, peer, nullptr, data, bytes);
  return Enqueue("receive", communicator, stream, transfer, message);
}

int32_t Check(rueda_cuda_communicator* communicator, char* message) {
  const Outcome failure = TakeFailure("check", communicator->it->device);
  return Report(failure.ok() ? communicator->it->Check() : failure, message);
}

void Abort(rueda_cuda_communicator* communicator) {
  Log(Call("abort", communicator, nullptr).entry);
  communicator->it->Abort();
}

void Destroy(rueda_cuda_communicator* communicator) {
  Log(Call("destroy", communicator, nullptr).entry);
  communicator->it->Destroy();
  delete communicator;
}

// ---- the tests' table ----

// Streams that a test names wrongly are the test's bug: it dies with a null pointer.
void HoldStream(int32_t device, void* stream) {
  Hold(*FindStream(device, stream), true);
}
void ReleaseStream(int32_t device, void* stream) {
  Hold(*FindStream(device, stream), false);
}
void StepStream(int32_t device, void* stream, int32_t tasks) {
  Step(*FindStream(device, stream), tasks);
}
int32_t PendingOn(int32_t device, void* stream) {
  return Pending(*FindStream(device, stream));
}
int32_t StreamNumber(int32_t device, void* stream) {
  return NumberOf(*FindStream(device, stream));
}
void SetCapturingOn(int32_t device, void* stream, int32_t capturing) {
  SetCapturing(*FindStream(device, stream), capturing != 0);
}
void EnqueueOn(int32_t device, void* stream, void (*fn)(void* user), void* user) {
  EnqueueAlways(*FindStream(device, stream), [fn, user] { fn(user); });
}
void DrainStream(int32_t device, void* stream) {
  Drain(*FindStream(device, stream));
}
void FailNextCall(const char* function, int32_t device, int32_t skip, int32_t status,
                  const char* message) {
  FailNext(function, device, skip, {static_cast<absl::StatusCode>(status), message});
}
void FailDeviceWith(int32_t device, const char* message) {
  FailDevice(device, message);
}
void KillMember(int32_t number) {
  KillMembers(number, -1);
}
void KillDevice(int32_t device) {
  KillMembers(-1, device);
}
void SetSplitWorks(int32_t works) {
  SetSplit(works != 0);
}
void Reset() {
  ResetMachine();
  ResetCommunicators();
}
void ReadLogEntry(size_t index, fake_cuda_call* call) {
  *call = LogEntry(index);
}

}  // namespace
}  // namespace rueda::fake_cuda

#define FAKE_CUDA_EXPORT __attribute__((visibility("default")))

extern "C" FAKE_CUDA_EXPORT const rueda_cuda* rueda_module_table() {
  using namespace rueda::fake_cuda;  // NOLINT: this is its table
  static const rueda_cuda table = {
      .size = sizeof(rueda_cuda),
      .abi = RUEDA_CUDA_ABI,
      .name = "nccl",
      .probe = &Probe,
      .describe = &Describe,
      .locate = &LocateMemory,
      .open_stream = &OpenStreamOn,
      .close_stream = &CloseStreamOn,
      .is_capturing = &IsCapturingOn,
      .open_event = &OpenEventOn,
      .close_event = &CloseEventOn,
      .record = &RecordOn,
      .wait = &WaitOn,
      .synchronize = &SynchronizeWith,
      .allocate = &AllocateOn,
      .release = &ReleaseOn,
      .transfer = &TransferOn,
      .copy = &CopyOn,
      .reduce = &ReduceOn,
      .encode = &EncodeOn,
      .combine = &CombineOn,
      .decode = &DecodeOn,
      .make_id = &MakeId,
      .connect = &Connect,
      .split = &Split,
      .await = &Await,
      .allocate_buffer = &AllocateBuffer,
      .release_buffer = &ReleaseBuffer,
      .supports = &SupportsOn,
      .begin = &Begin,
      .end = &End,
      .allreduce = &Allreduce,
      .reduce_to = &ReduceTo,
      .reducescatter = &Reducescatter,
      .allgather = &Allgather,
      .broadcast = &Broadcast,
      .send = &Send,
      .receive = &Receive,
      .check = &Check,
      .abort = &Abort,
      .destroy = &Destroy,
  };
  return &table;
}

extern "C" FAKE_CUDA_EXPORT const fake_cuda_control* fake_cuda_controls() {
  using namespace rueda::fake_cuda;  // NOLINT: this is its table
  static const fake_cuda_control table = {
      .size = sizeof(fake_cuda_control),
      .hold = &HoldStream,
      .release = &ReleaseStream,
      .step = &StepStream,
      .pending = &PendingOn,
      .stream_number = &StreamNumber,
      .event_number = &EventNumber,
      .set_capturing = &SetCapturingOn,
      .enqueue = &EnqueueOn,
      .drain = &DrainStream,
      .fail_next = &FailNextCall,
      .fail_device = &FailDeviceWith,
      .kill_member = &KillMember,
      .kill_device = &KillDevice,
      .refuse = &Refuse,
      .set_split = &SetSplitWorks,
      .reset = &Reset,
      .start_log = &StartLog,
      .log_size = &LogSize,
      .log_entry = &ReadLogEntry,
      .live_streams = &LiveStreams,
      .live_events = &LiveEvents,
      .live_communicators = &LiveCommunicators,
      .live_bytes = &LiveBytes,
  };
  return &table;
}
