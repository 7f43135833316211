// Starting equal: parameters, buffers and optimizer state from one rank to all.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstring>
#include <exception>

#include "bindings/torch/operation.h"

namespace rueda::libtorch {
namespace {

void Append(const torch::OrderedDict<std::string, at::Tensor>& from, NamedTensors* to) {
  for (const auto& item : from) to->emplace_back(item.key(), item.value());
}

// What torch can write to a file; "" when it can't, and `why` says why.
std::string Serialise(const torch::optim::Optimizer& optimizer, std::string* why) {
  std::string bytes;
  try {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    archive.save_to([&bytes](const void* data, size_t size) {
      bytes.append(static_cast<const char*>(data), size);
      return size;
    });
  } catch (const std::exception& error) {
    *why = error.what();
    bytes.clear();
  }
  return bytes;
}

at::Tensor BroadcastWhole(const at::Tensor& tensor, int root_rank, const std::string& name,
                          ProcessSet process_set) {
  return broadcast_(tensor, root_rank, "broadcast_optimizer_state." + name, process_set);
}

}  // namespace

void broadcast_parameters(const NamedTensors& tensors, int root_rank, ProcessSet process_set) {
  std::vector<Handle> handles;
  std::exception_ptr first_error;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    try {
      handles.push_back(
          broadcast_async_(tensor, root_rank, "broadcast_parameters." + name, process_set));
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
  NamedTensors list;
  Append(module.named_parameters(), &list);
  Append(module.named_buffers(), &list);
  broadcast_parameters(list, root_rank, process_set);
}

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root_rank,
                               ProcessSet process_set) {
  const bool is_root = rank() == root_rank;
  std::string why;
  std::string bytes = is_root ? Serialise(optimizer, &why) : "";
  at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = static_cast<int64_t>(bytes.size());
  BroadcastWhole(size, root_rank, "size", process_set);
  const int64_t length = *size.const_data_ptr<int64_t>();
  if (length == 0) {  // an archive is never empty: the others hear of it too
    throw Error(RUEDA_INVALID_ARGUMENT, "rank " + std::to_string(root_rank) +
                                            " could not serialise its optimizer" +
                                            (is_root ? ": " + why : "; it says why"));
  }
  at::Tensor data = at::empty({length}, at::kByte);
  if (is_root) std::memcpy(data.mutable_data_ptr(), bytes.data(), bytes.size());
  BroadcastWhole(data, root_rank, "bytes", process_set);
  if (is_root) return;
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(data.const_data_ptr()), static_cast<size_t>(length));
  optimizer.state().clear();
  optimizer.load(archive);
}

}  // namespace rueda::libtorch
