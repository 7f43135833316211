#include "bindings/torch/operation.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

namespace rueda::libtorch {
namespace {

using rueda::detail::Check;

rueda_dtype DTypeOf(const at::Tensor& tensor, const std::string& label) {
  switch (tensor.scalar_type()) {
    case at::kByte:
      return RUEDA_UINT8;
    case at::kChar:
      return RUEDA_INT8;
    case at::kInt:
      return RUEDA_INT32;
    case at::kLong:
      return RUEDA_INT64;
    case at::kHalf:
      return RUEDA_FLOAT16;
    case at::kBFloat16:
      return RUEDA_BFLOAT16;
    case at::kFloat:
      return RUEDA_FLOAT32;
    case at::kDouble:
      return RUEDA_FLOAT64;
    case at::kBool:
      return RUEDA_BOOL;
    default:
      throw Error(RUEDA_UNIMPLEMENTED,
                  label + " is of type " + at::toString(tensor.scalar_type()) +
                      "; Rueda moves Byte, Char, Int, Long, Half, BFloat16, Float, Double and "
                      "Bool: convert it");
  }
}

void CheckTensor(const at::Tensor& tensor, const std::string& label) {
  if (!tensor.defined()) throw Error(RUEDA_INVALID_ARGUMENT, label + " is undefined");
  if (!tensor.device().is_cpu()) {
    throw Error(RUEDA_UNIMPLEMENTED, label + " is on " + tensor.device().str() +
                                         "; this version moves CPU tensors: copy it to the CPU");
  }
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    throw Error(RUEDA_UNIMPLEMENTED, label + " is sparse, nested or of another special layout; " +
                                         "Rueda moves strided tensors: call to_dense(), or make " +
                                         "embeddings with sparse(false)");
  }
}

at::Tensor Contiguous(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_neg()) return tensor;
  const at::NoGradGuard no_grad;
  return tensor.resolve_neg().contiguous();
}

at::Tensor Empty(c10::IntArrayRef shape, at::ScalarType type) {
  // The same kind of tensor whatever the mode of the thread that the library calls back on.
  const c10::InferenceMode no_inference(false);
  return at::empty(shape, at::TensorOptions().dtype(type).device(at::kCPU));
}

// `sizes` belongs to the tensor, which outlives the call that this is for.
rueda_tensor View(void* data, const at::Tensor& tensor, rueda_dtype dtype) {
  return {data,
          {RUEDA_CPU, 0},
          static_cast<int32_t>(tensor.dim()),
          dtype,
          const_cast<int64_t*>(tensor.sizes().data()),
          nullptr,
          0};
}

std::string Label(const Request& request, size_t index) {
  if (!request.grouped)
    return request.name.empty() ? "the tensor" : "tensor '" + request.name + "'";
  return "tensor " + std::to_string(index) + " of the group" +
         (request.name.empty() ? "" : " '" + request.name + "'");
}

}  // namespace

std::shared_ptr<Operation> Operation::Submit(rueda_context* context, const Request& request) {
  std::shared_ptr<Operation> operation(new Operation(context));
  operation->Start(request, /*wait=*/false);
  return operation;
}

std::shared_ptr<Operation> Operation::Execute(rueda_context* context, const Request& request) {
  std::shared_ptr<Operation> operation(new Operation(context));
  operation->Start(request, /*wait=*/true);
  operation->Wait();
  return operation;
}

// Everything is checked, and memory is there, before anything is submitted.
void Operation::Prepare(const Request& request) {
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const at::Tensor& tensor = request.tensors[i];
    const std::string label = Label(request, i);
    CheckTensor(tensor, label);
    DTypeOf(tensor, label);
    at::Tensor input = Contiguous(tensor);
    at::Tensor output;
    if (request.in_place) {
      if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
        throw Error(RUEDA_INVALID_ARGUMENT,
                    label + " can't be changed in place: several of its elements share memory, " +
                        "as in an expanded tensor. Clone it first");
      }
      output = input;
      copies_back_ |= !input.is_same(tensor);
    } else if (request.kind != RUEDA_ALLGATHER) {
      output = Empty(tensor.sizes(), tensor.scalar_type());
    }
    results_.push_back(request.in_place ? tensor : output);
    inputs_.push_back(std::move(input));
    outputs_.push_back(std::move(output));
  }
}

