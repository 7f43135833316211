// What is enqueued for an operation on a device: packing, NCCL's calls, kernels, unpacking. It
// waits for nothing; everything goes on one stream, one behind the other. Owned and called by the
// device's thread.
#pragma once

#include <vector>

#include "ops/backend/communicator.h"
#include "ops/nccl/cuda_abi.h"
#include "ops/nccl/device_buffer.h"
#include "ops/nccl/device_compression.h"
#include "ops/nccl/reduction_algorithm.h"

namespace rueda {

class DeviceProgram {
 public:
  struct Args {
    const rueda_cuda* cuda = nullptr;
    int device = 0;
    int members = 1;
    int self = 0;
    bool in_rank_order = false;  // reductions are to have the CPU's bits
  };
  explicit DeviceProgram(const Args& args);

  // Once each, before the first operation. A lone member has no communicator.
  void SetStream(void* stream) { stream_ = stream; }
  void SetCommunicator(rueda_cuda_communicator* communicator);
  // It was destroyed; nothing more is enqueued.
  void ForgetCommunicator();
  // Of all but send and recv.
  absl::Status Enqueue(const BucketOperation& operation);
  // Over a communicator of the two: which of its members the other one is.
  absl::Status EnqueuePair(const BucketOperation& operation, rueda_cuda_communicator* pair,
                           int other);
  // After everything on the stream; while the communicator is there, or when it is forgotten.
  void ReleaseBuffers();

 private:
  absl::Status Reduce();
  absl::Status ReduceByNccl(const ReductionAlgorithm& algorithm);
  absl::Status ReduceInRankOrder();
  absl::Status ReducescatterByNccl(const ReductionAlgorithm& algorithm);
  absl::Status Allgather();
  absl::Status Broadcast();
  absl::Status Barrier();
  absl::Status Exchange();

  // Where this member's input lies as one range: the tensor itself, or `buffer` behind a copy.
  absl::StatusOr<char*> Input(double factor, DeviceBuffer* buffer);
  absl::StatusOr<char*> Unwanted();
  // The pieces as one, if they lie one behind the other.
  void Merge();
  void PlanShares();
  absl::Status ExchangeShares(char* input, char* received);
  absl::Status GatherShares(char* result);
  // Copies the ranges that were added.
  void AddCopy(const void* from, void* to, int64_t elements);
  absl::Status Copy(double factor = 1);
  absl::Status Unpack(const char* from);

  template <typename Function, typename... Args_>
  absl::Status Nccl(Function function, Args_... args);
  absl::Status BeginGroup();
  absl::Status EndGroup();
  absl::Status Send(const void* data, int64_t elements, int peer);
  absl::Status Receive(void* data, int64_t elements, int peer);
  int64_t ShareOf(size_t piece, int giver, int taker) const;
  size_t BytesOf(int64_t elements) const { return static_cast<size_t>(elements) * element_bytes_; }
  bool Gives(int member) const { return !operation_.IsAbsent(member); }

  const Args args_;
  const rueda_cuda& cuda_;
  void* stream_ = nullptr;
  rueda_cuda_communicator* communicator_ = nullptr;
  DeviceBuffer packed_;
  DeviceBuffer received_;
  DeviceBuffer scratch_;
  DeviceCompression compression_;

  // Of the operation at hand.
  BucketOperation operation_;
  size_t element_bytes_ = 1;
  std::vector<Piece> pieces_;
  std::vector<int64_t> shares_;  // in elements, by member: what it adds up
  std::vector<int64_t> begins_;  // by member: where that begins; and the end
  std::vector<rueda_cuda_segment> segments_;
  bool grouped_ = false;
};

}  // namespace rueda
