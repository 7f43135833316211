#include "bindings/torch/sparse.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <sstream>

namespace rueda::libtorch {
namespace {

std::string Label(const Call& call) {
  return call.name.empty() ? "the sparse tensor" : "tensor '" + call.name + "'";
}

// An average whose sum is to be exact, as that of a dense tensor is.
bool IsOfIntegers(const Call& call) {
  const at::Tensor& tensor = call.tensors.front();
  return call.op == Average && !tensor.is_floating_point() && !tensor.is_complex();
}

at::Tensor Checked(const Call& call) {
  const at::Tensor& tensor = call.tensors.front();
  if (!tensor.defined()) throw Error(RUEDA_INVALID_ARGUMENT, Label(call) + " is undefined");
  if (tensor.layout() != at::kSparse) {
    throw Error(RUEDA_INVALID_ARGUMENT, Label(call) + " is not a sparse COO tensor");
  }
  if (call.op != Sum && call.op != Average) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                Label(call) +
                    " is sparse, and what is not there counts as 0: only Sum and "
                    "Average make sense of that");
  }
  const at::ScalarType type = tensor.scalar_type();
  if (call.op == Average && (type == at::kBool || type == at::kUInt64)) {
    throw Error(RUEDA_INVALID_ARGUMENT, Label(call) + " is sparse and of type " +
                                            at::toString(type) + ", which has no average: use Sum");
  }
  // Integers are added up at the end alone, where they don't wrap around.
  if (IsOfIntegers(call)) return tensor;
  const at::NoGradGuard no_grad;
  return tensor.coalesce();
}

}  // namespace

SparseOperation::SparseOperation(rueda_context* context, const Call& call, const at::Tensor& tensor)
    : shape_(tensor.sizes().vec()), label_(Label(call)) {
  // The first part has the tensor's own name, so that a dense tensor elsewhere does not fit.
  static constexpr std::array<const char*, 3> kSuffixes = {"", ".values", ".shape"};
  const at::NoGradGuard no_grad;
  at::Tensor values = tensor._values();
  if (call.prescale != 1) values = values.mul(call.prescale);
  const std::array<at::Tensor, 3> parts = {
      tensor._indices().t(), values,
      at::tensor(shape_, at::kLong).unsqueeze(0).to(tensor.device())};
  factor_ = call.postscale;
  const int ranks = rueda_process_set_size(context, call.process_set.id);
  if (IsOfIntegers(call)) {
    divisor_ = ranks;
  } else if (call.op == Average) {
    factor_ /= ranks;
  }
  parts_ = Operation::Submit(context, {.kind = RUEDA_ALLGATHER,
                                       .tensors = parts,
                                       .grouped = true,
                                       .name = call.name,
                                       .process_set = call.process_set,
                                       .suffixes = kSuffixes});
}

std::shared_ptr<SparseOperation> SparseOperation::Submit(rueda_context* context, const Call& call) {
  return std::shared_ptr<SparseOperation>(new SparseOperation(context, call, Checked(call)));
}

// Every rank has all of them, and says the same.
void SparseOperation::CheckShapes(const at::Tensor& shapes) const {
  for (int64_t i = 1; i < shapes.size(0); ++i) {
    if (shapes[i].equal(shapes[0])) continue;
    const auto text = [&](int64_t row) {
      std::ostringstream out;
      out << c10::IntArrayRef(shapes[row].const_data_ptr<int64_t>(), shapes.size(1));
      return out.str();
    };
    throw Error(RUEDA_INVALID_ARGUMENT,
                label_ + " has shape " + text(0) + " on the first rank of its process set, and " +
                    text(i) + " on the one with index " + std::to_string(i));
  }
}

at::Tensor SparseOperation::Wait() {
  const std::vector<at::Tensor>& parts = parts_->Wait();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (result_.defined()) return result_;
  CheckShapes(parts[2].cpu());
  const at::NoGradGuard no_grad;
  if (divisor_ > 0) {
    const at::Tensor sum =
        at::_sparse_coo_tensor_unsafe(parts[0].t(), parts[1].to(at::kLong), shape_).coalesce();
    const at::Tensor mean = sum._values().div(divisor_, "trunc").to(parts[1].scalar_type());
    return result_ = at::_sparse_coo_tensor_unsafe(sum._indices(), mean, shape_)._coalesced_(true);
  }
  at::Tensor sum = at::_sparse_coo_tensor_unsafe(parts[0].t(), parts[1], shape_).coalesce();
  if (factor_ != 1) sum._values().mul_(factor_);
  return result_ = sum;
}

SparseHandle sparse_allreduce_async(const at::Tensor& tensor, const SparseOptions& options) {
  return SparseHandle(SparseOperation::Submit(CurrentContext(), {.tensors = tensor,
                                                                 .name = options.name,
                                                                 .process_set = options.process_set,
                                                                 .op = options.op}));
}

at::Tensor sparse_allreduce(const at::Tensor& tensor, const SparseOptions& options) {
  return synchronize(sparse_allreduce_async(tensor, options));
}

SparseOperation& SparseHandle::operation() const {
  if (operation_ == nullptr) {
    throw Error(RUEDA_INVALID_ARGUMENT, "an empty handle: nothing was submitted with it");
  }
  return *operation_;
}

bool internal::WaitFor(SparseOperation& operation, int64_t timeout_ns) {
  return operation.WaitFor(timeout_ns);
}

void internal::Then(SparseOperation& operation, std::function<void(const Error*)> callback) {
  operation.Then(std::move(callback));
}

bool poll(const SparseHandle& handle) {
  return handle.operation().Poll();
}

at::Tensor synchronize(const SparseHandle& handle) {
  return handle.operation().Wait();
}

}  // namespace rueda::libtorch
