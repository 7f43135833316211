#include "ops/nccl/device_compression.h"

#include <algorithm>
#include <memory>

#include "ops/compression/codec.h"
#include "ops/nccl/cuda_library.h"

namespace rueda {
namespace {

// What a range of a tensor has lost, on its device.
class ValuesOnDevice : public ValuesElsewhere {
 public:
  ValuesOnDevice(const rueda_cuda* cuda, int device, int64_t elements)
      : cuda_(cuda), device_(device), elements_(elements) {}
  ~ValuesOnDevice() override {
    if (memory_ != nullptr) cuda_->release(device_, memory_);
  }

  absl::Status Allocate() { return CallCuda(cuda_->allocate, device_, bytes(), &memory_); }
  absl::Status Fill(const std::vector<float>& values) {
    return CallCuda(cuda_->transfer, device_, memory_, static_cast<const void*>(values.data()),
                    bytes());
  }
  absl::StatusOr<std::vector<float>> Fetch() const override {
    std::vector<float> values(static_cast<size_t>(elements_));
    RUEDA_RETURN_IF_ERROR(CallCuda(cuda_->transfer, device_, static_cast<void*>(values.data()),
                                   static_cast<const void*>(memory_), bytes()));
    return values;
  }
  bool IsOf(int device, int64_t elements) const {
    return device_ == device && elements_ == elements;
  }
  float* data() const { return static_cast<float*>(memory_); }

 private:
  size_t bytes() const { return static_cast<size_t>(elements_) * sizeof(float); }

