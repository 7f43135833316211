// The operators of torch.ops.rueda; torch.hpp documents them.
//
// A compiler of graphs traces them with tensors that have no memory: the kernels for Meta say what
// the results are like. Operators whose results have shapes that depend on other ranks, and those
// without tensors, are tagged such that a graph ends before them.
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "bindings/torch/gradients.h"
#include "rueda/torch.hpp"

namespace rueda::libtorch {
namespace {

constexpr std::array<std::pair<std::string_view, reduce_op>, 10> kOps = {{
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

reduce_op ReduceOp(std::string_view name) {
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

// Of rows whose number is known.
std::vector<at::Tensor> GatheredRowsOperator(at::TensorList tensors, c10::SymIntArrayRef /*rows*/,
                                             bool grouped, std::string_view name,
                                             int64_t process_set) {
  if (grouped) return GroupedAllgatherOperator(tensors, name, process_set);
  return {AllgatherOperator(tensors[0], name, process_set)};
}

at::Tensor RecvOperator(const at::Tensor& like, int64_t rank, std::string_view name,
                        int64_t process_set) {
  return RecvInPlaceOperator(at::empty_like(like, at::MemoryFormat::Contiguous), rank, name,
                             process_set);
}

// ---- what a compiler of graphs traces ----

at::Tensor Like(const at::Tensor& tensor) {
  return at::empty_symint(tensor.sym_sizes(), tensor.options());
}

at::Tensor LikeRows(const at::Tensor& tensor, const c10::SymInt& rows) {
  std::vector<c10::SymInt> shape = tensor.sym_sizes().vec();
  if (shape.empty()) shape.emplace_back();
  shape[0] = rows;
  return at::empty_symint(shape, tensor.options());
}

// As the library shares rows: equal parts, the lowest ranks one row more.
at::Tensor LikeOwnRows(const at::Tensor& tensor, int64_t process_set) {
  rueda_context* const context = CurrentContext();
  const auto id = static_cast<int32_t>(process_set);
  const int32_t size = rueda_process_set_size(context, id);
  const int32_t rank = rueda_process_set_rank(context, id);
  if (size < 0 || rank < 0) {
    throw Error(RUEDA_NOT_FOUND, "this rank is in no process set " + std::to_string(id));
  }
  if (tensor.dim() == 0) throw Error(RUEDA_INVALID_ARGUMENT, "a scalar has no rows to share");
  return LikeRows(tensor, (tensor.sym_size(0) + (size - 1 - rank)) / size);
}

template <typename Function>
std::vector<at::Tensor> OfEach(at::TensorList tensors, const Function& function) {
  std::vector<at::Tensor> results;
  std::transform(tensors.begin(), tensors.end(), std::back_inserter(results), function);
  return results;
}

at::Tensor AllreduceMeta(const at::Tensor& tensor, std::string_view /*name*/, std::string_view op,
                         double /*prescale_factor*/, double /*postscale_factor*/,
                         int64_t /*process_set*/) {
  ReduceOp(op);
  return Like(tensor);
}

std::vector<at::Tensor> GroupedAllreduceMeta(at::TensorList tensors, std::string_view /*name*/,
                                             std::string_view op, double /*prescale_factor*/,
                                             double /*postscale_factor*/, int64_t /*process_set*/) {
  ReduceOp(op);
  return OfEach(tensors, Like);
}

at::Tensor BroadcastMeta(const at::Tensor& tensor, int64_t /*root_rank*/, std::string_view /*name*/,
                         int64_t /*process_set*/) {
  return Like(tensor);
}

std::vector<at::Tensor> GatheredRowsMeta(at::TensorList tensors, c10::SymIntArrayRef rows,
                                         bool /*grouped*/, std::string_view /*name*/,
                                         int64_t /*process_set*/) {
  size_t i = 0;
  return OfEach(tensors, [&](const at::Tensor& tensor) { return LikeRows(tensor, rows[i++]); });
}

at::Tensor ReducescatterMeta(const at::Tensor& tensor, std::string_view /*name*/,
                             std::string_view op, double /*prescale_factor*/,
                             double /*postscale_factor*/, int64_t process_set) {
  ReduceOp(op);
  return LikeOwnRows(tensor, process_set);
}

std::vector<at::Tensor> GroupedReducescatterMeta(at::TensorList tensors, std::string_view /*name*/,
                                                 std::string_view op, double /*prescale_factor*/,
                                                 double /*postscale_factor*/, int64_t process_set) {
  ReduceOp(op);
  return OfEach(tensors,
                [&](const at::Tensor& tensor) { return LikeOwnRows(tensor, process_set); });
}

std::optional<at::Tensor> ReduceMeta(const at::Tensor& tensor, int64_t root_rank,
                                     std::string_view /*name*/, std::string_view op,
                                     double /*prescale_factor*/, double /*postscale_factor*/,
                                     int64_t /*process_set*/) {
  ReduceOp(op);
  if (rank() != root_rank) return std::nullopt;
  return Like(tensor);
}

void SendMeta(const at::Tensor& /*tensor*/, int64_t /*rank*/, std::string_view /*name*/,
              int64_t /*process_set*/) {}

// In place on a tensor without memory nothing happens.
template <typename... Rest>
at::Tensor InPlaceMeta(at::Tensor tensor, Rest... /*rest*/) {
  return tensor;
}

template <typename Kernel>
c10::TypedOperatorHandle<Kernel> Find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Kernel>();
}

// An operator in place is, in a graph, the one that is not, and then a write.
template <typename... Rest>
at::Tensor Functional(const c10::TypedOperatorHandle<at::Tensor(const at::Tensor&, Rest...)>& other,
                      at::Tensor tensor, Rest... rest) {
  namespace functional = at::functionalization::impl;
  functional::sync(tensor);
  const at::Tensor inner = functional::from_functional_tensor(tensor);
  at::Tensor result;
  {
    const at::AutoDispatchSkipFunctionalize below;
    result = other.call(inner, rest...);
  }
  functional::replace_(tensor, result);
  functional::commit_update(tensor);
  functional::sync(tensor);
  return tensor;
}

at::Tensor AllreduceInPlaceFunctional(at::Tensor tensor, std::string_view name, std::string_view op,
                                      double prescale_factor, double postscale_factor,
                                      int64_t process_set) {
  static const auto other = Find<decltype(AllreduceOperator)>("rueda::allreduce");
  return Functional(other, std::move(tensor), name, op, prescale_factor, postscale_factor,
                    process_set);
}

at::Tensor BroadcastInPlaceFunctional(at::Tensor tensor, int64_t root_rank, std::string_view name,
                                      int64_t process_set) {
  static const auto other = Find<decltype(BroadcastOperator)>("rueda::broadcast");
  return Functional(other, std::move(tensor), root_rank, name, process_set);
}

at::Tensor RecvInPlaceFunctional(at::Tensor tensor, int64_t rank, std::string_view name,
                                 int64_t process_set) {
  static const auto other = Find<decltype(RecvOperator)>("rueda::_recv");
  return Functional(other, std::move(tensor), rank, name, process_set);
}

// ---- the operators ----

// For what TorchScript must neither drop, nor merge, nor reorder.
c10::FunctionSchema Effect(const char* text) {
  return torch::schema(text, c10::AliasAnalysisKind::CONSERVATIVE);
}

// The same for torch.compile, which keeps what is random where it does not know of effects.
const std::vector<at::Tag> kKept = {at::Tag::nondeterministic_seeded};
// Which of these two ends a graph makes no difference but in what torch says about it.
const std::vector<at::Tag> kUnknownShape = {at::Tag::nondeterministic_seeded,
                                            at::Tag::dynamic_output_shape};
const std::vector<at::Tag> kNotInGraphs = {at::Tag::nondeterministic_seeded,
                                           at::Tag::data_dependent_output};

template <typename Function>
void DefineWithoutTensors(torch::Library& library, const char* schema, Function function) {
  library.def(Effect(schema), kNotInGraphs);
  const std::string_view text = schema;
  library.impl(std::string(text.substr(0, text.find('('))).c_str(),
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
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
  library.impl("_gathered_rows", &GatheredRowsOperator);
  library.impl("_recv", &RecvOperator);
}

// They make it themselves.
void AddKernelsWithHistory(torch::Library& library) {
  library.impl("allreduce", &AllreduceOperator);
  library.impl("broadcast", &BroadcastOperator);
  library.impl("allgather", &AllgatherOperator);
  library.impl("grouped_allreduce", &GroupedAllreduceOperator);
  library.impl("grouped_allgather", &GroupedAllgatherOperator);
  library.impl("alltoall", &AlltoallOperator);
  library.impl("reducescatter", &ReducescatterOperator);
  library.impl("grouped_reducescatter", &GroupedReducescatterOperator);
  // What is written in place has none.
  for (const char* name : {"allreduce_", "broadcast_", "recv_"}) {
    library.impl(name, torch::CppFunction::makeFallthrough());
  }
}

std::string_view NameOf(reduce_op op) {
  for (const auto& [name, known] : kOps) {
    if (known == op) return name;
  }
  return "";
}

}  // namespace

bool IsTraced(const Call& call) {
  return std::any_of(call.tensors.begin(), call.tensors.end(),
                     [](const at::Tensor& tensor) {
                       return tensor.defined() && tensor.key_set().has(c10::DispatchKey::Python);
                     }) &&
         !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python);
}

std::vector<at::Tensor> CallOperator(const Call& call, c10::SymIntArrayRef rows) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor& first = call.tensors.front();
  const std::string_view op = NameOf(call.op);
  const int64_t set = call.process_set.id;
  const auto reduce = [&](const auto& one, const auto& group) -> std::vector<at::Tensor> {
    if (call.grouped) {
      return group.call(call.tensors, call.name, op, call.prescale, call.postscale, set);
    }
    return {one.call(first, call.name, op, call.prescale, call.postscale, set)};
  };
  switch (call.kind) {
    case RUEDA_ALLREDUCE: {
      static const auto one = Find<decltype(AllreduceOperator)>("rueda::allreduce");
      static const auto group =
          Find<decltype(GroupedAllreduceOperator)>("rueda::grouped_allreduce");
      return reduce(one, group);
    }
    case RUEDA_REDUCESCATTER: {
      static const auto one = Find<decltype(ReducescatterOperator)>("rueda::reducescatter");
      static const auto group =
          Find<decltype(GroupedReducescatterOperator)>("rueda::grouped_reducescatter");
      return reduce(one, group);
    }
    case RUEDA_BROADCAST: {
      static const auto one = Find<decltype(BroadcastOperator)>("rueda::broadcast");
      return {one.call(first, call.root, call.name, set)};
    }
    case RUEDA_ALLGATHER: {
      static const auto known = Find<decltype(GatheredRowsOperator)>("rueda::_gathered_rows");
      static const auto one = Find<decltype(AllgatherOperator)>("rueda::allgather");
      static const auto group =
          Find<decltype(GroupedAllgatherOperator)>("rueda::grouped_allgather");
      if (!rows.empty()) return known.call(call.tensors, rows, call.grouped, call.name, set);
      if (call.grouped) return group.call(call.tensors, call.name, set);
      return {one.call(first, call.name, set)};
    }
    default: {
      static const auto one = Find<decltype(AlltoallOperator)>("rueda::alltoall");
      const auto [result, splits] = one.call(first, call.splits, call.name, set);
      return {result, splits};
    }
  }
}

TORCH_LIBRARY(rueda, library) {
  DefineWithoutTensors(library, "init() -> ()", [] { init(); });
  DefineWithoutTensors(library, "shutdown() -> ()", &shutdown);
  DefineWithoutTensors(library, "rank() -> int", []() -> int64_t { return rank(); });
  DefineWithoutTensors(library, "size() -> int", []() -> int64_t { return size(); });
  DefineWithoutTensors(library, "local_rank() -> int", []() -> int64_t { return local_rank(); });
  DefineWithoutTensors(library, "local_size() -> int", []() -> int64_t { return local_size(); });
  DefineWithoutTensors(library, "barrier(int process_set=0) -> ()", &BarrierOperator);
  DefineWithoutTensors(library, "join(int process_set=0) -> int", &JoinOperator);

  library.def(
      Effect("allreduce(Tensor tensor, str name='', str op='average', float prescale_factor=1.0, "
             "float postscale_factor=1.0, int process_set=0) -> Tensor"),
      kKept);
  library.def(
      "allreduce_(Tensor(a!) tensor, str name='', str op='average', float prescale_factor=1.0, "
      "float postscale_factor=1.0, int process_set=0) -> Tensor(a!)");
  library.def(
      Effect("broadcast(Tensor tensor, int root_rank, str name='', int process_set=0) -> Tensor"),
      kKept);
  library.def(
      "broadcast_(Tensor(a!) tensor, int root_rank, str name='', int process_set=0) -> "
      "Tensor(a!)");
  library.def(Effect("allgather(Tensor tensor, str name='', int process_set=0) -> Tensor"),
              kUnknownShape);
  library.def(Effect("grouped_allreduce(Tensor[] tensors, str name='', str op='average', "
                     "float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0) -> "
                     "Tensor[]"),
              kKept);
  library.def(
      Effect("grouped_allgather(Tensor[] tensors, str name='', int process_set=0) -> Tensor[]"),
      kUnknownShape);
  library.def(Effect("alltoall(Tensor tensor, int[] splits=[], str name='', int process_set=0) -> "
                     "(Tensor, Tensor)"),
              kUnknownShape);
  library.def(
      Effect("reducescatter(Tensor tensor, str name='', str op='average', *, "
             "float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0) -> Tensor"),
      kKept);
  library.def(
      Effect("grouped_reducescatter(Tensor[] tensors, str name='', str op='average', "
             "*, float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0) -> "
             "Tensor[]"),
      kKept);
  library.def(Effect("reduce(Tensor tensor, int root_rank, str name='', str op='average', "
                     "float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0) -> "
                     "Tensor?"),
              kKept);
  library.def(
      Effect("gather(Tensor tensor, int root_rank, str name='', int process_set=0) -> Tensor?"),
      kUnknownShape);
  library.def(Effect("scatter(Tensor tensor, int root_rank, int[] splits=[], str name='', "
                     "int process_set=0) -> Tensor"),
              kUnknownShape);
  library.def(Effect("send(Tensor tensor, int rank, str name='', int process_set=0) -> ()"), kKept);
  library.def("recv_(Tensor(a!) tensor, int rank, str name='', int process_set=0) -> Tensor(a!)");
  // For graphs: the backward pass of a reducescatter, and recv_.
  library.def(Effect("_gathered_rows(Tensor[] tensors, SymInt[] rows, bool grouped, str name, "
                     "int process_set) -> Tensor[]"),
              kKept);
  library.def(Effect("_recv(Tensor like, int rank, str name, int process_set) -> Tensor"), kKept);
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
TORCH_LIBRARY_IMPL(rueda, Meta, library) {
  library.impl("allreduce", &AllreduceMeta);
  library.impl("allreduce_",
               &InPlaceMeta<std::string_view, std::string_view, double, double, int64_t>);
  library.impl("broadcast", &BroadcastMeta);
  library.impl("broadcast_", &InPlaceMeta<int64_t, std::string_view, int64_t>);
  library.impl("grouped_allreduce", &GroupedAllreduceMeta);
  library.impl("reducescatter", &ReducescatterMeta);
  library.impl("grouped_reducescatter", &GroupedReducescatterMeta);
  library.impl("reduce", &ReduceMeta);
  library.impl("send", &SendMeta);
  library.impl("recv_", &InPlaceMeta<int64_t, std::string_view, int64_t>);
  library.impl("_gathered_rows", &GatheredRowsMeta);
  library.impl("_recv", &BroadcastMeta);
}
TORCH_LIBRARY_IMPL(rueda, Functionalize, library) {
  library.impl("allreduce_", &AllreduceInPlaceFunctional);
  library.impl("broadcast_", &BroadcastInPlaceFunctional);
  library.impl("recv_", &RecvInPlaceFunctional);
}

}  // namespace rueda::libtorch
