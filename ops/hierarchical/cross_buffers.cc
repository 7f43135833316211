#include "ops/hierarchical/cross_buffers.h"

#include <cstring>
#include <new>

namespace rueda {
namespace {

// Messages between two hosts match by tag, in order.
uint32_t PartTag(uint64_t block) {
  return static_cast<uint32_t>(block % kRingBlocks);
}
uint32_t ResultTag(uint64_t block) {
  return static_cast<uint32_t>(kRingBlocks + block % kRingBlocks);
}

}  // namespace

CrossBuffers::CrossBuffers(const rueda_module* module, rueda_module_communicator* library,
                           const CutLimits& limits, int host, LocalRing* ring)
    : module_(module), library_(library), limits_(limits), host_(host), ring_(ring) {}

void CrossBuffers::Close() {
  for (Slot& slot : slots_) {
    for (rueda_module_buffer* buffer : {slot.outgoing, slot.incoming, slot.finished}) {
      if (buffer != nullptr) module_->close_buffer(buffer);
    }
    slot = {};
  }
}

// A part for each host, each behind a header.
size_t CrossBuffers::OutgoingBytes() const {
  return limits_.stripe_bytes + static_cast<size_t>(limits_.hosts) * sizeof(CrossHeader);
}

// Where in a slot what comes from a host goes.
size_t CrossBuffers::OffsetOf(int host) const {
  return static_cast<size_t>(host < host_ ? host : host - 1) * IncomingBytes();
}

absl::Status CrossBuffers::Open() {
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  RUEDA_RETURN_IF_ERROR(
      ModuleStatus(*module_, module_->connect(library_, /*peer=*/-1, message), message));
  outgoing_.reset(new (std::nothrow) char[kRingBlocks * OutgoingBytes()]);
  incoming_.reset(
      new (std::nothrow) char[kRingBlocks * static_cast<size_t>(others()) * IncomingBytes()]);
  if (outgoing_ == nullptr || incoming_ == nullptr) {
    return absl::ResourceExhaustedError("no memory for what goes between hosts");
  }
  for (uint64_t block = 0; block < kRingBlocks; ++block) {
    RUEDA_RETURN_IF_ERROR(OpenSlot(block));
    RUEDA_RETURN_IF_ERROR(PostParts(block));
  }
  return absl::OkStatus();
}

absl::Status CrossBuffers::OpenSlot(uint64_t block) {
  const auto open = [&](void* data, size_t bytes, rueda_module_buffer** buffer) {
    char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
    return ModuleStatus(*module_, module_->open_buffer(library_, data, bytes, buffer, message),
                        message);
  };
  Slot& slot = SlotOf(block);
  const size_t incoming = static_cast<size_t>(others()) * IncomingBytes();
  RUEDA_RETURN_IF_ERROR(
      open(outgoing_.get() + block * OutgoingBytes(), OutgoingBytes(), &slot.outgoing));
  RUEDA_RETURN_IF_ERROR(open(incoming_.get() + block * incoming, incoming, &slot.incoming));
  return open(ring_->own_output(block), limits_.stripe_bytes, &slot.finished);
}

char* CrossBuffers::Outgoing(uint64_t block, int i, size_t before) const {
  return outgoing_.get() + block % kRingBlocks * OutgoingBytes() +
         static_cast<size_t>(i + 1) * sizeof(CrossHeader) + before;
}

absl::Status CrossBuffers::SendPart(uint64_t block, int to, int i, size_t before,
                                    CrossHeader header) {
  char* const at = Outgoing(block, i, before) - sizeof header;
  // The same for all whom it goes to; others' may be under way.
  if (memcmp(at, &header, sizeof header) != 0) memcpy(at, &header, sizeof header);
  const size_t offset = static_cast<size_t>(i) * sizeof header + before;
  return Post(SlotOf(block).outgoing, /*sends=*/true, to, PartTag(block), offset,
              sizeof header + header.bytes);
}

const CrossHeader* CrossBuffers::Incoming(uint64_t block, int from) const {
  const size_t slot_bytes = static_cast<size_t>(others()) * IncomingBytes();
  return reinterpret_cast<const CrossHeader*>(incoming_.get() + block % kRingBlocks * slot_bytes +
                                              OffsetOf(from));
}

absl::Status CrossBuffers::AwaitParts(uint64_t block) {
  return Await(SlotOf(block).incoming, static_cast<size_t>(others()), 0);
}

absl::Status CrossBuffers::PostParts(uint64_t block) {
  for (int from = 0; from < limits_.hosts; ++from) {
    if (from == host_) continue;
    RUEDA_RETURN_IF_ERROR(Post(SlotOf(block).incoming, /*sends=*/false, from, PartTag(block),
                               OffsetOf(from), IncomingBytes()));
  }
  return absl::OkStatus();
}

absl::Status CrossBuffers::AwaitPartsSent(uint64_t block) {
  return Await(SlotOf(block).outgoing, 0, static_cast<size_t>(others()));
}

absl::Status CrossBuffers::PostResult(uint64_t block, int from, size_t offset, size_t bytes) {
  return Post(SlotOf(block).finished, /*sends=*/false, from, ResultTag(block), offset, bytes);
}

absl::Status CrossBuffers::SendResult(uint64_t block, int to, size_t offset, size_t bytes) {
  return Post(SlotOf(block).finished, /*sends=*/true, to, ResultTag(block), offset, bytes);
}

absl::Status CrossBuffers::AwaitResults(uint64_t block, size_t receives, size_t sends) {
  return Await(SlotOf(block).finished, receives, sends);
}

absl::Status CrossBuffers::Post(rueda_module_buffer* buffer, bool sends, int host, uint32_t tag,
                                size_t offset, size_t bytes) {
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  const auto post = sends ? module_->post_send : module_->post_receive;
  return ModuleStatus(*module_, post(buffer, host, tag, offset, bytes, message), message);
}

absl::Status CrossBuffers::Await(rueda_module_buffer* buffer, size_t receives, size_t sends) {
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  return ModuleStatus(*module_, module_->await(buffer, receives, sends, message), message);
}

}  // namespace rueda