void Operation::Start(const Request& request, bool wait) {
  Prepare(request);
  const size_t count = inputs_.size();
  std::vector<std::string> names;
  std::vector<rueda_tensor> views(2 * count);
  std::vector<rueda_operation> operations(count, RUEDA_OPERATION_INIT);
  for (size_t i = 0; request.grouped && !request.name.empty() && i < count; ++i) {
    names.push_back(request.name + "." + std::to_string(i));
  }
  for (size_t i = 0; i < count; ++i) {
    const rueda_dtype dtype = DTypeOf(inputs_[i], "");
    rueda_operation& operation = operations[i];
    operation.kind = request.kind;
    operation.process_set = request.process_set.id;
    if (!request.name.empty()) {
      operation.name = request.grouped ? names[i].c_str() : request.name.c_str();
    }
    operation.reduce_op = request.op;
    operation.root = request.root;
    operation.prescale = request.prescale;
    operation.postscale = request.postscale;
    operation.input = &views[2 * i];
    if (request.in_place) {
      views[2 * i] = View(inputs_[i].mutable_data_ptr(), inputs_[i], dtype);
    } else {
      views[2 * i] = View(const_cast<void*>(inputs_[i].const_data_ptr()), inputs_[i], dtype);
    }
    if (request.kind == RUEDA_ALLGATHER) {
      operation.allocate = &Operation::Allocate;
      operation.allocate_user = this;
    } else if (!request.in_place) {
      views[2 * i + 1] = View(outputs_[i].mutable_data_ptr(), outputs_[i], dtype);
      operation.output = &views[2 * i + 1];
    }
  }
  if (wait) {
    const rueda_status status =
        rueda_execute(flight_.context, operations.data(), count, RUEDA_FOREVER, &flight_.handle);
    if (flight_.handle == 0) Check(status);
  } else {
    Check(rueda_submit(flight_.context, operations.data(), count, nullptr, &flight_.handle));
  }
  if (!request.in_place) return;
  for (const at::Tensor& output : outputs_) {
    if (!output.is_inference()) output.unsafeGetTensorImpl()->bump_version();
  }
}

void* Operation::Allocate(void* user, int32_t part, const int64_t* shape, int32_t dims) {
  auto* operation = static_cast<Operation*>(user);
  try {
    at::Tensor output = Empty({shape, static_cast<size_t>(dims)},
                              operation->inputs_[static_cast<size_t>(part)].scalar_type());
    return (operation->outputs_[static_cast<size_t>(part)] = std::move(output)).mutable_data_ptr();
  } catch (...) {
    return nullptr;  // which the library reports
  }
}

Operation::~Operation() {
  try {
    Wait();
  } catch (...) {  // nobody is left to hear of it
  }
}

bool Operation::Poll() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // another thread waits for it
  if (ended_) return true;
  int32_t done = 0;
  Check(rueda_poll(flight_.context, flight_.handle, &done));
  return done == 1;
}

const std::vector<at::Tensor>& Operation::Wait() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!ended_) {
    if (flight_.handle == 0) throw Error(RUEDA_INVALID_ARGUMENT, "nothing was submitted");
    std::unique_ptr<Error> error;
    try {
      flight_.Wait();
    } catch (const Error& failure) {
      int32_t done = 0;
      if (rueda_poll(flight_.context, flight_.handle, &done) == RUEDA_OK && done == 0) throw;
      error = std::make_unique<Error>(failure);
    }
    if (error == nullptr) {
      try {
        TakeResults();
      } catch (const std::exception& failure) {
        error = std::make_unique<Error>(RUEDA_INTERNAL, failure.what());
      }
    }
    error_ = std::move(error);
    // From here on the context isn't touched again, so that handles may outlive it.
    flight_.End();
    inputs_.clear();
    outputs_.clear();
    ended_ = true;
  }
  if (error_ != nullptr) throw *error_;
  return results_;
}

void Operation::TakeResults() {
  for (size_t i = 0; i < results_.size(); ++i) {
    if (!results_[i].defined()) results_[i] = outputs_[i];
    if (!copies_back_ || results_[i].is_same(outputs_[i])) continue;
    const at::NoGradGuard no_grad;
    results_[i].copy_(outputs_[i]);
  }
}

}  // namespace rueda::libtorch
