// A synthetic training step: as much floating-point work for each layer as the products of its
// matrices take, forward, then backward; a layer's gradient is submitted as soon as it is there.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "test/bench/modes.h"
#include "test/bench/support.h"
#include "test/bench/tensor.h"

namespace rueda::bench {
namespace {

constexpr int kRounds = 20;
constexpr double kRoundUs = 100e3;  // of either kind of step

// Row by row.
using Matrix = std::vector<float>;

// out (rows x columns) = a (rows x inner) * b (inner x columns).
void Multiply(const float* a, const float* b, float* __restrict out, int rows, int inner,
              int columns) {
  for (int row = 0; row < rows; ++row) {
    float* const line = out + static_cast<ptrdiff_t>(row) * columns;
    std::fill_n(line, columns, 0.0f);
    for (int k = 0; k < inner; ++k) {
      const float factor = a[static_cast<ptrdiff_t>(row) * inner + k];
      const float* const other = b + static_cast<ptrdiff_t>(k) * columns;
      for (int column = 0; column < columns; ++column) line[column] += factor * other[column];
    }
  }
}

// One rank's model. Every layer sees the same input, so that values stay what they are.
class Model {
 public:
  Model(Bench& bench, const StepShape& shape)
      : context_(bench.context()),
        shape_(shape),
        weights_(shape.layers, Matrix(WeightCount(), 0.01f)),
        samples_(static_cast<size_t>(shape.batch) * shape.width, 0.5f),
        samples_transposed_(samples_),
        outputs_(samples_.size()),
        handles_(shape.layers) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      gradients_.push_back(std::make_unique<Tensor>(context_, WeightCount() * sizeof(float),
                                                    bench.options().registered));
      names_.push_back("layer" + std::to_string(layer));
    }
  }

  void Step(bool communicates) {
    for (int layer = 0; layer < shape_.layers; ++layer) Forward(layer);
    for (int layer = shape_.layers - 1; layer >= 0; --layer) {
      Backward(layer);
      if (communicates) Submit(layer);
    }
    if (communicates) WaitForAll();
    for (int layer = 0; layer < shape_.layers; ++layer) Update(layer);
  }

 private:
  size_t WeightCount() const { return static_cast<size_t>(shape_.width) * shape_.width; }

  void Forward(int layer) {
    Multiply(samples_.data(), weights_[layer].data(), outputs_.data(), shape_.batch, shape_.width,
             shape_.width);
  }

  // The weights' gradient, and what the layer before would get.
  void Backward(int layer) {
    Multiply(samples_transposed_.data(), outputs_.data(), gradients_[layer]->data(), shape_.width,
             shape_.batch, shape_.width);
    Forward(layer);
  }

  void Submit(int layer) {
    rueda_operation operation = RUEDA_OPERATION_INIT;
    operation.kind = RUEDA_ALLREDUCE;
    operation.reduce_op = RUEDA_AVERAGE;
    operation.name = names_[layer].c_str();
    operation.input = gradients_[layer]->tensor();
    Check(rueda_submit(context_, &operation, 1, nullptr, &handles_[layer]));
  }

  void WaitForAll() {
    for (const rueda_handle handle : handles_) {
      Check(rueda_wait(context_, handle, RUEDA_FOREVER));
      Check(rueda_release(context_, handle));
    }
  }

  void Update(int layer) {
    const float* const gradient = gradients_[layer]->data();
    for (size_t i = 0; i < WeightCount(); ++i) weights_[layer][i] -= 1e-9f * gradient[i];
  }

  rueda_context* const context_;
  const StepShape shape_;
  std::vector<Matrix> weights_;
  const Matrix samples_;             // batch x width
  const Matrix samples_transposed_;  // width x batch
  Matrix outputs_;                   // batch x width
  std::vector<std::unique_ptr<Tensor>> gradients_;
  std::vector<std::string> names_;
  std::vector<rueda_handle> handles_;
};

// Microseconds per step, from when all ranks begin until the last has ended.
double TimeSteps(Bench& bench, Model& model, int steps, bool communicates) {
  bench.Barrier();
  const double start = NowUs();
  for (int i = 0; i < steps; ++i) model.Step(communicates);
  bench.Barrier();
  return (NowUs() - start) / steps;
}

// The same on all ranks, though each has seen another time.
int Agree(Bench& bench, int number) {
  Tensor tensor(bench.context(), sizeof(float), false);
  tensor.data()[0] = static_cast<float>(number);
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLREDUCE;
  operation.reduce_op = RUEDA_MIN;
  operation.name = "steps";
  operation.input = tensor.tensor();
  Check(rueda_execute(bench.context(), &operation, 1, RUEDA_FOREVER, nullptr));
  return static_cast<int>(tensor.data()[0]);
}

}  // namespace

void Step(Bench& bench, const StepShape& shape) {
  Model model(bench, shape);
  const double first_us = std::max(TimeSteps(bench, model, 1, true), 1.0);
  const int iterations = bench.options().iterations;
  const int steps = Agree(
      bench, iterations > 0 ? iterations : std::max(1, static_cast<int>(kRoundUs / first_us)));
  std::vector<double> times[2];  // without, with
  for (int round = 0; round < kRounds; ++round) {
    for (const bool communicates : {round % 2 == 0, round % 2 != 0}) {
      times[communicates].push_back(TimeSteps(bench, model, steps, communicates));
    }
  }
  if (bench.rank() != 0) return;
  std::printf(
      "{\"op\": \"step\", \"np\": %d, \"layers\": %d, \"width\": %d, \"batch\": %d, "
      "\"steps\": %d, \"computing_us\": %.2f, \"step_us\": %.2f}\n",
      bench.size(), shape.layers, shape.width, shape.batch, steps, Median(times[0]),
      Median(times[1]));
  std::fflush(stdout);
}

}  // namespace rueda::bench
