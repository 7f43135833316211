#include "bindings/torch/c10d/backend.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "bindings/torch/c10d/errors.h"
#include "bindings/torch/c10d/tensors.h"
#include "rueda/rueda.hpp"

namespace rueda::libtorch {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensor = at::Tensor;
using Tensors = std::vector<at::Tensor>;

struct Reduction {
  reduce_op op;
  double prescale = 1;
};

Reduction ReductionOf(const ReduceOp& op) {
  switch (op.op_) {
    case ReduceOp::SUM:
      return {RUEDA_SUM};
    case ReduceOp::AVG:
      return {RUEDA_AVERAGE};
    case ReduceOp::PRODUCT:
      return {RUEDA_PRODUCT};
    case ReduceOp::MIN:
      return {RUEDA_MIN};
    case ReduceOp::MAX:
      return {RUEDA_MAX};
    case ReduceOp::BAND:
      return {RUEDA_BAND};
    case ReduceOp::BOR:
      return {RUEDA_BOR};
    case ReduceOp::BXOR:
      return {RUEDA_BXOR};
    case ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (factor == nullptr) break;
      const bool is_tensor = factor->tensor_factor.defined();
      return {RUEDA_SUM, is_tensor ? factor->tensor_factor.item<double>() : factor->double_factor};
    }
    default:
      break;
  }
  return WithPythonsErrors([]() -> Reduction {
    throw Error(RUEDA_UNIMPLEMENTED,
                "there is no such reduce operation: sums, averages, products, minima, maxima, "
                "bitwise operations and premultiplied sums are");
  });
}

Tensor Joined(const Tensors& tensors) {
  if (tensors.size() == 1) return Flat(tensors.front());
  Tensors flat;
  for (const Tensor& tensor : tensors) flat.push_back(Flat(tensor));
  return at::cat(flat);
}

