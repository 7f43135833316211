// Compressed sums of tensors on a device: what ops/compression/scatter_reduce does on the CPU, with
// the same bits, as work on a stream. Each member gets its share of everybody's tensors, encoded by
// a kernel; another decodes and adds them up and encodes the sum, which goes to everybody.
#pragma once

#include <vector>

#include "ops/backend/communicator.h"
#include "ops/compression/coded_ranges.h"
#include "ops/compression/state.h"
#include "ops/nccl/cuda_abi.h"
#include "ops/nccl/device_buffer.h"

namespace rueda {

// Whether there are kernels for it.
bool HasDeviceCodec(Compressor compressor);

class DeviceCompression {
 public:
  DeviceCompression(const rueda_cuda* cuda, int device, int members, int self)
      : cuda_(*cuda),
        device_(device),
        members_(members),
        self_(self),
        coded_(cuda, device),
        received_(cuda, device),
        sums_(cuda, device) {}

  void SetCommunicator(rueda_cuda_communicator* communicator);
  void ForgetCommunicator();
  void ReleaseBuffers();

  // An allreduce or reducescatter, whose compressor has a codec here.
  absl::Status Enqueue(const BucketOperation& operation, void* stream);

 private:
  using Ranges = absl::Span<const CodedRange>;

  void Plan();
  absl::Status Encode(char* coded);
  absl::Status Exchange(const char* coded, char* received);
  absl::Status Combine(const char* received, char* sums);
  absl::Status Gather(const char* sums, char* coded);
  absl::Status Decode(const char* coded);
  absl::Status Run(decltype(rueda_cuda::encode) kernel, rueda_cuda_codec codec);
  absl::Status CopyBytes(const char* from, char* to, int64_t bytes);
  absl::StatusOr<float*> ValuesOf(Residual* residual, int64_t begin, int64_t elements);
  bool Remembers(const Piece& piece) const {
    return operation_.compression.feedback && piece.state != nullptr;
  }
  int64_t BytesOf(int owner) const { return ranges_.bytes()[static_cast<size_t>(owner)]; }

  const rueda_cuda& cuda_;
  const int device_;
  const int members_;
  const int self_;
  rueda_cuda_communicator* communicator_ = nullptr;
  DeviceBuffer coded_;     // everybody's ranges: what this member brings, then the results
  DeviceBuffer received_;  // this member's range of everybody's
  DeviceBuffer sums_;      // its sums, encoded

  // Of the operation at hand.
  BucketOperation operation_;
  void* stream_ = nullptr;
  int live_ = 0;
  bool scatters_ = false;
  std::vector<CodedRanges::Size> sizes_;
  std::vector<int64_t> begins_;  // by owner, of its bytes
  CodedRanges ranges_;
  std::vector<rueda_cuda_range> work_;
};

}  // namespace rueda
