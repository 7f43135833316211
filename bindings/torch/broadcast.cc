// Starting equal: parameters and buffers from one rank to all.
#include <exception>

#include "bindings/torch/named_tensors.h"

namespace rueda::libtorch {

void broadcast_parameters(const NamedTensors& tensors, int root_rank, ProcessSet process_set) {
  std::vector<Handle> handles;
  std::exception_ptr first_error;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    try {
      handles.push_back(broadcast_async_(
          tensor, root_rank, {.name = "broadcast_parameters." + name, .process_set = process_set}));
    } catch (...) {
      if (first_error == nullptr) first_error = std::current_exception();
    }
  }
  for (const Handle& handle : handles) {
    try {
      synchronize(handle);
    } catch (...) {
      if (first_error == nullptr) first_error = std::current_exception();
    }
  }
  if (first_error != nullptr) std::rethrow_exception(first_error);
}

void broadcast_parameters(const torch::OrderedDict<std::string, at::Tensor>& tensors, int root_rank,
                          ProcessSet process_set) {
  NamedTensors list;
  Append(tensors, &list);
  broadcast_parameters(list, root_rank, process_set);
}

void broadcast_parameters(const torch::nn::Module& module, int root_rank, ProcessSet process_set) {
  broadcast_parameters(TensorsOf(module), root_rank, process_set);
}

}  // namespace rueda::libtorch
