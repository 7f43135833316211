// Memory and streams of a CUDA device for the benchmarks, by the table of librueda_nccl.so: they
// need no CUDA to be built.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ops/nccl/cuda_abi.h"
#include "rueda/rueda.h"

namespace rueda::bench {

// The context's device. Ends the program, with one line, when there is none.
class Device {
 public:
  explicit Device(rueda_context* context);

  int index() const { return index_; }
  rueda_device rueda() const { return {RUEDA_CUDA, index_}; }
  const rueda_cuda& cuda() const { return *cuda_; }
  const std::string& name() const { return name_; }

  // A stream of the benchmark's own; and waiting for all that it has been given.
  void* NewStream() const;
  void Drain(void* stream) const;
  void CloseStream(void* stream) const;

  void* Allocate(size_t bytes) const;
  void Release(void* memory) const { cuda_->release(index_, memory); }
  void Upload(void* to, const void* from, size_t bytes) const;
  void Download(void* to, const void* from, size_t bytes) const;

 private:
  const rueda_cuda* cuda_;
  int index_;
  std::string name_;
};

}  // namespace rueda::bench
