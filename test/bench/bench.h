#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rueda/rueda.h"
#include "test/bench/options.h"
#include "test/bench/tensor.h"

namespace rueda::bench {

// Something to do again and again.
struct Loop {
  std::string op;
  size_t bytes = 0;
  int iterations = 1;
  int warm = 0;          // iterations before those, which don't count
  bool barrier = false;  // before each
  std::function<void()> once;
};

// Times loops on all ranks of a context; rank 0 prints what they took.
class Bench {
 public:
  Bench(rueda_context* context, const Options& options);
  ~Bench();

  void Measure(const Loop& loop);
  void Report(const std::string& op, size_t bytes, std::vector<double> times_us);
  void Barrier();

  rueda_context* context() const { return context_; }
  // A tensor where the options say.
  std::unique_ptr<Tensor> NewTensor(size_t bytes, const std::string& dtype = "float32") const;
  // Where operations on it run; null on the CPU. `stream`: the benchmark's own.
  const rueda_exec* exec() const { return device_ == nullptr ? nullptr : &exec_; }
  const Device* device() const { return device_.get(); }
  const Options& options() const { return options_; }
  int size() const { return size_; }
  int rank() const { return rank_; }

 private:
  // At most two seconds' worth, as many on all ranks, unless the user has said how many.
  Loop InTime(Loop loop);
  void Compare(const Loop& loop);
  std::vector<double> TimesOf(const Loop& loop);

  rueda_context* const context_;
  const Options& options_;
  const int size_;
  const int rank_;
  std::unique_ptr<Device> device_;  // null: the CPU
  rueda_exec exec_ = RUEDA_EXEC_INIT;
  bool header_printed_ = false;
};

double Median(std::vector<double> values);

}  // namespace rueda::bench