  const rueda_cuda* const cuda_;
  const int device_;
  const int64_t elements_;
  void* memory_ = nullptr;
};

}  // namespace

bool HasDeviceCodec(Compressor compressor) {
  return compressor == Compressor::kFloat16 || compressor == Compressor::kBfloat16 ||
         compressor == Compressor::kInt8;
}

void DeviceCompression::SetCommunicator(rueda_cuda_communicator* communicator) {
  communicator_ = communicator;
  for (DeviceBuffer* buffer : {&coded_, &received_, &sums_}) buffer->SetCommunicator(communicator);
}

void DeviceCompression::ForgetCommunicator() {
  communicator_ = nullptr;
  for (DeviceBuffer* buffer : {&coded_, &received_, &sums_}) buffer->ForgetCommunicator();
}

void DeviceCompression::ReleaseBuffers() {
  for (DeviceBuffer* buffer : {&coded_, &received_, &sums_}) buffer->Release();
}

absl::Status DeviceCompression::Enqueue(const BucketOperation& operation, void* stream) {
  operation_ = operation;
  stream_ = stream;
  Plan();
  RUEDA_ASSIGN_OR_RETURN(char* const coded, coded_.Reserve(ranges_.bytes_of_all()));
  RUEDA_ASSIGN_OR_RETURN(char* const received, received_.Reserve(BytesOf(self_) * live_));
  RUEDA_ASSIGN_OR_RETURN(char* const sums, sums_.Reserve(BytesOf(self_)));
  if (!operation_.IsAbsent(self_)) RUEDA_RETURN_IF_ERROR(Encode(coded));
  RUEDA_RETURN_IF_ERROR(Exchange(coded, received));
  RUEDA_RETURN_IF_ERROR(Combine(received, sums));
  if (scatters_) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(Gather(sums, coded));
  return Decode(coded);
}

void DeviceCompression::Plan() {
  live_ = members_ - static_cast<int>(operation_.absent.size());
  scatters_ = operation_.kind == OpKind::kReducescatter;
  sizes_.clear();
  for (const Piece& piece : operation_.pieces) {
    sizes_.push_back({piece.elements, piece.identity});
  }
  ranges_.Cut(operation_.compression.compressor, sizes_,
              scatters_ ? operation_.counts : absl::Span<const int64_t>(), members_);
  begins_.assign(1, 0);
  for (const int64_t bytes : ranges_.bytes()) begins_.push_back(begins_.back() + bytes);
}

absl::Status DeviceCompression::Run(decltype(rueda_cuda::encode) kernel, rueda_cuda_codec codec) {
  if (work_.empty()) return absl::OkStatus();
  codec.ranges = work_.data();
  codec.count = work_.size();
  codec.compressor = static_cast<int32_t>(operation_.compression.compressor);
  codec.dtype = static_cast<int32_t>(operation_.dtype);
  return CallCuda(kernel, device_, stream_, static_cast<const rueda_cuda_codec*>(&codec));
}

// What is remembered of a range. Once it is on the device it stays there.
absl::StatusOr<float*> DeviceCompression::ValuesOf(Residual* residual, int64_t begin,
                                                   int64_t elements) {
  auto* found = static_cast<ValuesOnDevice*>(residual->elsewhere.get());
  if (found != nullptr && residual->begin == begin && found->IsOf(device_, elements)) {
    return found->data();
  }
  auto made = std::make_shared<ValuesOnDevice>(&cuda_, device_, elements);
  RUEDA_RETURN_IF_ERROR(made->Allocate());
  if (residual->begin == begin && residual->values.size() == static_cast<size_t>(elements)) {
    RUEDA_RETURN_IF_ERROR(made->Fill(residual->values));  // it was loaded
  } else {
    const rueda_cuda_segment zeros = {nullptr, made->data(), elements};
    const rueda_cuda_copy fill = {&zeros, 1, static_cast<int32_t>(DType::kFloat32),
                                  static_cast<int32_t>(ReduceOp::kSum), 1};
    RUEDA_RETURN_IF_ERROR(CallCuda(cuda_.copy, device_, stream_, &fill));
  }
  residual->begin = begin;
  residual->values = {};
  residual->elsewhere = made;
  return made->data();
}

absl::Status DeviceCompression::Encode(char* coded) {
  work_.clear();
  for (const CodedRange& range : ranges_.all()) {
    const Piece& piece = operation_.pieces[range.operand];
    float* residual = nullptr;
    if (Remembers(piece)) {
      RUEDA_ASSIGN_OR_RETURN(residual, ValuesOf(&piece.state->sent, 0, piece.elements));
      residual += range.begin;
    }
    const char* const from = static_cast<const char*>(piece.input) +
                             static_cast<size_t>(range.begin) * DTypeSize(operation_.dtype);
    work_.push_back({from, coded, residual, range.elements});
    coded += CodedBytes(operation_.compression.compressor, range.elements);
  }
  rueda_cuda_codec codec = {};
  codec.prescale = operation_.scaling.prescale;
  return Run(cuda_.encode, codec);
}

absl::Status DeviceCompression::CopyBytes(const char* from, char* to, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const rueda_cuda_segment segment = {from, to, bytes};
  const rueda_cuda_copy copy = {&segment, 1, static_cast<int32_t>(DType::kUInt8),
                                static_cast<int32_t>(ReduceOp::kNone), 1};
  return CallCuda(cuda_.copy, device_, stream_, &copy);
}

// Everybody's range of what this member adds up, in the order of members.
absl::Status DeviceCompression::Exchange(const char* coded, char* received) {
  const int64_t own = BytesOf(self_);
  const bool gives = !operation_.IsAbsent(self_);
  bool grouped = false;
  const auto begin = [&]() -> absl::Status {
    if (std::exchange(grouped, true)) return absl::OkStatus();
    return CallCuda(cuda_.begin, communicator_);
  };
  for (int peer = 0; peer < members_; ++peer) {
    if (peer != self_ && gives && BytesOf(peer) > 0) {
      RUEDA_RETURN_IF_ERROR(begin());
      RUEDA_RETURN_IF_ERROR(
          CallCuda(cuda_.send, communicator_, stream_,
                   static_cast<const void*>(coded + begins_[static_cast<size_t>(peer)]),
                   static_cast<size_t>(BytesOf(peer)), peer));
    }
    if (operation_.IsAbsent(peer) || own == 0) continue;
    if (peer != self_) {
      RUEDA_RETURN_IF_ERROR(begin());
      RUEDA_RETURN_IF_ERROR(CallCuda(cuda_.receive, communicator_, stream_,
                                     static_cast<void*>(received), static_cast<size_t>(own), peer));
    }
    received += own;
  }
  if (grouped) RUEDA_RETURN_IF_ERROR(CallCuda(cuda_.end, communicator_));
  if (!gives || own == 0) return absl::OkStatus();
  int before = 0;
  for (int peer = 0; peer < self_; ++peer) before += !operation_.IsAbsent(peer);
  return CopyBytes(coded + begins_[static_cast<size_t>(self_)], received - own * (live_ - before),
                   own);
}

absl::Status DeviceCompression::Combine(const char* received, char* sums) {
  work_.clear();
  for (const CodedRange& range : ranges_.of(self_)) {
    const Piece& piece = operation_.pieces[range.operand];
    const int64_t bytes = CodedBytes(operation_.compression.compressor, range.elements);
    float* residual = nullptr;
    void* to = sums;
    if (scatters_) {
      to = piece.output;
    } else if (Remembers(piece)) {
      RUEDA_ASSIGN_OR_RETURN(residual, ValuesOf(&piece.state->sums, range.begin, range.elements));
    }
    if (to != nullptr) work_.push_back({received, to, residual, range.elements});
    received += bytes;
    sums += bytes;
  }
  rueda_cuda_codec codec = {};
  codec.sources = static_cast<size_t>(live_);
  codec.stride = static_cast<size_t>(BytesOf(self_));
  codec.divisor = static_cast<double>(operation_.scaling.divisor);
  codec.postscale = operation_.scaling.postscale;
  codec.decoded = scatters_ ? 1 : 0;
  return Run(cuda_.combine, codec);
}

absl::Status DeviceCompression::Gather(const char* sums, char* coded) {
  const int64_t own = BytesOf(self_);
  const bool gets = !operation_.IsAbsent(self_);
  bool grouped = false;
  const auto begin = [&]() -> absl::Status {
    if (std::exchange(grouped, true)) return absl::OkStatus();
    return CallCuda(cuda_.begin, communicator_);
  };
  for (int peer = 0; peer < members_; ++peer) {
    if (peer == self_) continue;
    if (!operation_.IsAbsent(peer) && own > 0) {
      RUEDA_RETURN_IF_ERROR(begin());
      RUEDA_RETURN_IF_ERROR(CallCuda(cuda_.send, communicator_, stream_,
                                     static_cast<const void*>(sums), static_cast<size_t>(own),
                                     peer));
    }
    if (gets && BytesOf(peer) > 0) {
      RUEDA_RETURN_IF_ERROR(begin());
      RUEDA_RETURN_IF_ERROR(CallCuda(cuda_.receive, communicator_, stream_,
                                     static_cast<void*>(coded + begins_[static_cast<size_t>(peer)]),
                                     static_cast<size_t>(BytesOf(peer)), peer));
    }
  }
  if (grouped) RUEDA_RETURN_IF_ERROR(CallCuda(cuda_.end, communicator_));
  if (!gets) return absl::OkStatus();
  return CopyBytes(sums, coded + begins_[static_cast<size_t>(self_)], own);
}

absl::Status DeviceCompression::Decode(const char* coded) {
  work_.clear();
  for (const CodedRange& range : ranges_.all()) {
    const Piece& piece = operation_.pieces[range.operand];
    if (piece.output != nullptr) {
      char* const to = static_cast<char*>(piece.output) +
                       static_cast<size_t>(range.begin) * DTypeSize(operation_.dtype);
      work_.push_back({coded, to, nullptr, range.elements});
    }
    coded += CodedBytes(operation_.compression.compressor, range.elements);
  }
  return Run(cuda_.decode, {});
}

}  // namespace rueda
