// A small convolutional net. Without batch normalisation and dropout: a rank's result then depends
// on its weights and its images alone.
#pragma once

#include <torch/torch.h>

namespace mnist {

// From images (n, 1, height, width) to the logarithms of ten probabilities (n, 10). Cloneable, for
// strategies that have replicas of it.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl(int64_t height_in, int64_t width_in) : height(height_in), width(width_in) { reset(); }

  void reset() override {
    conv1 = register_module("conv1", torch::nn::Conv2d(Convolution(1, 16)));
    conv2 = register_module("conv2", torch::nn::Conv2d(Convolution(16, 32)));
    hidden = register_module("hidden", torch::nn::Linear(32 * (height / 4) * (width / 4), 64));
    out = register_module("out", torch::nn::Linear(64, 10));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    x = torch::relu(hidden(x.flatten(1)));
    return torch::log_softmax(out(x), 1);
  }

  int64_t height, width;
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear hidden{nullptr}, out{nullptr};

 private:
  static torch::nn::Conv2dOptions Convolution(int64_t in, int64_t features) {
    return torch::nn::Conv2dOptions(in, features, 3).padding(1);
  }
};
TORCH_MODULE(Net);

}  // namespace mnist
