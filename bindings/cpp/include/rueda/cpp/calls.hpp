// Rueda's C++ API, inside: from what is asked for to an operation of the C API. Included by
// rueda/rueda.hpp, which says how to use it.
#ifndef RUEDA_CPP_CALLS_HPP_
#define RUEDA_CPP_CALLS_HPP_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rueda/cpp/errors.hpp"
#include "rueda/cpp/handles.hpp"
#include "rueda/cpp/job.hpp"
#include "rueda/cpp/options.hpp"
#include "rueda/cpp/process_sets.hpp"
#include "rueda/cpp/reduce_ops.hpp"
#include "rueda/cpp/tensors.hpp"
#include "rueda/rueda.h"

namespace rueda {

namespace detail {

inline const std::string& NoCompressor() {
  static const std::string none;
  return none;
}

// What to do with one tensor or a group. Borrowed for the call.
struct Call {
  rueda_kind kind;
  const std::string& name;
  ProcessSet process_set;
  reduce_op op = RUEDA_NO_REDUCE_OP;
  double prescale = 1;
  double postscale = 1;
  int root = -1;
  std::span<const int64_t> splits = {};
  const std::string& compressor = NoCompressor();
  int priority = 0;
};

inline Call CallOf(rueda_kind kind, const Options& options, int root = -1) {
  return {.kind = kind, .name = options.name, .process_set = options.process_set, .root = root};
}
inline Call CallOf(rueda_kind kind, const SplitOptions& options, int root = -1) {
  return {.kind = kind,
          .name = options.name,
          .process_set = options.process_set,
          .root = root,
          .splits = options.splits};
}
inline Call CallOf(rueda_kind kind, const ReduceOptions& options, int root) {
  return {.kind = kind,
          .name = options.name,
          .process_set = options.process_set,
          .op = options.op,
          .prescale = options.prescale_factor,
          .postscale = options.postscale_factor,
          .root = root};
}
inline Call CallOf(rueda_kind kind, const AllreduceOptions& options) {
  return {.kind = kind,
          .name = options.name,
          .process_set = options.process_set,
          .op = options.op,
          .prescale = options.prescale_factor,
          .postscale = options.postscale_factor,
          .compressor = options.compression,
          .priority = options.priority};
}

// The C API's form of the view, with other memory of the same shape. Points into the view.
inline rueda_tensor CTensor(const TensorView& view, void* data) {
  return {data,
          view.device,
          static_cast<int32_t>(view.shape.size()),
          view.dtype,
          const_cast<int64_t*>(view.shape.data()),
          nullptr,
          0};
}

// Everything but the tensors.
inline rueda_operation COperation(const Call& call) {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = call.kind;
  operation.name = NameOf(call.name);
  operation.process_set = call.process_set.id;
  operation.root = call.root;
  operation.reduce_op = call.op;
  operation.prescale = call.prescale;
  operation.postscale = call.postscale;
  operation.compressor = NameOf(call.compressor);
  operation.priority = call.priority;
  operation.splits = call.splits.empty() ? nullptr : call.splits.data();
  operation.split_count = call.splits.size();
  return operation;
}

inline void SetTensor(rueda_operation* operation, const rueda_tensor* tensor) {
  (operation->kind == RUEDA_RECV ? operation->output : operation->input) = tensor;
}

// Where the operation runs, of CUDA. A stream that is given where there is none is the C API's to
// refuse, and so is a group whose tensors have several.
inline void SetExec(rueda_operation* operation, const TensorView& view, rueda_exec* exec) {
  const int32_t type = view.device.type;
  if (type != RUEDA_CUDA && type != RUEDA_CUDA_MANAGED && view.stream == nullptr) return;
  *exec = RUEDA_EXEC_INIT;
  exec->device = view.device;
  exec->stream = view.stream;
  operation->exec = exec;
}

// Does it now, in the memory of the tensor, if there is one.
inline void Execute(const Call& call, const TensorView* tensor) {
  rueda_operation operation = COperation(call);
  rueda_tensor in_c = {};
  rueda_exec exec = RUEDA_EXEC_INIT;
  if (tensor != nullptr) {
    SetTensor(&operation, &(in_c = CTensor(*tensor, tensor->data)));
    SetExec(&operation, *tensor, &exec);
  }
  Flight flight;
  flight.Start({&operation, 1}, When::kNow);
}

// The input's memory, which the operation only reads.
template <Input I>
TensorView ViewOf(const I& input) {
  if constexpr (Number<I>) {
    return {const_cast<I*>(&input), std::vector<int64_t>()};
  } else if constexpr (TensorRange<const I>) {
    using T = std::ranges::range_value_t<const I>;
    return {const_cast<T*>(std::ranges::data(input)),
            {static_cast<int64_t>(std::ranges::size(input))}};
  } else {
    return const_cast<I&>(input);
  }
}

// The same where rows are joined: a number is one.
template <Input I>
TensorView RowsOf(const I& input) {
  TensorView view = ViewOf(input);
  if constexpr (Number<I>) view.shape = {1};
  return view;
}

template <RowInput I>
std::vector<TensorView> ViewsOf(const std::vector<I>& inputs) {
  std::vector<TensorView> views;
  for (const I& input : inputs) views.push_back(ViewOf(input));
  return views;
}

// A result has one part, or one for each tensor of a group.
template <typename R>
concept Group = requires(R result) {
  result[0].begin();
}
|| std::same_as<R, std::vector<Tensor>>;

template <typename R>
auto& PartOf(R& result, size_t index) {
  if constexpr (Group<R>) {
    return result[index];
  } else if constexpr (requires { result.splits; }) {
    return result.tensor;
  } else {
    return result;
  }
}

// Gives the part this shape and returns its memory.
inline void* Reshape(Tensor* part, const TensorView& like) {
  *part = Tensor(like.shape, like.dtype);
  return part->view().data;
}
template <Number T>
void* Reshape(T* part, const TensorView&) {
  return part;
}
template <typename T>
void* Reshape(std::vector<T>* part, const TensorView& like) {
  part->resize(like.elements());
  return part->data();
}

// A rueda_allocate_fn.
template <typename R>
void* Allocate(void* user, int32_t part, const int64_t* shape, int32_t ndim) {
  auto* state = static_cast<State<R>*>(user);
  const auto index = static_cast<size_t>(part);
  return Reshape(&PartOf(state->result, index),
                 TensorView(nullptr, {shape, shape + ndim}, state->dtypes[index]));
}

enum class Memory {
  kInPlace,    // the tensors' own, borrowed until the end
  kCopied,     // the result begins as a copy of the input, and is worked on in place
  kAllocated,  // the result's size is known later
  kReadOnly    // there is no result
};

// Where the operation works on a tensor: there, in the result, or in a copy that is kept.
template <typename R>
void* Place(State<R>* state, const TensorView& tensor, size_t index, Memory memory, When when) {
  if (memory != Memory::kInPlace) {
    CheckOnCpu(tensor,
               "take the function that works in place (its name ends in _), or the C API: there is "
               "no memory of the library's");
  }
  if constexpr (!std::is_void_v<R>) {
    if (memory == Memory::kCopied) {
      void* data = Reshape(&PartOf(state->result, index), tensor);
      if (tensor.bytes() > 0) std::memcpy(data, tensor.data, tensor.bytes());
      return data;
    }
  }
  if (when == When::kNow || memory == Memory::kInPlace) {
    state->borrows = true;
    return tensor.data;
  }
  return state->inputs.emplace_back(tensor).view().data;
}

// Starts an operation on each tensor, together. The names in a group have numbers.
template <typename R>
Handle<R> Start(const Call& call, std::span<const TensorView> tensors, Memory memory, When when,
                bool grouped = false) {
  auto state = MakeCargo<State<R>>();
  std::vector<rueda_operation> operations(tensors.size(), COperation(call));
  std::vector<rueda_tensor> in_c(tensors.size());
  std::vector<rueda_exec> execs(tensors.size());
  std::vector<std::string> names(tensors.size());
  if constexpr (Group<R>) state->result.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    in_c[i] = CTensor(tensors[i], Place(state.get(), tensors[i], i, memory, when));
    SetTensor(&operations[i], &in_c[i]);
    SetExec(&operations[i], tensors[i], &execs[i]);
    if (grouped && !call.name.empty()) {
      names[i] = call.name + "." + std::to_string(i);
      operations[i].name = names[i].c_str();
    }
    if constexpr (!std::is_void_v<R>) {
      if (memory != Memory::kAllocated) continue;
      state->dtypes.push_back(tensors[i].dtype);
      operations[i].allocate = &Allocate<R>;
      operations[i].allocate_user = state.get();
    }
  }
  state->flight.Start(operations, when);
  return Handle<R>(std::move(state));
}

template <typename R>
Handle<R> StartOne(const Call& call, const TensorView& view, Memory memory, When when) {
  return Start<R>(call, {&view, 1}, memory, when);
}
template <typename R, Input I>
Handle<R> StartOne(const Call& call, const I& input, Memory memory, When when) {
  return StartOne<R>(call, ViewOf(input), memory, when);
}

template <RowInput I>
auto StartGroup(const Call& call, const std::vector<I>& inputs, Memory memory, When when) {
  return Start<std::vector<Result<I>>>(call, ViewsOf(inputs), memory, when, /*grouped=*/true);
}

// Only the root has a result of a reduce.
inline Memory ReduceMemory(int root) {
  return rank() == root ? Memory::kCopied : Memory::kReadOnly;
}

}  // namespace detail

}  // namespace rueda

#endif  // RUEDA_CPP_CALLS_HPP_