std::vector<int64_t> SizesOf(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

int64_t SumOf(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

// The numbers of `whole`, one tensor after another.
void DealOut(const Tensor& whole, const Tensors& outputs) {
  int64_t begin = 0;
  for (const Tensor& output : outputs) {
    Put(output, whole.narrow(0, begin, output.numel()));
    begin += output.numel();
  }
}

// Raises a ValueError unless that many elements have come from the ranks.
void Expect(const char* what, const std::vector<int64_t>& expected,
            const std::vector<int64_t>& received) {
  TORCH_CHECK_VALUE(received == expected, what, ": [", c10::Join(", ", received),
                    "] elements have come from the ranks, and [", c10::Join(", ", expected),
                    "] were expected");
}

// torch 2.11 has no word for it.
template <typename T>
constexpr T ReduceScattersOf() {
  if constexpr (requires { T::REDUCE_SCATTER_TENSOR_COALESCED; }) {
    return T::REDUCE_SCATTER_TENSOR_COALESCED;
  } else {
    return T::COALESCED;
  }
}

// The library numbers the ranks of each group from 0; who reads of a rank must know of which.
std::string TitleOf(const std::string& group, const std::vector<int64_t>& global_ranks) {
  constexpr size_t kShown = 16;
  std::string title = "process group " + group;
  bool renumbers = false;
  for (size_t rank = 0; rank < global_ranks.size(); ++rank) {
    renumbers |= global_ranks[rank] != static_cast<int64_t>(rank);
  }
  if (!renumbers) return title;
  const c10::ArrayRef<int64_t> all(global_ranks);
  title += " (its ranks, from 0, are the job's " +
           c10::Join(", ", all.slice(0, std::min(all.size(), kShown)));
  return title + (all.size() > kShown ? ", ...)" : ")");
}

}  // namespace

GroupBackend::GroupBackend(rueda_context* context, const c10::intrusive_ptr<c10d::Store>& store,
                           int rank, int size, Milliseconds timeout, const std::string& name,
                           std::vector<int64_t> global_ranks)
    : c10d::Backend(rank, size),
      global_ranks_(std::move(global_ranks)),
      session_(Session::Open(context, name, TitleOf(name, global_ranks_), rank, store)),
      timeout_(timeout) {
  const auto own = std::make_shared<OwnStore>(store);
  sent_ = std::make_shared<SentMessages>(own, rank);
  wanted_ = std::make_shared<WantedMessages>(
      own, session_, rank, size, [this](const Tensors& tensors, int source, int tag, int64_t last) {
        return Message(tensors, source, tag, Way::kFrom, last);
      });
}

GroupBackend::~GroupBackend() {
  const WithoutPython no_python;
  wanted_->Close();
}

c10::intrusive_ptr<c10d::Backend::Options> GroupBackend::getBackendOptions() {
  auto options = c10::make_intrusive<Options>(getBackendName(), timeout_.load());
  options->group_name = session_->group();
  options->global_ranks_in_group.assign(global_ranks_.begin(), global_ranks_.end());
  return options;
}

void GroupBackend::registerOnCompletionHook(CompletionHook::Hook&& hook) {
  TORCH_CHECK(hook_ == nullptr, "the process group has a completion hook already");
  hook_ = std::make_shared<CompletionHook>(std::move(hook));
  onCompletionHook_ = [](const auto&) {};  // hasHooks() looks whether there is one
}

void GroupBackend::waitForPendingWorks() {
  const WithoutPython no_python;
  std::exception_ptr error;
  for (const auto& work : session_->Pending()) {
    try {
      (void)work->wait();
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  }
  const Milliseconds limit = timeout_;
  if (hook_ != nullptr && !WaitInSlices(limit, [&](auto slice) { return hook_->Await(slice); })) {
    WithPythonsErrors([&] {
      throw Error(
          RUEDA_DEADLINE_EXCEEDED,
          session_->title() + ": the completion hook has not ended within " + InSeconds(limit));
    });
  }
  if (error != nullptr) std::rethrow_exception(error);
}

c10d::ErrorType GroupBackend::getError() {
  rueda_error cause = RUEDA_ERROR_INIT;
  try {
    (void)rueda_context_error(session_->context(), &cause);
  } catch (const Error&) {  // the group has ended, or is a parent's: that is none
  }
  return cause.code == RUEDA_OK ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
}

void GroupBackend::abort() {
  session_->Abort("rank " + std::to_string(rank_) + " aborted its process group");
}

// ---- how operations run ----

c10::intrusive_ptr<GroupWork> GroupBackend::Begin(const Kind& kind, const Call& call,
                                                  Tensors outputs, const Terms& terms,
                                                  Finish finish) {
  const Milliseconds groups = timeout_;
  WorkPlan plan;
  plan.type = kind.type;
  plan.title = kind.title;
  plan.inputs = call.tensors.vec();
  plan.outputs = std::move(outputs);
  plan.limit = terms.timeout.count() > 0 ? std::min(terms.timeout, groups) : groups;
  plan.finish = std::move(finish);
  // On all ranks alike, also where a root's numbers stay: else one raises, and the others wait.
  plan.writes = call.kind != RUEDA_SEND;
  plan.number = ++begun_;
  const auto work = WithPythonsErrors(
      [&] { return GroupWork::Begin(session_, call, std::move(plan), !terms.is_async); });
  if (hook_ != nullptr) hook_->Follow(work);
  return work;
}

GroupBackend::WorkPtr GroupBackend::Run(const Kind& kind, const Call& call, Tensors outputs,
                                        const Terms& terms, Finish finish) {
  return Together(Begin(kind, call, std::move(outputs),
                        {terms.timeout, terms.is_async || IsCoalescing()}, std::move(finish)));
}

void GroupBackend::TellAll(const Kind& kind, Call call, const c10::Error& error) {
  constexpr size_t kBytes = 1'000;
  const std::string fault = std::string(error.what_without_backtrace()).substr(0, kBytes);
  const Tensor nothing = at::empty({0});
  call.tensors = nothing;
  call.fault = fault;
  (void)Begin(kind, call, {}, Terms(), nullptr);
}

GroupBackend::WorkPtr GroupBackend::Together(WorkPtr work) {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  if (coalescing_on_ == std::this_thread::get_id()) coalesced_.push_back(work);
  return work;
}

GroupBackend::WorkPtr GroupBackend::Into(const Kind& kind, Call call, const Tensors& inputs,
                                         const Tensors& outputs, const Terms& terms,
                                         bool own_part) {
  const at::NoGradGuard no_grad;
  Tensors flat, targets;
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Tensor target = IsPlain(outputs[i]) ? outputs[i].detach() : ContiguousLike(outputs[i]);
    if (!IsPlain(outputs[i])) copies.emplace_back(outputs[i], target);
    targets.push_back(target.view(-1));
    flat.push_back(Apart(Flat(inputs[i]).contiguous(), targets.back(), own_part));
  }
  call.tensors = flat;
  call.outputs = targets;
  if (copies.empty()) return Run(kind, call, outputs, terms);
  return Run(kind, call, outputs, terms, [copies](Operation&) {
    for (const auto& [output, target] : copies) Put(output, target);
  });
}

// The input, or a copy if it lies in the output.
Tensor GroupBackend::Apart(const Tensor& input, const Tensor& output, bool own_part) const {
  const auto* const begin = static_cast<const char*>(output.const_data_ptr());
  const auto* const at = static_cast<const char*>(input.const_data_ptr());
  if (at >= begin + output.nbytes() || at + input.nbytes() <= begin) return input;
  return own_part && at == begin + static_cast<size_t>(rank_) * input.nbytes() ? input
                                                                               : input.clone();
}

GroupBackend::WorkPtr GroupBackend::Exchange(const Kind& kind, Call call, const Tensor& flat,
                                             std::vector<int64_t> expected, const Tensors& outputs,
                                             const Terms& terms) {
  call.tensors = flat;
  return Run(kind, call, outputs, terms,
             [what = kind.title, expected = std::move(expected), outputs](Operation& operation) {
               Expect(what, expected, operation.WaitForSplits().front());
               DealOut(operation.Wait().front(), outputs);
             });
}

// ---- reductions ----

GroupBackend::WorkPtr GroupBackend::allreduce(Tensors& tensors,
                                              const c10d::AllreduceOptions& opts) {
  TORCH_CHECK_VALUE(!tensors.empty(), "all_reduce: there is no tensor");
  if (tensors.front().is_sparse()) return allreduce_sparse(tensors, opts);
  const Reduction reduction = ReductionOf(opts.reduceOp);
  return Run({OpType::ALLREDUCE, "rueda:all_reduce"},
             {.kind = RUEDA_ALLREDUCE,
              .tensors = tensors,
              .in_place = true,
              .grouped = tensors.size() > 1,
              .name = NoName(),
              .op = reduction.op,
              .prescale = reduction.prescale},
             tensors, TermsOf(opts));
}

GroupBackend::WorkPtr GroupBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  const Reduction reduction = ReductionOf(opts.reduceOp);
  return Run({OpType::ALLREDUCE_COALESCED, "rueda:all_reduce_coalesced"},
             {.kind = RUEDA_ALLREDUCE,
              .tensors = tensors,
              .in_place = true,
              .grouped = true,
              .name = NoName(),
              .op = reduction.op,
              .prescale = reduction.prescale},
             tensors, TermsOf(opts));
}

