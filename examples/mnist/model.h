// A small convolutional net. Without batch normalization and dropout: a rank's result then depends
// on its weights and its images alone.
#pragma once

#include <torch/torch.h>

namespace mnist {

// From images (n, 1, height, width) to the logarithms of ten probabilities (n, 10). A sequence of
// layers, so that strategies can have replicas of it, or each rank some of the layers.
inline torch::nn::Sequential MakeNet(int64_t height, int64_t width) {
  namespace nn = torch::nn;
  const auto convolution = [](int64_t in, int64_t features) {
    return nn::Conv2d(nn::Conv2dOptions(in, features, 3).padding(1));
  };
  return nn::Sequential({{"conv1", convolution(1, 16)},
                         {"relu1", nn::ReLU()},
                         {"pool1", nn::MaxPool2d(2)},
                         {"conv2", convolution(16, 32)},
                         {"relu2", nn::ReLU()},
                         {"pool2", nn::MaxPool2d(2)},
                         {"flatten", nn::Flatten()},
                         {"hidden", nn::Linear(32 * (height / 4) * (width / 4), 64)},
                         {"relu3", nn::ReLU()},
                         {"out", nn::Linear(64, 10)},
                         {"log_softmax", nn::LogSoftmax(1)}});
}

}  // namespace mnist
