// async: ranks step by themselves, and are pulled to the average of all as it comes (Bagua's
// asynchronous model average). A rank sends its parameters, goes on, and when the average of all
// has arrived adds the difference from what it had sent: no step of its own is lost, and it waits
// for nobody. A slower rank only makes averages come less often.
//
// Averages are collective, so that at the end all ranks must have made equally many: with its
// parameters each sends whether it is in finish(), and the one in which all are is the last.
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <chrono>

#include "bindings/torch/device.h"
#include "bindings/torch/strategies/packed.h"
#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

class Async : public BaseStrategy {
 public:
  Async(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
        const StrategyOptions& options)
      : BaseStrategy(std::move(name), model, optimizer, options),
        average_(TrainedParameters()),
        sent_(TrainedParameters()),
        finishing_(at::zeros({1}, at::kFloat)) {}

  void backward(const at::Tensor& loss, bool) override { loss.backward(); }
  void synchronize() override {}  // they are this rank's own
  void step() override {
    const std::exception_ptr mistake = Mistake();
    optimizer().step();
    Pull();
    if (mistake != nullptr) std::rethrow_exception(mistake);
  }
  void skip_step() override {
    zero_grad();
    Pull();
  }
  void zero_grad() override { optimizer().zero_grad(); }
  // Others may be on their way still: goes on averaging with them until all are here.
  void finish() override {
    if (!flights_.empty()) Receive();
    do {
      Send(/*finishing=*/true);
      Receive();
    } while (finishing_.item<float>() < 1);
  }

 protected:
  void OnLoading() override { finish(); }  // an average of what was before is not to come after it

 private:
  using Clock = std::chrono::steady_clock;

  // Towards the average of all, if one is there or due.
  void Pull() {
    if (flights_.empty()) {
      if (Clock::now() >= next_) Send(/*finishing=*/false);
    } else if (++steps_ >= options().stale_steps_max || HasArrived()) {
      Receive();
    }
  }

  bool HasArrived() {
    return std::all_of(flights_.begin(), flights_.end(),
                       [](const auto& flight) { return flight->Poll(); });
  }

  void Send(bool finishing) {
    sent_.CopyIn();
    std::vector<at::Tensor> tensors = average_.values();
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(sent_.values()[i]);
    tensors.push_back(finishing_.fill_(finishing ? 1 : 0));
    std::string name = NameOf("parameters");
    for (const std::vector<size_t>& places : ByDevice(tensors)) {
      std::vector<at::Tensor> group;
      for (const size_t i : places) group.push_back(tensors[i]);
      flights_.push_back(Operation::Submit(context(), {.kind = RUEDA_ALLREDUCE,
                                                       .tensors = group,
                                                       .in_place = true,
                                                       .grouped = true,
                                                       .name = name,
                                                       .process_set = options().process_set,
                                                       .op = Average}));
      name += " elsewhere";
    }
    steps_ = 0;
    next_ = Clock::now() +
            std::chrono::duration_cast<Clock::duration>(
                std::chrono::duration<double, std::milli>(options().average_interval_ms));
    exact_ = finishing;
  }

  void Receive() {
    for (const auto& flight : std::exchange(flights_, {})) flight->Wait();
    if (exact_) return average_.CopyOut();  // nothing has been done meanwhile
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < average_.values().size(); ++i) {
      average_.values()[i].sub_(sent_.values()[i]);
    }
    average_.AddOut();
  }

  Packed average_, sent_;
  at::Tensor finishing_;  // whether this rank is; of an average, the share of those that are
  std::vector<std::shared_ptr<Operation>> flights_;  // of an average, one a device
  int steps_ = 0;                                    // since it was sent
  bool exact_ = false;                               // the average is to be taken as it is
  Clock::time_point next_;
};

}  // namespace

std::unique_ptr<Strategy> MakeAsync(std::string name, const Model& model,
                                    torch::optim::Optimizer& optimizer,
                                    const StrategyOptions& options) {
  return std::make_unique<Async>(std::move(name), model, optimizer, options);
}

}  // namespace rueda::libtorch
