// Batch norm over all ranks' batches. With x_hat = (x - mean) / sqrt(var + eps), w the weight, N
// the values per channel on all ranks, and sums over those:
//
//     y  = w x_hat + b
//     dx = w / sqrt(var + eps) (dy - sum(dy) / N - x_hat sum(dy x_hat) / N)
//
// Mean and variance come from each rank's own (Chan, Golub, LeVeque: Updating formulae and a
// pairwise algorithm for computing sample variances, 1979), not from sums of squares, which lose
// the variance of values far from 0.
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "bindings/torch/operation.h"
#include "rueda/training.hpp"

namespace rueda::libtorch {
namespace {

using Tensors = std::vector<at::Tensor>;

// Where and how the ranks meet.
struct Meeting {
  rueda_context* context;
  std::string name;
  ProcessSet process_set;
};

// By channel, of the type that is computed in, but for the count.
struct Statistics {
  double count;  // values per channel
  at::Tensor mean;
  at::Tensor var;  // divided by the count
};

// Values per channel.
double CountOf(const at::Tensor& input) {
  return input.numel() == 0 ? 0 : static_cast<double>(input.numel() / input.size(1));
}

// A row for the others, in float64: the count, the means, the sums of squared distances from them.
at::Tensor OwnRow(const at::Tensor& input) {
  const int64_t channels = input.size(1);
  if (input.numel() == 0) {
    return at::zeros({1, 2 * channels + 1}, input.options().dtype(at::kDouble));
  }
  const auto [mean, var] = at::batch_norm_update_stats(input, {}, {}, 0);
  const double count = CountOf(input);
  const at::Tensor squares = var.to(at::kDouble) * count;
  return at::cat({at::full({1}, count, squares.options()), mean.to(at::kDouble), squares})
      .unsqueeze(0);
}

std::shared_ptr<Operation> SubmitAllgather(const at::Tensor& own, const std::string& name,
                                           const Meeting& meeting) {
  return Operation::Submit(meeting.context, {.kind = RUEDA_ALLGATHER,
                                             .tensors = own,
                                             .name = name,
                                             .process_set = meeting.process_set,
                                             .wait_soon = true});
}

// All ranks' rows, and their counts on the CPU: read from the rows a device's would have to be
// waited for.
std::pair<at::Tensor, at::Tensor> GatherRows(const at::Tensor& input, const Meeting& meeting) {
  const int64_t channels = input.size(1);
  try {
    const at::Tensor own = OwnRow(input);
    if (own.is_cpu()) {
      const at::Tensor rows =
          Operation::Execute(meeting.context, {.kind = RUEDA_ALLGATHER,
                                               .tensors = own,
                                               .name = meeting.name,
                                               .process_set = meeting.process_set})
              ->Wait()[0];
      return {rows, rows.narrow(1, 0, 1)};
    }
    const at::Tensor count = at::full({1, 1}, CountOf(input), at::kDouble);
    const auto rows = SubmitAllgather(own, meeting.name, meeting);
    const auto counts = SubmitAllgather(count, meeting.name + ".counts", meeting);
    return {rows->Wait()[0], counts->Wait()[0]};
  } catch (const Error& error) {
    if (error.status() != RUEDA_INVALID_ARGUMENT) throw;
    throw Error(error.status(), "SyncBatchNorm '" + meeting.name + "' with " +
                                    std::to_string(channels) +
                                    " channels, for each of which two numbers are gathered, and "
                                    "one more: " +
                                    error.what());
  }
}

Statistics AllRanks(const at::Tensor& input, const Meeting& meeting) {
  const int64_t channels = input.size(1);
  const auto [rows, host_counts] = GatherRows(input, meeting);
  const at::Tensor counts = rows.narrow(1, 0, 1);
  const at::Tensor means = rows.narrow(1, 1, channels);
  const at::Tensor squares = rows.narrow(1, 1 + channels, channels);
  const double count = host_counts.sum().item<double>();
  if (count < 2) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "'" + meeting.name +
                    "': training wants at least 2 values per channel, and all "
                    "ranks together have " +
                    std::to_string(static_cast<int64_t>(count)));
  }
  const at::Tensor mean = (means * counts).sum(0).div_(count);
  const at::Tensor var = (squares + counts * (means - mean).square()).sum(0).div_(count);
  return {count, mean.to(input.options()), var.to(input.options())};
}

struct Holder : torch::CustomClassHolder {
  Holder(Meeting place, double values, double epsilon)
      : meeting(std::move(place)), count(values), eps(epsilon) {}
  const Meeting meeting;
  const double count;
  const double eps;
};

// A vector of the channels, in the input's dimensions.
at::Tensor Along(const at::Tensor& channels, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = channels.numel();
  return channels.reshape(shape);
}

// The sums of dy and of dy x_hat, over this rank's values.
std::pair<at::Tensor, at::Tensor> OwnSums(const at::Tensor& dy, const at::Tensor& input,
                                          const at::Tensor& mean, const at::Tensor& var,
                                          double eps) {
  if (input.numel() == 0) {
    const at::Tensor zeros = at::zeros_like(mean);
    return {zeros, zeros};
  }
  // As of a batch norm with running statistics: these are its gradients of bias and weight.
  auto [none, dy_x_hat, dy_sum] = at::native_batch_norm_backward(dy, input, {}, mean, var, {}, {},
                                                                 false, eps, {false, true, true});
  return {dy_sum, dy_x_hat};
}

