// One blocking operation; a burst of asynchronous ones.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "test/bench/modes.h"
#include "test/bench/peers/timing.h"
#include "test/bench/support.h"
#include "test/bench/tensor.h"

namespace rueda::bench {
namespace {

constexpr int kAutoTrials = 19;  // after which `auto` has chosen (rueda.h)

int IterationsFor(const Options& options, size_t bytes) {
  if (options.iterations > 0) return options.iterations;
  return iterations_for(static_cast<long>(bytes));
}

void BlockingOf(Bench& bench, size_t bytes, const std::string& dtype) {
  const Options& options = bench.options();
  rueda_context* const context = bench.context();
  const auto ranks = static_cast<size_t>(bench.size());
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = static_cast<rueda_kind>(KindOf(options.op));
  const bool shares = operation.kind == RUEDA_ALLTOALL || operation.kind == RUEDA_REDUCESCATTER;
  // Whole shares of float32.
  if (shares) bytes = (bytes + 4 * ranks - 1) / (4 * ranks) * 4 * ranks;
  // Results that are not in place go to a buffer of ours.
  size_t result = 0;
  if (operation.kind == RUEDA_ALLGATHER) result = bytes * ranks;
  if (operation.kind == RUEDA_ALLTOALL) result = bytes;
  if (operation.kind == RUEDA_REDUCESCATTER) result = bytes / ranks;
  const std::unique_ptr<Tensor> buffer = bench.NewTensor(bytes, dtype);
  const std::unique_ptr<Tensor> output = bench.NewTensor(result);
  const std::string name = options.op + std::to_string(bytes);
  operation.name = name.c_str();
  if (operation.kind == RUEDA_ALLREDUCE || operation.kind == RUEDA_REDUCESCATTER) {
    operation.reduce_op = RUEDA_SUM;
  }
  if (operation.kind == RUEDA_BROADCAST) operation.root = 0;
  operation.exec = bench.exec();
  if (operation.kind != RUEDA_BARRIER) operation.input = buffer->tensor();
  if (result > 0) operation.output = output->tensor();
  if (options.op == "allreduce" && dtype == "float32") {
    const auto elements = static_cast<size_t>(buffer->elements());
    buffer->Fill(std::vector<float>(elements, 1.0f));
    Check(rueda_execute(context, &operation, 1, RUEDA_FOREVER, nullptr));
    for (const float value : buffer->Values()) {
      if (value != static_cast<float>(bench.size())) Die("wrong result");
    }
    buffer->Fill(std::vector<float>(elements));
  }
  const int iterations = IterationsFor(options, bytes);
  const std::string of = options.dtypes.empty() ? "" : "_" + dtype;
  bench.Measure({options.op + of + (options.registered ? "_registered" : ""), bytes, iterations,
                 iterations / 10 + 1, false,
                 [&] { Check(rueda_execute(context, &operation, 1, RUEDA_FOREVER, nullptr)); }});
}

// From one buffer to another: numbers that were added up in place would soon be infinite. They
// differ, as what is compressed costs less when it is all the same.
void CompressedOf(Bench& bench, size_t bytes, const std::string& compressor) {
  const Options& options = bench.options();
  rueda_context* const context = bench.context();
  const std::unique_ptr<Tensor> from = bench.NewTensor(bytes), to = bench.NewTensor(bytes);
  std::vector<float> values(static_cast<size_t>(from->elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i)) * static_cast<float>(1 + i % 7);
  }
  from->Fill(values);
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLREDUCE;
  operation.reduce_op = RUEDA_SUM;
  const std::string name = compressor + std::to_string(bytes);
  operation.name = name.c_str();
  operation.exec = bench.exec();
  operation.input = from->tensor();
  operation.output = to->tensor();
  operation.compressor = compressor.c_str();
  const auto run = [&] { Check(rueda_execute(context, &operation, 1, RUEDA_FOREVER, nullptr)); };
  for (int i = 0; i < kAutoTrials; ++i) run();
  const int iterations = IterationsFor(options, bytes);
  bench.Measure({"allreduce_" + compressor, bytes, iterations, iterations / 10 + 1, false, run});
}

}  // namespace

void Blocking(Bench& bench, size_t bytes) {
  for (const std::string& compressor : bench.options().compressors) {
    CompressedOf(bench, bytes, compressor);
  }
  if (!bench.options().compressors.empty()) return;
  if (bench.options().dtypes.empty()) return BlockingOf(bench, bytes, "float32");
  for (const std::string& dtype : bench.options().dtypes) BlockingOf(bench, bytes, dtype);
}

void Many(Bench& bench, int count, size_t bytes) {
  const Options& options = bench.options();
  rueda_context* const context = bench.context();
  std::vector<std::unique_ptr<Tensor>> buffers;
  std::vector<std::string> names;
  std::vector<rueda_handle> handles(count);
  for (int i = 0; i < count; ++i) {
    buffers.push_back(bench.NewTensor(bytes));
    names.push_back("many" + std::to_string(bytes) + "." + std::to_string(i));
  }
  const int iterations = options.iterations > 0 ? options.iterations : 100;
  const auto step = [&] {
    for (int t = 0; t < count; ++t) {
      rueda_operation operation = RUEDA_OPERATION_INIT;
      operation.kind = RUEDA_ALLREDUCE;
      operation.reduce_op = RUEDA_SUM;
      operation.name = names[t].c_str();
      operation.exec = bench.exec();
      operation.input = buffers[t]->tensor();
      Check(rueda_submit(context, &operation, 1, nullptr, &handles[t]));
    }
    const Device* const device = bench.device();
    for (const rueda_handle handle : handles) {
      if (device != nullptr) {
        Check(rueda_wait_on_stream(context, handle, bench.exec()->stream));
      } else {
        Check(rueda_wait(context, handle, RUEDA_FOREVER));
      }
      Check(rueda_release(context, handle));
    }
    if (device != nullptr) device->Drain(bench.exec()->stream);
  };
  bench.Measure({"many_" + std::to_string(count) + "x" + std::to_string(bytes), bytes * count,
                 iterations, 5, true, step});
}

}  // namespace rueda::bench
