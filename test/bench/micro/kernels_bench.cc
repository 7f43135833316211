// Reductions on the CPU, with the vectors that this machine has.
#include "ops/kernels/reduce.h"

#include "test/bench/micro/micro.h"

namespace rueda::micro {
namespace {

class Reduction {
 public:
  Reduction(DType dtype, size_t bytes, size_t sources, int64_t divisor)
      : dtype_(dtype), count_(static_cast<int64_t>(bytes / DTypeSize(dtype))), result_(bytes) {
    scaling_.divisor = divisor;
    for (size_t i = 0; i < sources; ++i) data_.emplace_back(bytes, uint8_t{0x3c});
    for (const std::vector<uint8_t>& each : data_) sources_.push_back(each.data());
  }

  void operator()() {
    kernels::Reduce(dtype_, ReduceOp::kSum, sources_, result_.data(), count_, scaling_);
    benchmark::ClobberMemory();
  }

 private:
  const DType dtype_;
  const int64_t count_;
  Scaling scaling_;
  std::vector<std::vector<uint8_t>> data_;
  std::vector<const void*> sources_;
  std::vector<uint8_t> result_;
};

void AddReduction(const std::string& name, DType dtype, size_t bytes, size_t sources = 2,
                  int64_t divisor = 1) {
  Add(
      absl::StrCat("kernels/", name), [=] { return Reduction(dtype, bytes, sources, divisor); },
      bytes < 1'024 ? kCounted : 256);
}

}  // namespace

void AddKernels() {
  AddReduction("sum/float32/4", DType::kFloat32, 4);
  AddReduction("sum/float32/4K", DType::kFloat32, 4 << 10);
  AddReduction("sum/float32/256K", DType::kFloat32, 256 << 10);
  AddReduction("sum/float64/4K", DType::kFloat64, 4 << 10);
  AddReduction("sum/bfloat16/4K", DType::kBFloat16, 4 << 10);
  AddReduction("sum/float16/4K", DType::kFloat16, 4 << 10);
  AddReduction("sum/float8_e4m3fn/4K", DType::kFloat8E4M3FN, 4 << 10);
  AddReduction("sum/float8_e5m2/4K", DType::kFloat8E5M2, 4 << 10);
  AddReduction("sum/int8/4K", DType::kInt8, 4 << 10);
  AddReduction("average/float32/4K", DType::kFloat32, 4 << 10, 2, 2);
  AddReduction("average/bfloat16/4K", DType::kBFloat16, 4 << 10, 2, 2);
  AddReduction("sum_of_8/float32/4K", DType::kFloat32, 4 << 10, 8);
}

}  // namespace rueda::micro
