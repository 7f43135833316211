// The operators of torch.ops.rueda; torch.hpp documents them.
#include <torch/library.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "rueda/torch.hpp"

namespace rueda::libtorch {
namespace {

reduce_op ReduceOp(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, reduce_op>, 10> kOps = {{
      {"average", Average},
      {"sum", Sum},
      {"min", Min},
      {"max", Max},
      {"product", Product},
      {"band", Band},
      {"bor", Bor},
      {"bxor", Bxor},
      {"adasum", Adasum},
      {"average_live", AverageLive},
  }};
  for (const auto& [known, op] : kOps) {
    if (known == name) return op;
  }
  throw Error(RUEDA_INVALID_ARGUMENT,
              "op '" + std::string(name) +
                  "'; expected average, sum, min, max, product, band, bor, bxor, adasum or "
                  "average_live");
}

ProcessSet Set(int64_t id) {
  return {static_cast<int32_t>(id)};
}

at::Tensor AllreduceOperator(const at::Tensor& tensor, std::string_view name, std::string_view op,
                             double prescale_factor, double postscale_factor, int64_t process_set) {
  return allreduce(tensor, {.name = std::string(name),
                            .op = ReduceOp(op),
                            .prescale_factor = prescale_factor,
                            .postscale_factor = postscale_factor,
                            .process_set = Set(process_set)});
}

at::Tensor AllreduceInPlaceOperator(at::Tensor tensor, std::string_view name, std::string_view op,
                                    double prescale_factor, double postscale_factor,
                                    int64_t process_set) {
  return allreduce_(tensor, {.name = std::string(name),
                             .op = ReduceOp(op),
                             .prescale_factor = prescale_factor,
                             .postscale_factor = postscale_factor,
                             .process_set = Set(process_set)});
}

at::Tensor BroadcastOperator(const at::Tensor& tensor, int64_t root_rank, std::string_view name,
                             int64_t process_set) {
  return broadcast(tensor, static_cast<int>(root_rank),
                   {.name = std::string(name), .process_set = Set(process_set)});
}

at::Tensor BroadcastInPlaceOperator(at::Tensor tensor, int64_t root_rank, std::string_view name,
                                    int64_t process_set) {
  return broadcast_(tensor, static_cast<int>(root_rank),
                    {.name = std::string(name), .process_set = Set(process_set)});
}

at::Tensor AllgatherOperator(const at::Tensor& tensor, std::string_view name, int64_t process_set) {
  return allgather(tensor, {.name = std::string(name), .process_set = Set(process_set)});
}

std::vector<at::Tensor> GroupedAllreduceOperator(at::TensorList tensors, std::string_view name,
                                                 std::string_view op, double prescale_factor,
                                                 double postscale_factor, int64_t process_set) {
  return grouped_allreduce(tensors.vec(), {.name = std::string(name),
                                           .op = ReduceOp(op),
                                           .prescale_factor = prescale_factor,
                                           .postscale_factor = postscale_factor,
                                           .process_set = Set(process_set)});
}

std::vector<at::Tensor> GroupedAllgatherOperator(at::TensorList tensors, std::string_view name,
                                                 int64_t process_set) {
  return grouped_allgather(tensors.vec(),
                           {.name = std::string(name), .process_set = Set(process_set)});
}

std::tuple<at::Tensor, at::Tensor> AlltoallOperator(const at::Tensor& tensor,
                                                    c10::IntArrayRef splits, std::string_view name,
                                                    int64_t process_set) {
  return alltoall_with_splits(
      tensor, {.splits = splits, .name = std::string(name), .process_set = Set(process_set)});
}

at::Tensor ReducescatterOperator(const at::Tensor& tensor, std::string_view name,
                                 std::string_view op, double prescale_factor,
                                 double postscale_factor, int64_t process_set) {
  return reducescatter(tensor, {.name = std::string(name),
                                .op = ReduceOp(op),
                                .prescale_factor = prescale_factor,
                                .postscale_factor = postscale_factor,
                                .process_set = Set(process_set)});
}

std::vector<at::Tensor> GroupedReducescatterOperator(at::TensorList tensors, std::string_view name,
                                                     std::string_view op, double prescale_factor,
                                                     double postscale_factor, int64_t process_set) {
  return grouped_reducescatter(tensors.vec(), {.name = std::string(name),
                                               .op = ReduceOp(op),
                                               .prescale_factor = prescale_factor,
                                               .postscale_factor = postscale_factor,
                                               .process_set = Set(process_set)});
}

// Elsewhere than on the root there is no result: None.
std::optional<at::Tensor> Optional(at::Tensor tensor) {
  if (!tensor.defined()) return std::nullopt;
  return tensor;
}

std::optional<at::Tensor> ReduceOperator(const at::Tensor& tensor, int64_t root_rank,
                                         std::string_view name, std::string_view op,
                                         double prescale_factor, double postscale_factor,
                                         int64_t process_set) {
  return Optional(reduce(tensor, static_cast<int>(root_rank),
                         {.name = std::string(name),
                          .op = ReduceOp(op),
                          .prescale_factor = prescale_factor,
                          .postscale_factor = postscale_factor,
                          .process_set = Set(process_set)}));
}

std::optional<at::Tensor> GatherOperator(const at::Tensor& tensor, int64_t root_rank,
                                         std::string_view name, int64_t process_set) {
  return Optional(gather(tensor, static_cast<int>(root_rank),
                         {.name = std::string(name), .process_set = Set(process_set)}));
}

at::Tensor ScatterOperator(const at::Tensor& tensor, int64_t root_rank, c10::IntArrayRef splits,
                           std::string_view name, int64_t process_set) {
  return scatter(tensor, static_cast<int>(root_rank),
                 {.splits = splits, .name = std::string(name), .process_set = Set(process_set)});
}

void SendOperator(const at::Tensor& tensor, int64_t rank, std::string_view name,
                  int64_t process_set) {
  send(tensor, static_cast<int>(rank),
       {.name = std::string(name), .process_set = Set(process_set)});
}

at::Tensor RecvInPlaceOperator(at::Tensor tensor, int64_t rank, std::string_view name,
                               int64_t process_set) {
  return recv_(tensor, static_cast<int>(rank),
               {.name = std::string(name), .process_set = Set(process_set)});
}

int64_t JoinOperator(int64_t process_set) {
  return join(Set(process_set));
}

void BarrierOperator(int64_t process_set) {
  barrier(Set(process_set));
}

// For what a compiler of graphs must neither drop, nor merge, nor reorder.
c10::FunctionSchema Effect(const char* text) {
  return torch::schema(text, c10::AliasAnalysisKind::CONSERVATIVE);
}

void AddKernels(torch::Library& library) {
  library.impl("allreduce", &AllreduceOperator);
  library.impl("allreduce_", &AllreduceInPlaceOperator);
  library.impl("broadcast", &BroadcastOperator);
  library.impl("broadcast_", &BroadcastInPlaceOperator);
  library.impl("allgather", &AllgatherOperator);
  library.impl("grouped_allreduce", &GroupedAllreduceOperator);
  library.impl("grouped_allgather", &GroupedAllgatherOperator);
  library.impl("alltoall", &AlltoallOperator);
  library.impl("reducescatter", &ReducescatterOperator);
  library.impl("grouped_reducescatter", &GroupedReducescatterOperator);
  library.impl("reduce", &ReduceOperator);
  library.impl("gather", &GatherOperator);
  library.impl("scatter", &ScatterOperator);
  library.impl("send", &SendOperator);
  library.impl("recv_", &RecvInPlaceOperator);
}

// Those whose results have a history: they make it themselves.
void AddKernelsWithHistory(torch::Library& library) {
  library.impl("allreduce", &AllreduceOperator);
  library.impl("broadcast", &BroadcastOperator);
  library.impl("allgather", &AllgatherOperator);
  library.impl("grouped_allreduce", &GroupedAllreduceOperator);
  library.impl("grouped_allgather", &GroupedAllgatherOperator);
  library.impl("alltoall", &AlltoallOperator);
  library.impl("reducescatter", &ReducescatterOperator);
  library.impl("grouped_reducescatter", &GroupedReducescatterOperator);
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
  library.def(Effect("join(int process_set=0) -> int"), &JoinOperator);

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
  library.def(
      Effect("grouped_allreduce(Tensor[] tensors, str name='', str op='average', "
             "float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0) -> "
             "Tensor[]"));
  library.def(
      Effect("grouped_allgather(Tensor[] tensors, str name='', int process_set=0) -> Tensor[]"));
  library.def(
      Effect("alltoall(Tensor tensor, int[] splits=[], str name='', int process_set=0) -> "
             "(Tensor, Tensor)"));
  library.def(Effect(
      "reducescatter(Tensor tensor, str name='', str op='average', *, "
      "float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0) -> Tensor"));
  library.def(
      Effect("grouped_reducescatter(Tensor[] tensors, str name='', str op='average', "
             "*, float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0) -> "
             "Tensor[]"));
  library.def(
      Effect("reduce(Tensor tensor, int root_rank, str name='', str op='average', "
             "float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0) -> "
             "Tensor?"));
  library.def(
      Effect("gather(Tensor tensor, int root_rank, str name='', int process_set=0) -> Tensor?"));
  library.def(
      Effect("scatter(Tensor tensor, int root_rank, int[] splits=[], str name='', "
             "int process_set=0) -> Tensor"));
  library.def(Effect("send(Tensor tensor, int rank, str name='', int process_set=0) -> ()"));
  library.def("recv_(Tensor(a!) tensor, int rank, str name='', int process_set=0) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(rueda, CPU, library) {
  AddKernels(library);
}
TORCH_LIBRARY_IMPL(rueda, CUDA, library) {
  AddKernels(library);
}
TORCH_LIBRARY_IMPL(rueda, AutogradCPU, library) {
  AddKernelsWithHistory(library);
}
TORCH_LIBRARY_IMPL(rueda, AutogradCUDA, library) {
  AddKernelsWithHistory(library);
}

}  // namespace rueda::libtorch
