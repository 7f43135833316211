#include "bindings/torch/operation.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <utility>

#include "bindings/torch/device.h"

namespace rueda::libtorch {
namespace {

// Names a tensor of a call, for errors.
struct Label {
  const Call& call;
  size_t index;

  std::string text() const {
    if (!call.grouped) {
      return call.name.empty() ? "the tensor" : "tensor '" + call.name + "'";
    }
    return "tensor " + std::to_string(index) + " of the group" +
           (call.name.empty() ? "" : " '" + call.name + "'");
  }
};

rueda_dtype DTypeOf(const at::Tensor& tensor, const Label& label) {
  switch (tensor.scalar_type()) {
    case at::kByte:
      return RUEDA_UINT8;
    case at::kUInt16:
      return RUEDA_UINT16;
    case at::kUInt32:
      return RUEDA_UINT32;
    case at::kUInt64:
      return RUEDA_UINT64;
    case at::kChar:
      return RUEDA_INT8;
    case at::kShort:
      return RUEDA_INT16;
    case at::kInt:
      return RUEDA_INT32;
    case at::kLong:
      return RUEDA_INT64;
    case at::kFloat8_e4m3fn:
      return RUEDA_FLOAT8_E4M3FN;
    case at::kFloat8_e5m2:
      return RUEDA_FLOAT8_E5M2;
    case at::kHalf:
      return RUEDA_FLOAT16;
    case at::kBFloat16:
      return RUEDA_BFLOAT16;
    case at::kFloat:
      return RUEDA_FLOAT32;
    case at::kDouble:
      return RUEDA_FLOAT64;
    case at::kComplexFloat:
      return RUEDA_COMPLEX64;
    case at::kComplexDouble:
      return RUEDA_COMPLEX128;
    case at::kBool:
      return RUEDA_BOOL;
    default:
      throw Error(RUEDA_UNIMPLEMENTED,
                  label.text() + " is of type " + at::toString(tensor.scalar_type()) +
                      "; Rueda moves Byte, UInt16, UInt32, UInt64, Char, Short, Int, Long, "
                      "Float8_e4m3fn, Float8_e5m2, Half, BFloat16, Float, Double, ComplexFloat, "
                      "ComplexDouble and Bool: convert it");
  }
}

void CheckTensor(const at::Tensor& tensor, const Label& label) {
  if (!tensor.defined()) throw Error(RUEDA_INVALID_ARGUMENT, label.text() + " is undefined");
  if (!tensor.is_cpu() && !tensor.is_cuda()) {
    throw Error(RUEDA_UNIMPLEMENTED,
                label.text() + " is on " + tensor.device().str() +
                    "; this version moves tensors on the CPU and on CUDA: copy it there");
  }
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    throw Error(RUEDA_UNIMPLEMENTED,
                label.text() + " is sparse, nested or of another special layout; " +
                    "this moves strided tensors: call to_dense(), or " + "sparse_allreduce");
  }
}

at::Tensor Contiguous(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj()) return tensor;
  const at::NoGradGuard no_grad;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

// Of memory that stays the caller's, as at::from_blob without a deleter makes it.
bool IsBorrowed(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.storage().nbytes() == 0) return false;
  return tensor.storage().data_ptr().get_context() == nullptr;
}

// For this thread's current stream.
at::Tensor EmptyLike(const at::Tensor& tensor) {
  const c10::InferenceMode no_inference(false);
  return at::empty(tensor.sizes(),
                   at::TensorOptions().dtype(tensor.scalar_type()).device(tensor.device()));
}

rueda_device DeviceOf(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return {RUEDA_CPU, 0};
  return {RUEDA_CUDA, tensor.device().index()};
}

// `sizes` belongs to the tensor, which outlives the call that this is for.
rueda_tensor View(void* data, const at::Tensor& tensor, rueda_dtype dtype) {
  return {data,
          DeviceOf(tensor),
          static_cast<int32_t>(tensor.dim()),
          dtype,
          const_cast<int64_t*>(tensor.sizes().data()),
          nullptr,
          0};
}

// Where a part's result goes on this rank.
enum class Output {
  kGiven,      // the caller's, or of the input's shape, or the input itself
  kAllocated,  // when its shape is known
  kNone,
};

