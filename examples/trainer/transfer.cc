#include "examples/trainer/transfer.h"

#include <torch/csrc/jit/serialization/pickle.h>

#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>

namespace trainer {

std::vector<std::string> LoadParameters(torch::nn::Module& module, const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) throw std::runtime_error(path + ": can't be read");
  std::map<std::string, torch::Tensor> there;
  try {
    const auto all = torch::jit::pickle_load(bytes).toGenericDict();
    for (const auto& entry : all.at("model").toGenericDict()) {
      there.emplace(entry.key().toStringRef(), entry.value().toTensor());
    }
  } catch (const std::exception&) {
    throw std::runtime_error(path + ": was not written by a strategy's save(), or is cut short");
  }
  const torch::NoGradGuard no_grad;
  std::vector<std::string> taken;
  const auto take = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      const auto it = there.find(item.key());
      if (it == there.end() || it->second.sizes() != item.value().sizes() ||
          it->second.scalar_type() != item.value().scalar_type()) {
        continue;
      }
      torch::Tensor(item.value()).copy_(it->second);
      taken.push_back(item.key());
    }
  };
  take(module.named_parameters());
  take(module.named_buffers());
  if (taken.empty())
    throw std::runtime_error(path + ": has no tensor of this model, by name, shape and type");
  return taken;
}

void Freeze(torch::nn::Module& module) {
  for (torch::Tensor& parameter : module.parameters()) parameter.requires_grad_(false);
}

}  // namespace trainer
