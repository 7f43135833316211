// The operators of torch.ops.rueda; torch.hpp documents them.
#include <torch/library.h>

#include <array>
#include <string_view>
#include <utility>

#include "rueda/torch.hpp"

namespace rueda::libtorch {
namespace {

reduce_op ReduceOp(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, reduce_op>, 5> kOps = {{
      {"average", Average},
      {"sum", Sum},
      {"min", Min},
      {"max", Max},
      {"product", Product},
  }};
  for (const auto& [known, op] : kOps) {
    if (known == name) return op;
  }
  throw Error(RUEDA_INVALID_ARGUMENT,
              "op '" + std::string(name) + "'; expected average, sum, min, max or product");
}

ProcessSet Set(int64_t id) {
  return {static_cast<int32_t>(id)};
}

at::Tensor AllreduceOperator(const at::Tensor& tensor, std::string_view name, std::string_view op,
                             double prescale_factor, double postscale_factor, int64_t process_set) {
  return allreduce(tensor, std::string(name), ReduceOp(op), prescale_factor, postscale_factor,
                   Set(process_set));
}

at::Tensor AllreduceInPlaceOperator(at::Tensor tensor, std::string_view name, std::string_view op,
                                    double prescale_factor, double postscale_factor,
                                    int64_t process_set) {
  return allreduce_(tensor, std::string(name), ReduceOp(op), prescale_factor, postscale_factor,
                    Set(process_set));
}

at::Tensor BroadcastOperator(const at::Tensor& tensor, int64_t root_rank, std::string_view name,
                             int64_t process_set) {
  return broadcast(tensor, static_cast<int>(root_rank), std::string(name), Set(process_set));
}

at::Tensor BroadcastInPlaceOperator(at::Tensor tensor, int64_t root_rank, std::string_view name,
                                    int64_t process_set) {
  return broadcast_(tensor, static_cast<int>(root_rank), std::string(name), Set(process_set));
}

at::Tensor AllgatherOperator(const at::Tensor& tensor, std::string_view name, int64_t process_set) {
  return allgather(tensor, std::string(name), Set(process_set));
}

void BarrierOperator(int64_t process_set) {
  barrier(Set(process_set));
}

// For what a compiler of graphs must neither drop, nor merge, nor reorder.
c10::FunctionSchema Effect(const char* text) {
  return torch::schema(text, c10::AliasAnalysisKind::CONSERVATIVE);
}

}  // namespace

TORCH_LIBRARY(rueda, library) {
  // Take no tensor by which a kernel could be chosen.
  library.def(Effect("init() -> ()"), [] { init(); });
  library.def(Effect("shutdown() -> ()"), &shutdown);
  library.def(Effect("rank() -> int"), []() -> int64_t { return rank(); });
  library.def(Effect("size() -> int"), []() -> int64_t { return size(); });
  library.def(Effect("local_rank() -> int"), []() -> int64_t { return local_rank(); });
  library.def(Effect("local_size() -> int"), []() -> int64_t { return local_size(); });
  library.def(Effect("barrier(int process_set=0) -> ()"), &BarrierOperator);

  library.def(
      Effect("allreduce(Tensor tensor, str name='', str op='average', float prescale_factor=1.0, "
             "float postscale_factor=1.0, int process_set=0) -> Tensor"));
  library.def(
      "allreduce_(Tensor(a!) tensor, str name='', str op='average', float prescale_factor=1.0, "
      "float postscale_factor=1.0, int process_set=0) -> Tensor(a!)");
  library.def(
      Effect("broadcast(Tensor tensor, int root_rank, str name='', int process_set=0) -> Tensor"));
  library.def(
      "broadcast_(Tensor(a!) tensor, int root_rank, str name='', int process_set=0) -> "
      "Tensor(a!)");
  library.def(Effect("allgather(Tensor tensor, str name='', int process_set=0) -> Tensor"));
}

TORCH_LIBRARY_IMPL(rueda, CPU, library) {
  library.impl("allreduce", &AllreduceOperator);
  library.impl("allreduce_", &AllreduceInPlaceOperator);
  library.impl("broadcast", &BroadcastOperator);
  library.impl("broadcast_", &BroadcastInPlaceOperator);
  library.impl("allgather", &AllgatherOperator);
}

}  // namespace rueda::libtorch