GroupBackend::WorkPtr GroupBackend::allreduce_sparse(Tensors& tensors,
                                                     const c10d::AllreduceOptions& opts) {
  const Tensor tensor = OnlyOne(tensors, "all_reduce of sparse tensors");
  const bool averages = opts.reduceOp.op_ == ReduceOp::AVG;
  WithPythonsErrors([&] {
    if (averages || opts.reduceOp.op_ == ReduceOp::SUM) return;
    throw Error(RUEDA_UNIMPLEMENTED, "sparse tensors are added up or averaged");
  });
  const auto type = tensor.scalar_type();
  const bool is_exact = averages && at::isIntegralType(type, /*includeBool=*/true);
  WithPythonsErrors([&] {
    if (is_exact && (type == at::kBool || type == at::kUInt64)) {
      throw Error(RUEDA_UNIMPLEMENTED, "sparse tensors of bool and uint64 can't be averaged");
    }
  });
  const at::NoGradGuard no_grad;
  // A sum of integers that is to be divided must not wrap around before.
  const Tensor whole = is_exact ? tensor.detach() : tensor.detach().coalesce();
  const Tensors parts = {whole._indices().t().contiguous(), whole._values().contiguous()};
  return Run({OpType::_ALLREDUCE_SPARSE, "rueda:all_reduce_sparse"},
             {.kind = RUEDA_ALLGATHER, .tensors = parts, .grouped = true, .name = NoName()},
             {tensor}, TermsOf(opts),
             [tensor, averages, is_exact, type, size = size_](Operation& operation) {
               const c10::InferenceMode mode(tensor.is_inference());
               const at::NoGradGuard no_grad_there;
               const Tensors& gathered = operation.Wait();
               const Tensor values = is_exact ? gathered[1].to(at::kLong) : gathered[1];
               const Tensor sums =
                   at::sparse_coo_tensor(gathered[0].t(), values, tensor.sizes()).coalesce();
               if (!averages) return void(tensor.copy_(sums));
               const Tensor quotients =
                   is_exact ? sums.values().div(size, "trunc").to(type) : sums.values().div(size);
               tensor.copy_(at::sparse_coo_tensor(sums.indices(), quotients, tensor.sizes(),
                                                  sums.options().dtype(type), true));
             });
}

