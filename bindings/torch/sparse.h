// The sum or average of sparse tensors: a group of allgathers, and then everybody adds up.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "bindings/torch/operation.h"

namespace rueda::libtorch {

// Thread-safe, as Operation is.
class SparseOperation {
 public:
  // Of a call for an allreduce of one sparse COO tensor, by Sum or Average. What does not fit
  // an allreduce of a dense tensor under the same name is an error on all ranks.
  static std::shared_ptr<SparseOperation> Submit(rueda_context* context, const Call& call);

  bool Poll() { return parts_->Poll(); }
  // Of what the ranks exchange.
  bool WaitFor(int64_t timeout_ns) { return parts_->WaitFor(timeout_ns); }
  void Then(std::function<void(const Error*)> callback) { parts_->Then(std::move(callback)); }
  // A coalesced tensor, the same bits on all ranks. RUEDA_INVALID_ARGUMENT, on all of them: their
  // tensors differ in shape.
  at::Tensor Wait();

 private:
  SparseOperation(rueda_context* context, const Call& call, const at::Tensor& tensor);
  void CheckShapes(const at::Tensor& shapes) const;

  const std::vector<int64_t> shape_;
  const std::string label_;
  double factor_ = 1;    // on the sum
  int64_t divisor_ = 0;  // of an average of integers; 0: of something else
  std::shared_ptr<Operation> parts_;

  std::mutex mutex_;
  at::Tensor result_;  // guarded by mutex_; undefined until somebody has waited
};

}  // namespace rueda::libtorch
