// Transfer learning: begins with another training's parameters, and trains a part of the model.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace trainer {

// For transfer learning: takes from a file that a strategy's save has written all parameters and
// buffers that `module` has too, of the same name, shape and type, and returns their names. Rueda
// need not be initialized. Throws std::runtime_error: the file can't be read, or has none of them.
std::vector<std::string> LoadParameters(torch::nn::Module& module, const std::string& path);

// Freezes the module's parameters: they are never sent, but when a strategy is made, and stay as
// they are. Before Fit.
void Freeze(torch::nn::Module& module);

}  // namespace trainer