Output OutputOf(const Call& call, rueda_context* context) {
  if (!call.outputs.empty()) return Output::kGiven;
  switch (call.kind) {
    case RUEDA_REDUCE:
      return call.root == rueda_rank(context) ? Output::kGiven : Output::kNone;
    case RUEDA_GATHER:
      return call.root == rueda_rank(context) ? Output::kAllocated : Output::kNone;
    case RUEDA_ALLGATHER:
    case RUEDA_ALLTOALL:
    case RUEDA_REDUCESCATTER:
    case RUEDA_SCATTER:
      return Output::kAllocated;
    case RUEDA_SEND:
      return Output::kNone;
    default:
      return Output::kGiven;
  }
}

// The names of a group's parts; nothing for an unnamed one.
std::vector<std::string> PartNames(const Call& call) {
  std::vector<std::string> names;
  if (call.name.empty()) return names;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    names.push_back(call.name + (call.suffixes.empty() ? "." + std::to_string(i)
                                                       : std::string(call.suffixes[i])));
  }
  return names;
}

}  // namespace

std::shared_ptr<Operation> Operation::Make(rueda_context* context) {
  return std::shared_ptr<Operation>(new Operation(context),
                                    [](Operation* operation) { rueda::detail::LetGo(operation); });
}

std::shared_ptr<Operation> Operation::Submit(rueda_context* context, const Call& call,
                                             int64_t time_ns) {
  const std::shared_ptr<Operation> operation = Make(context);
  operation->Start(call, time_ns);
  return operation;
}

std::shared_ptr<Operation> Operation::Execute(rueda_context* context, const Call& call) {
  const std::shared_ptr<Operation> operation = Submit(context, call, RUEDA_FOREVER);
  operation->Wait();
  return operation;
}

void Operation::PreparePart(const Call& call, size_t index) {
  const at::Tensor& tensor = call.tensors[index];
  const Label label{call, index};
  CheckTensor(tensor, label);
  DTypeOf(tensor, label);
  const Output kind = OutputOf(call, flight.context);
  const bool changes = call.in_place && kind == Output::kGiven;
  if (changes && at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                label.text() +
                    " can't be changed in place: several of its elements share memory, " +
                    "as in an expanded tensor. Clone it first");
  }
  at::Tensor input = Contiguous(tensor);
  at::Tensor output;
  if (changes) {
    output = input;
    copies_back_ |= !input.is_same(tensor);
  } else if (!call.outputs.empty()) {
    output = call.outputs[index];
    if (output.scalar_type() != input.scalar_type() || output.device() != input.device()) {
      throw Error(RUEDA_INVALID_ARGUMENT,
                  label.text() + ": the input is " + at::toString(input.scalar_type()) + " on " +
                      input.device().str() + ", and the output " +
                      at::toString(output.scalar_type()) + " on " + output.device().str());
    }
  } else if (kind == Output::kGiven) {
    output = EmptyLike(tensor);
  }
  borrows |= call.in_place || IsBorrowed(input) || IsBorrowed(output);
  results_.push_back(call.in_place ? tensor : output);
  inputs_.push_back(std::move(input));
  outputs_.push_back(std::move(output));
}

// Everything is checked, and memory is there, before anything is submitted.
void Operation::Prepare(const Call& call) {
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    PreparePart(call, i);
    const at::Device first = inputs_.front().device(), own = inputs_.back().device();
    if (own == first) continue;
    throw Error(RUEDA_INVALID_ARGUMENT, Label{call, i}.text() + " is on " + DeviceName(own) +
                                            ", and the first one on " + DeviceName(first) +
                                            "; all tensors of an operation are on one device");
  }
  if (!inputs_.empty()) stream_ = CurrentStream(inputs_.front().device());
  allocates_ = OutputOf(call, flight.context) == Output::kAllocated;
  process_set_ = call.process_set.id;
  // Who gives the memory knows who fills it.
  joins_rows_ =
      call.outputs.empty() &&
      (call.kind == RUEDA_ALLGATHER || call.kind == RUEDA_ALLTOALL ||
       (call.kind == RUEDA_GATHER && OutputOf(call, flight.context) == Output::kAllocated));
}