GroupBackend::WorkPtr GroupBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const Tensor tensor = OnlyOne(tensors, "reduce");
  const Reduction reduction = ReductionOf(opts.reduceOp);
  return Run({OpType::REDUCE, "rueda:reduce"},
             {.kind = RUEDA_REDUCE,
              .tensors = tensor,
              .in_place = true,
              .name = NoName(),
              .op = reduction.op,
              .prescale = reduction.prescale,
              .root = static_cast<int>(opts.rootRank)},
             tensors, TermsOf(opts));
}

GroupBackend::WorkPtr GroupBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                   const c10d::ReduceScatterOptions& opts) {
  const Tensor output = OnlyOne(outputs, "reduce_scatter");
  const Tensors& list = OnlyOne(inputs, "reduce_scatter");
  const std::vector<int64_t> sizes = SizesOf(list);
  const Reduction reduction = ReductionOf(opts.reduceOp);
  const at::NoGradGuard no_grad;
  const Kind kind = {OpType::REDUCE_SCATTER, "rueda:reduce_scatter"};
  Call call = {.kind = RUEDA_REDUCESCATTER,
               .name = NoName(),
               .op = reduction.op,
               .prescale = reduction.prescale};
  const Tensor joined = OrTellAll(kind, call, [&] {
    TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size_), "reduce_scatter: ", list.size(),
                      " tensors for ", size_, " ranks");
    const int64_t share = sizes[static_cast<size_t>(rank_)];
    TORCH_CHECK_VALUE(share == output.numel(), "reduce_scatter: the output has ", output.numel(),
                      " elements, and this rank's share ", share);
    return Joined(list);
  });
  const int64_t own = output.numel();
  if (std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == own; })) {
    return Into(kind, call, {joined}, {output}, TermsOf(opts));
  }
  // Shares of different sizes: what the others get is left.
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + rank_, int64_t{0});
  call.kind = RUEDA_ALLREDUCE;
  call.tensors = joined;
  return Run(kind, call, outputs, TermsOf(opts), [begin, output](Operation& operation) {
    Put(output, operation.Wait().front().narrow(0, begin, output.numel()));
  });
}

GroupBackend::WorkPtr GroupBackend::_reduce_scatter_base(Tensor& output, Tensor& input,
                                                         const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, "reduce_scatter: an input of ",
                    input.numel(), " elements for ", size_, " outputs of ", output.numel());
  const Reduction reduction = ReductionOf(opts.reduceOp);
  return Into({OpType::_REDUCE_SCATTER_BASE, "rueda:reduce_scatter_tensor"},
              {.kind = RUEDA_REDUCESCATTER,
               .name = NoName(),
               .op = reduction.op,
               .prescale = reduction.prescale},
              {input}, {output}, TermsOf(opts));
}