class Normalize : public torch::autograd::Function<Normalize> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const Statistics* statistics,
                            c10::intrusive_ptr<Holder> holder) {
    context->save_for_backward(
        {input, weight.value_or(at::Tensor()), statistics->mean, statistics->var});
    const double eps = holder->eps;
    context->saved_data["holder"] = c10::IValue::make_capsule(std::move(holder));
    if (input.numel() == 0) return at::empty_like(input);
    return std::get<0>(at::native_batch_norm(input, weight, bias, statistics->mean, statistics->var,
                                             false, 0, eps));
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const auto capsule = context->saved_data["holder"].toCapsule();
    const auto& holder = static_cast<const Holder&>(*capsule);
    if (at::GradMode::is_enabled()) {
      throw Error(RUEDA_UNIMPLEMENTED,
                  "'" + holder.meeting.name + "': SyncBatchNorm has no second derivatives");
    }
    const Tensors saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &var = saved[3];
    const at::Tensor& dy = gradients[0];
    const auto [dy_sum, dy_x_hat] = OwnSums(dy, input, mean, var, holder.eps);
    Tensors result(5);  // one for each that forward took
    if (context->needs_input_grad(0)) {
      result[0] = InputGradient(dy, input, weight, mean, var, dy_sum, dy_x_hat, holder);
    }
    if (weight.defined()) {
      result[1] = dy_x_hat;
      result[2] = dy_sum;
    }
    return result;
  }

 private:
  static at::Tensor InputGradient(const at::Tensor& dy, const at::Tensor& input,
                                  const at::Tensor& weight, const at::Tensor& mean,
                                  const at::Tensor& var, const at::Tensor& dy_sum,
                                  const at::Tensor& dy_x_hat, const Holder& holder) {
    const at::Tensor own = at::cat({dy_sum, dy_x_hat}).to(at::kDouble);
    const std::string name = holder.meeting.name + ".gradient";
    const at::Tensor sums =
        Operation::Execute(holder.meeting.context, {.kind = RUEDA_ALLREDUCE,
                                                    .tensors = own,
                                                    .name = name,
                                                    .process_set = holder.meeting.process_set,
                                                    .op = Sum})
            ->Wait()[0]
            .div(holder.count)
            .to(input.options());
    if (input.numel() == 0) return at::empty_like(input);
    const at::Tensor inverse = (var + holder.eps).rsqrt();
    const at::Tensor scale = weight.defined() ? weight * inverse : inverse;
    const int64_t channels = mean.numel();
    const at::Tensor slope = sums.narrow(0, channels, channels) * inverse;
    return (input - Along(mean, input))
        .mul_(Along(slope, input))
        .add_(Along(sums.narrow(0, 0, channels), input))
        .sub_(dy)
        .mul_(Along(-scale, input));
  }
};

std::string NextName() {
  // By thread: ranks that are threads of one process make their modules at the same time.
  thread_local int made = 0;
  return "sync_batch_norm." + std::to_string(made++);
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm, std::string name,
                                     ProcessSet process_set)
    : NormImplBase(norm),
      name_(name.empty() ? NextName() : std::move(name)),
      process_set_(process_set) {}

void SyncBatchNormImpl::CheckInput(const at::Tensor& input) const {
  const auto refuse = [&](const std::string& message) {
    throw Error(RUEDA_INVALID_ARGUMENT, "'" + name_ + "': " + message);
  };
  if (!input.defined() || !at::isFloatingType(input.scalar_type())) {
    refuse("the input is not a floating-point tensor");
  }
  if (is_training() && !input.is_cpu() && !input.is_cuda()) {
    refuse("the input is on the device " + input.device().str() + "; in training CPU or CUDA");
  }
  if (input.dim() < 2 || input.dim() > 5) {
    refuse("the input has " + std::to_string(input.dim()) + " dimensions; 2 to 5");
  }
  if (input.size(1) != options.num_features()) {
    refuse("the input has " + std::to_string(input.size(1)) + " channels, the module " +
           std::to_string(options.num_features()));
  }
}

void SyncBatchNormImpl::UpdateRunning(const at::Tensor& mean, const at::Tensor& var, double count) {
  num_batches_tracked += 1;
  const double momentum =
      options.momentum().has_value() ? *options.momentum() : 1 / num_batches_tracked.item<double>();
  running_mean.lerp_(mean.to(running_mean.scalar_type()), momentum);
  running_var.lerp_((var * (count / (count - 1))).to(running_var.scalar_type()), momentum);
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  CheckInput(input);
  if (!is_training()) {
    return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                     !running_mean.defined(), 0, options.eps());
  }
  const at::ScalarType type = at::toOpMathType(input.scalar_type());
  const at::Tensor x = input.to(type);
  Meeting meeting = {CurrentContext(), name_, process_set_};
  Statistics statistics;
  {
    const at::NoGradGuard no_grad;
    statistics = AllRanks(x.detach(), meeting);
    if (options.track_running_stats()) {
      UpdateRunning(statistics.mean, statistics.var, statistics.count);
    }
  }
  auto holder = c10::make_intrusive<Holder>(std::move(meeting), statistics.count, options.eps());
  const auto as_type = [&](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor.to(type)) : std::nullopt;
  };
  return Normalize::apply(x, as_type(weight), as_type(bias), &statistics, std::move(holder))
      .to(input.scalar_type());
}

}  // namespace rueda::libtorch