void Operation::Start(const Call& call, int64_t time_ns) {
  rueda::detail::Sweep();
  Prepare(call);
  const size_t count = inputs_.size();
  const Output output = OutputOf(call, flight.context);
  const std::vector<std::string> names =
      call.grouped ? PartNames(call) : std::vector<std::string>();
  const std::string fault(call.fault);
  rueda_exec exec = RUEDA_EXEC_INIT;
  if (stream_.has_value()) {
    exec.device = DeviceOf(inputs_.front());
    exec.stream = HandleOf(*stream_);
  }
  std::vector<rueda_tensor> views(2 * count);
  const auto plain = [&call](const std::string& name) {
    return detail::COperation({.kind = call.kind,
                               .name = name,
                               .process_set = call.process_set,
                               .op = call.op,
                               .prescale = call.prescale,
                               .postscale = call.postscale,
                               .root = call.root,
                               .splits = {call.splits.data(), call.splits.size()},
                               .compressor = call.compressor,
                               .priority = call.priority});
  };
  std::vector<rueda_operation> operations(count);
  if (count == 0) operations.push_back(plain(call.name));  // a barrier
  for (size_t i = 0; i < count; ++i) {
    const rueda_dtype dtype = DTypeOf(inputs_[i], {call, i});
    rueda_operation& operation = operations[i];
    operation = plain(names.empty() ? call.name : names[i]);
    if (!fault.empty()) operation.fault = fault.c_str();
    if (call.wait_soon || (time_ns != 0 && stream_)) operation.flags = RUEDA_OPERATION_WAIT_SOON;
    if (stream_.has_value()) operation.exec = &exec;
    if (call.kind != RUEDA_RECV) operation.input = &views[2 * i];
    const bool in_place = outputs_[i].is_same(inputs_[i]);
    views[2 * i] = View(
        in_place ? inputs_[i].mutable_data_ptr() : const_cast<void*>(inputs_[i].const_data_ptr()),
        inputs_[i], dtype);
    if (output == Output::kAllocated) {
      operation.allocate = &Operation::Allocate;
      operation.allocate_user = this;
    } else if (output == Output::kGiven && (!in_place || call.kind == RUEDA_RECV)) {
      views[2 * i + 1] = View(outputs_[i].mutable_data_ptr(), outputs_[i], dtype);
      operation.output = &views[2 * i + 1];
    }
  }
  if (time_ns != 0 && !stream_.has_value()) {
    const rueda_status status = rueda_execute(flight.context, operations.data(), operations.size(),
                                              time_ns, &flight.handle);
    if (flight.handle == 0) detail::Check(status, flight.context);
  } else {
    detail::Check(
        rueda_submit(flight.context, operations.data(), operations.size(), nullptr, &flight.handle),
        flight.context);
  }
  if (!call.in_place || output != Output::kGiven) return;
  for (const at::Tensor& changed : outputs_) {
    if (!changed.is_inference()) changed.unsafeGetTensorImpl()->bump_version();
  }
}

void* Operation::Allocate(void* user, int32_t part, const int64_t* shape, int32_t dims) {
  auto* operation = static_cast<Operation*>(user);
  try {
    const at::Tensor& input = operation->inputs_[static_cast<size_t>(part)];
    at::Tensor output =
        IdleMemory({shape, static_cast<size_t>(dims)}, input.scalar_type(), input.device());
    return (operation->outputs_[static_cast<size_t>(part)] = std::move(output)).mutable_data_ptr();
  } catch (...) {
    return nullptr;  // which the library reports
  }
}

void Operation::End() noexcept {
  try {
    Wait();
  } catch (...) {  // nobody is left to hear of it
  }
  flight.End();  // if the wait could not be
}

bool Operation::Poll() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;  // another thread waits for it
  if (ended_) return true;
  int32_t done = 0;
  detail::Check(rueda_poll(flight.context, flight.handle, &done), flight.context);
  return done == 1;
}