GroupBackend::WorkPtr GroupBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(inputs.size() == outputs.size(), "reduce_scatter: ", inputs.size(),
                    " inputs for ", outputs.size(), " outputs");
  const Reduction reduction = ReductionOf(opts.reduceOp);
  return Into({ReduceScattersOf<OpType>(), "rueda:reduce_scatter_tensor_coalesced"},
              {.kind = RUEDA_REDUCESCATTER,
               .grouped = true,
               .name = NoName(),
               .op = reduction.op,
               .prescale = reduction.prescale},
              inputs, outputs, TermsOf(opts));
}

// ---- moving ----

GroupBackend::WorkPtr GroupBackend::broadcast(Tensors& tensors,
                                              const c10d::BroadcastOptions& opts) {
  const Tensor tensor = OnlyOne(tensors, "broadcast");
  return Run({OpType::BROADCAST, "rueda:broadcast"},
             {.kind = RUEDA_BROADCAST,
              .tensors = tensor,
              .in_place = true,
              .name = NoName(),
              .root = static_cast<int>(opts.rootRank)},
             tensors, TermsOf(opts));
}

GroupBackend::WorkPtr GroupBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) {
  const Tensors& list = OnlyOne(outputs, "all_gather");
  const at::NoGradGuard no_grad;
  return Exchange({OpType::ALLGATHER, "rueda:all_gather"},
                  {.kind = RUEDA_ALLGATHER, .name = NoName()}, Flat(OnlyOne(inputs, "all_gather")),
                  SizesOf(list), list, TermsOf(opts));
}

GroupBackend::WorkPtr GroupBackend::_allgather_base(Tensor& output, Tensor& input,
                                                    const c10d::AllgatherOptions& opts) {
  return Into({OpType::_ALLGATHER_BASE, "rueda:all_gather_into_tensor"},
              {.kind = RUEDA_ALLGATHER, .name = NoName()}, {input}, {output}, TermsOf(opts),
              /*own_part=*/true);
}

GroupBackend::WorkPtr GroupBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(inputs.size() == outputs.size(), "all_gather: ", inputs.size(), " inputs for ",
                    outputs.size(), " outputs");
  return Into({OpType::ALLGATHER_COALESCED, "rueda:all_gather_into_tensor_coalesced"},
              {.kind = RUEDA_ALLGATHER, .grouped = true, .name = NoName()}, inputs, outputs,
              TermsOf(opts), /*own_part=*/true);
}

GroupBackend::WorkPtr GroupBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                        Tensors& inputs,
                                                        const c10d::AllgatherOptions& opts) {
  const at::NoGradGuard no_grad;
  std::vector<Tensors> of_inputs(inputs.size());
  Tensors all, flat;
  for (const Tensors& of_rank : outputs) {
    TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "all_gather: ", of_rank.size(),
                      " outputs for ", inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); ++i) {
      of_inputs[i].push_back(of_rank[i]);
      all.push_back(of_rank[i]);
    }
  }
  for (const Tensor& input : inputs) flat.push_back(Flat(input));
  return Run({OpType::ALLGATHER_COALESCED, "rueda:all_gather_coalesced"},
             {.kind = RUEDA_ALLGATHER, .tensors = flat, .grouped = true, .name = NoName()}, all,
             TermsOf(opts), [of_inputs](Operation& operation) {
               for (size_t i = 0; i < of_inputs.size(); ++i) {
                 Expect("all_gather", SizesOf(of_inputs[i]), operation.WaitForSplits()[i]);
                 DealOut(operation.Wait()[i], of_inputs[i]);
               }
             });
}

GroupBackend::WorkPtr GroupBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::GatherOptions& opts) {
  const at::NoGradGuard no_grad;
  const Kind kind = {OpType::GATHER, "rueda:gather"};
  const Tensor flat = Flat(OnlyOne(inputs, "gather"));
  const Call call = {.kind = RUEDA_GATHER,
                     .tensors = flat,
                     .name = NoName(),
                     .root = static_cast<int>(opts.rootRank)};
  if (opts.rootRank != rank_) return Run(kind, call, {}, TermsOf(opts));
  const Tensors& list = OnlyOne(outputs, "gather");
  return Exchange(kind, call, flat, SizesOf(list), list, TermsOf(opts));
}