const std::vector<at::Tensor>& Operation::Wait() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!ended_) {
    if (flight.handle == 0) throw Error(RUEDA_INVALID_ARGUMENT, "nothing was submitted");
    const std::optional<c10::Stream> stream =
        stream_.has_value() ? CurrentStream(stream_->device()) : std::nullopt;
    std::exception_ptr error;
    try {
      Await(stream);
    } catch (const Error&) {
      int32_t done = 0;
      if (rueda_poll(flight.context, flight.handle, &done) == RUEDA_OK && done == 0) throw;
      error = std::current_exception();
    }
    try {
      if (error == nullptr) {
        TakeResults();
        TakeSplits();
      }
      if (stream.has_value()) KeepTensorsFor(*stream);
    } catch (const std::exception& failure) {
      if (error == nullptr) {
        error = std::make_exception_ptr(Error(RUEDA_INTERNAL, failure.what()));
      }
    }
    error_ = std::move(error);
    // From here on the context isn't touched again, so that handles may outlive it.
    Release();
    inputs_.clear();
    outputs_.clear();
    ended_ = true;
  }
  if (error_ != nullptr) std::rethrow_exception(error_);
  return results_;
}

// Others may let go of it meanwhile. Null: they have.
std::shared_ptr<const rueda::detail::Claim> Operation::Claim() {
  const std::lock_guard<std::mutex> lock(flight_mutex_);
  return flight.handle == 0 ? nullptr : rueda::detail::Share(&flight);
}

bool Operation::WaitFor(int64_t timeout_ns) {
  const auto claim = Claim();
  return claim == nullptr || rueda::detail::WaitFor(claim->context, claim->handle, timeout_ns);
}

std::string Operation::Explain() {
  const auto claim = Claim();
  return claim == nullptr ? "" : rueda::detail::Explain(claim->context, claim->handle);
}

void Operation::Then(std::function<void(const Error*)> callback) {
  {
    const std::lock_guard<std::mutex> lock(flight_mutex_);
    if (flight.handle != 0) return rueda::detail::CallAtEnd(&flight, std::move(callback));
  }
  try {
    Wait();
  } catch (const Error& error) {
    return callback(&error);
  }
  callback(nullptr);
}

void Operation::Await(const std::optional<c10::Stream>& stream) {
  if (!stream.has_value()) return flight.Wait();
  const rueda_status status =
      rueda_wait_on_stream(flight.context, flight.handle, HandleOf(*stream));
  if (status == RUEDA_OK) return;
  detail::ThrowEnd(status, flight.context, flight.handle);
}

// From here on this operation doesn't hold its tensors, and the library may not be done with them.
// If their memory belongs to `stream`, whoever gets it next enqueues what he does with it there,
// behind the operation. Else it must be kept for the stream, which comes behind the operation: for
// a wait on another stream than the submission's, and for results whose memory is the library
// stream's own. (Memory that the caller had from a third stream is his business, as with torch's
// operators.)
void Operation::KeepTensorsFor(const c10::Stream& stream) {
  const bool same = stream == *stream_;
  for (const std::vector<at::Tensor>* tensors : {&inputs_, &outputs_, &results_}) {
    if (same && !(allocates_ && tensors == &outputs_)) continue;
    for (const at::Tensor& tensor : *tensors) {
      if (tensor.defined()) KeepFor(tensor, stream);
    }
  }
}

void Operation::Release() {
  const std::lock_guard<std::mutex> lock(flight_mutex_);
  if (!stream_.has_value()) return flight.End();
  flight.Release();  // End() would wait for the device
}

const std::vector<std::vector<int64_t>>& Operation::WaitForSplits() {
  Wait();
  return splits_;
}

void Operation::TakeSplits() {
  if (!joins_rows_) return;
  splits_.resize(results_.size());
  for (size_t i = 0; i < splits_.size(); ++i) {
    size_t count = 0;
    splits_[i].resize(static_cast<size_t>(rueda_process_set_size(flight.context, process_set_)));
    detail::Check(rueda_result_splits(flight.context, flight.handle, i, splits_[i].data(),
                                      splits_[i].size(), &count),
                  flight.context);
  }
}

void Operation::TakeResults() {
  for (size_t i = 0; i < results_.size(); ++i) {
    if (!results_[i].defined()) results_[i] = outputs_[i];
    if (!copies_back_ || results_[i].is_same(outputs_[i])) continue;
    const c10::InferenceMode mode(results_[i].is_inference());
    const at::NoGradGuard no_grad;
    results_[i].copy_(outputs_[i]);
  }
}

}  // namespace rueda::libtorch