GroupBackend::WorkPtr GroupBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ScatterOptions& opts) {
  const at::NoGradGuard no_grad;
  const Tensor output = OnlyOne(outputs, "scatter");
  const Kind kind = {OpType::SCATTER, "rueda:scatter"};
  Call call = {.kind = RUEDA_SCATTER, .name = NoName(), .root = static_cast<int>(opts.rootRank)};
  Tensor input = output;  // elsewhere than at the root nobody looks at it
  std::vector<int64_t> splits;
  if (opts.rootRank == rank_) {
    input = OrTellAll(kind, call, [&] { return Joined(OnlyOne(inputs, "scatter")); });
    splits = SizesOf(inputs.front());
    call.splits = splits;
  }
  return Into(kind, call, {input}, {output}, TermsOf(opts));
}

GroupBackend::WorkPtr GroupBackend::alltoall_base(Tensor& output, Tensor& input,
                                                  std::vector<int64_t>& output_splits,
                                                  std::vector<int64_t>& input_splits,
                                                  const c10d::AllToAllOptions& opts) {
  const at::NoGradGuard no_grad;
  const Kind kind = {OpType::ALLTOALL_BASE, "rueda:all_to_all"};
  Call call = {.kind = RUEDA_ALLTOALL, .name = NoName()};
  const auto [sent, received] = OrTellAll(kind, call, [&] {
    return std::pair(SplitsOf(input, input_splits), SplitsOf(output, output_splits));
  });
  call.splits = sent;
  return Exchange(kind, call, Flat(input), received, {output}, TermsOf(opts));
}

// In elements.
std::vector<int64_t> GroupBackend::SplitsOf(const Tensor& tensor,
                                            const std::vector<int64_t>& rows) const {
  if (rows.empty()) {
    TORCH_CHECK_VALUE(tensor.numel() % size_ == 0, "all_to_all: a tensor of shape ", tensor.sizes(),
                      " has no equal parts for ", size_, " ranks");
    return std::vector<int64_t>(static_cast<size_t>(size_), tensor.numel() / size_);
  }
  const int64_t there = tensor.dim() == 0 ? 1 : tensor.size(0);
  TORCH_CHECK_VALUE(rows.size() == static_cast<size_t>(size_) && SumOf(rows) == there,
                    "all_to_all: the splits [", c10::Join(", ", rows), "] are not those of ", there,
                    " rows for ", size_, " ranks");
  std::vector<int64_t> splits = rows;
  for (int64_t& split : splits) split *= there == 0 ? 0 : tensor.numel() / there;
  return splits;
}

GroupBackend::WorkPtr GroupBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                             const c10d::AllToAllOptions& opts) {
  const at::NoGradGuard no_grad;
  const Kind kind = {OpType::ALLTOALL, "rueda:all_to_all"};
  Call call = {.kind = RUEDA_ALLTOALL, .name = NoName()};
  const Tensor joined = OrTellAll(kind, call, [&] {
    TORCH_CHECK_VALUE(
        inputs.size() == static_cast<size_t>(size_) && outputs.size() == inputs.size(),
        "all_to_all: ", inputs.size(), " inputs and ", outputs.size(), " outputs for ", size_,
        " ranks");
    return Joined(inputs);
  });
  const std::vector<int64_t> splits = SizesOf(inputs);
  call.splits = splits;
  return Exchange(kind, call, joined, SizesOf(outputs), outputs, TermsOf(opts));
}

GroupBackend::WorkPtr GroupBackend::barrier(const c10d::BarrierOptions& opts) {
  return Run({OpType::BARRIER, "rueda:barrier"}, {.kind = RUEDA_BARRIER, .name = NoName()}, {},
             TermsOf(opts));
}

// ---- several at once ----

bool GroupBackend::IsCoalescing() {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  return coalescing_on_ == std::this_thread::get_id();
}

void GroupBackend::startCoalescing() {
  std::vector<WorkPtr> left;  // by an exception; they go without the lock
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  left.swap(coalesced_);
  coalescing_on_ = std::this_thread::get_id();
}

GroupBackend::WorkPtr GroupBackend::endCoalescing() {
  const std::lock_guard<std::mutex> lock(coalescing_mutex_);
  coalescing_on_ = {};
  return c10::make_intrusive<GroupWorks>(std::exchange(coalesced_, {}));
}

}  // namespace rueda::libtorch
