// Where DistributedOptimizer keeps gradients: large ones in shared memory, small ones together. And
// that a program which writes to them too early does not write to what is under way.
#include <torch/torch.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "rueda/torch.hpp"
#include "test/torch/ranks.h"
#include "test/torch/weights.h"

namespace hvd = rueda::libtorch;

namespace {

using rueda::test::First;
using rueda::test::StatusOf;
using rueda::test::Weights;

RANKS_TEST(DistributedOptimizer, KeepsTheMemoryOfLargeGradients, 1, 2) {
  constexpr int64_t kLarge = 100'000;
  Weights w{kLarge, 2 * kLarge, kLarge, 10};
  torch::optim::SGD sgd(w.all(), 1.0);
  std::vector<torch::Tensor> kept;
  {
    hvd::DistributedOptimizer optimizer(sgd, w.named);
    std::set<const void*> first;
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      // A product's gradient is new memory, a sum's a view of a scalar that autograd copies.
      torch::Tensor loss = torch::zeros({});
      for (torch::Tensor& parameter : w.all())
        loss = loss + (parameter * (hvd::rank() + 1.0)).sum();
      loss.backward();
      optimizer.step();
      if (step == 0) continue;  // tells how much memory it takes
      std::set<const void*> places;
      for (size_t i = 0; i < 3; ++i) {
        places.insert(w[i].grad().data_ptr());
        EXPECT_EQ(reinterpret_cast<uintptr_t>(w[i].grad().data_ptr()) % 4096, 0u);
        EXPECT_TRUE((w[i].grad() == (hvd::size() + 1) / 2.0).all().item<bool>());
      }
      EXPECT_EQ(places.size(), 3u);
      // As many as there are gradients, but for one that a step may hold on to while it is
      // replaced.
      for (const void* place : places) first.insert(place);
      EXPECT_LE(first.size(), 6u);
      kept.push_back(w[1].grad() * 1);
    }
    kept.push_back(w[0].grad());
  }
  // What is freed now goes back, what is kept stays.
  sgd.zero_grad();
  EXPECT_EQ(kept.size(), 5u);
  for (const torch::Tensor& tensor : kept) {
    EXPECT_TRUE((tensor == (hvd::size() + 1) / 2.0).all().item<bool>());
  }
}

RANKS_TEST(DistributedOptimizer, LeavesGradientsWhereTheyAreIfAskedTo, 2) {
  Weights w{100'000};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named, {.gradients_in_arena = false});
  (w[0] * (hvd::rank() + 1.0)).sum().backward();
  EXPECT_NE(reinterpret_cast<uintptr_t>(w[0].grad().data_ptr()) % 4096, 0u) << "malloc's";
  optimizer.step();
  EXPECT_FLOAT_EQ(First(w[0].detach()), -1.5);
}

// Small ones -----------------------------------------------------------------------------------

// What the ranks' gradients average to when each backward pass multiplies by Mine().
float Mean() {
  return (static_cast<float>(hvd::size()) + 1) / 2;
}
float Mine() {
  return static_cast<float>(hvd::rank()) + 1;
}

bool AllAre(const torch::Tensor& tensor, float value) {
  return (tensor == value).all().item<bool>();
}

// As net->to(kDouble) does it. Small ones are an error then: their places were made for them.
RANKS_TEST(LargeGradients, OfAParameterThatWasConvertedGoOn, 1, 2) {
  Weights w{100'000};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    optimizer.zero_grad();
    w[0].set_data(torch::zeros({100'000}, type));
    (w[0] * Mine()).sum().backward();
    optimizer.step();
    EXPECT_EQ(w[0].grad().scalar_type(), type);
    EXPECT_TRUE(AllAre(w[0].detach(), -Mean())) << type;
  }
}

RANKS_TEST(SmallGradients, LieTogetherInTheSamePlaceInEveryStep, 1, 2, 3) {
  Weights w{5, 1000, 33};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  std::vector<const void*> places;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    EXPECT_FALSE(w[0].grad().defined());
    ((w[0] * 1).sum() + (w[1] * 2).sum() + (w[2] * 3).sum()).mul(Mine()).backward();
    optimizer.step();
    for (size_t i = 0; i < 3; ++i) {
      const torch::Tensor& gradient = w[i].grad();
      EXPECT_TRUE(AllAre(gradient, Mean() * static_cast<float>(i + 1)));
      EXPECT_EQ(gradient.storage().data(), w[0].grad().storage().data());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(gradient.data_ptr()) % 64, 0u);
      if (step == 0) places.push_back(gradient.data_ptr());
      EXPECT_EQ(gradient.data_ptr(), places[i]);
    }
  }
}

// Zeroed in place, they are added to where they lie.
RANKS_TEST(SmallGradients, MayBeZeroedInPlaceAndAddedUp, 1, 2) {
  Weights w{5, 7};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named, {.backward_passes_per_step = 2});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad(/*set_to_none=*/false);
    for (int pass = 0; pass < 2; ++pass) (w[0].sum() + w[1].sum()).mul(Mine()).backward();
    optimizer.step();
    EXPECT_TRUE(AllAre(w[0].grad(), 2 * Mean()));
    EXPECT_TRUE(AllAre(w[1].grad(), 2 * Mean()));
  }
}

RANKS_TEST(SmallGradients, ThatSomebodyHoldsAreNotOverwritten, 1, 2) {
  Weights w{5, 7, 9};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  std::vector<torch::Tensor> held;
  for (int step = 1; step <= 6; ++step) {
    optimizer.zero_grad();
    (w[0].sum() + w[1].sum() + w[2].sum()).mul(Mine() * static_cast<float>(step)).backward();
    optimizer.step();
    const torch::Tensor& gradient = w[1].grad();
    // The gradient, a part of it, another tensor of the same memory.
    if (step % 3 == 0) held.push_back(gradient);
    if (step % 3 == 1) held.push_back(gradient.narrow(0, 2, 3));
    if (step % 3 == 2) held.push_back(gradient.detach());
  }
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_TRUE(AllAre(held[i], Mean() * static_cast<float>(i + 1))) << i;
  }
}

// Even before the bucket was complete, as one of its parameters was not used.
RANKS_TEST(SmallGradients, ThatTheProgramReplacesCountAsTheyWere, 1, 2) {
  Weights w{5, 7};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    w[0].sum().backward();
    w[0].mutable_grad() = torch::full({5}, 10 * Mine());
    optimizer.step();
    EXPECT_TRUE(AllAre(w[0].grad(), 1));
    EXPECT_FALSE(w[1].grad().defined()) << "nobody has computed it";
  }
}

// After the step they are the program's, to do with as it likes.
RANKS_TEST(SmallGradients, MayBeGivenOtherMemoryByTheProgram, 1, 2) {
  Weights w{5, 7};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
    (w[0].sum() + w[1].sum()).mul(Mine()).backward();
    optimizer.synchronize();
    EXPECT_TRUE(AllAre(w[0].grad(), Mean())) << step;
    EXPECT_TRUE(AllAre(w[1].grad(), Mean())) << step;
    w[0].mutable_grad().set_data(torch::full({5}, 100.f));
    optimizer.step();
  }
  EXPECT_TRUE(AllAre(w[0].detach(), -400));
}

// Writes between backward() and step() --------------------------------------------------------

// Counts the warnings of lost writes while it lives.
class LostWrites : public c10::WarningHandler {
 public:
  LostWrites() : before_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
  }
  ~LostWrites() override { c10::WarningUtils::set_warning_handler(before_); }
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchronize() first") != std::string::npos) ++count_;
  }
  int count() const { return count_; }

 private:
  c10::WarningHandler* const before_;
  int count_ = 0;
};

struct Write {
  const char* name;
  void (*function)(torch::Tensor& gradient);
  bool shows;  // that it was there is certain
};
const Write kWrites[] = {
    {"in place", [](torch::Tensor& g) { g.mul_(Mine() * 100); }, true},
    {"a part", [](torch::Tensor& g) { g.narrow(0, 1, 2).fill_(Mine() * 100); }, true},
    {"another tensor", [](torch::Tensor& g) { g = torch::full_like(g, Mine() * 100); }, true},
    {"none", [](torch::Tensor& g) { g.reset(); }, true},
    {"its data", [](torch::Tensor& g) { g.data().mul_(Mine() * 100); }, false},
    {"bytes", [](torch::Tensor& g) { g.data_ptr<float>()[0] = Mine() * 100; }, false},
};

// Small ones, and one that goes alone.
RANKS_TEST(Gradients, ThatAreWrittenToBeforeSynchronizeCountAsTheyWere, 1, 2, 3) {
  for (const Write& write : kWrites) {
    for (const bool set_to_none : {true, false}) {
      Weights w{5, 7, 100'000};
      torch::optim::SGD sgd(w.all(), 1.0);
      hvd::DistributedOptimizer optimizer(sgd, w.named);
      const LostWrites lost;
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad(set_to_none);
        (w[0].sum() + (w[1] * 2).sum() + (w[2] * 3).sum()).mul(Mine()).backward();
        for (torch::Tensor& parameter : w.all()) write.function(parameter.mutable_grad());
        optimizer.step();
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_TRUE(AllAre(w[i].grad(), Mean() * static_cast<float>(i + 1))) << write.name;
        }
      }
      EXPECT_EQ(lost.count(), write.shows ? 1 : 0) << write.name;
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(AllAre(w[i].detach(), -4 * Mean() * static_cast<float>(i + 1))) << write.name;
      }
    }
  }
}

RANKS_TEST(Gradients, ThatAreWrittenToAfterSynchronizeCount, 1, 2) {
  Weights w{5, 7, 100'000};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  const LostWrites lost;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
    (w[0].sum() + w[1].sum() + w[2].sum()).mul(Mine()).backward();
    optimizer.synchronize();
    for (const torch::Tensor& parameter : w.all()) parameter.grad().mul_(2);
    optimizer.step();
  }
  EXPECT_EQ(lost.count(), 0);
  for (const torch::Tensor& parameter : w.all()) {
    EXPECT_TRUE(AllAre(parameter.detach(), -8 * Mean()));
  }
}

// Whoever has got hold of one of an earlier step may write to it at any time.
RANKS_TEST(Gradients, OfEarlierStepsAreNotWhatIsUnderWay, 1, 2) {
  Weights w{5, 7, 100'000};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  std::vector<torch::Tensor> held;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
    (w[0].sum() + w[1].sum() + w[2].sum()).mul(Mine()).backward();
    for (const torch::Tensor& tensor : held) tensor.fill_(100 * Mine());
    optimizer.step();
    for (const torch::Tensor& parameter : w.all()) held.push_back(parameter.grad().detach());
  }
  for (const torch::Tensor& parameter : w.all()) {
    EXPECT_TRUE(AllAre(parameter.detach(), -4 * Mean()));
  }
}

// Between passes they are the program's. And those that autograd cuts from one tensor count
// their writes together.
RANKS_TEST(Gradients, ThatAreNotTakenYetMayBeWrittenTo, 1, 2) {
  Weights w{5, 7, 100'000};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named, {.backward_passes_per_step = 2});
  const LostWrites lost;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
    for (int pass = 0; pass < 2; ++pass) {
      torch::cat({w[0], w[1], w[2]}).mul(Mine()).sum().backward();
      if (pass > 0) continue;
      for (const torch::Tensor& parameter : w.all()) parameter.grad().mul_(3);
    }
    optimizer.step();
  }
  EXPECT_EQ(lost.count(), 0);
  for (const torch::Tensor& parameter : w.all()) {
    EXPECT_TRUE(AllAre(parameter.detach(), -16 * Mean()));
  }
}

RANKS_TEST(Gradients, ThatAreSparseCountAsTheyWere, 2) {
  Weights w{};
  w.named.emplace_back("table", torch::zeros({4, 2}, torch::requires_grad()));
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const torch::Tensor rows = torch::tensor({hvd::rank(), 3});
    torch::embedding(w[0], rows, -1, false, /*sparse=*/true).sum().backward();
    w[0].grad()._values().fill_(100 * Mine());
    optimizer.step();
  }
  const torch::Tensor expected = -3 * torch::tensor({0.5f, 0.5f, 0.f, 1.f});
  EXPECT_TRUE(torch::equal(w[0].detach().select(1, 0), expected)) << w[0];
}

RANKS_TEST(SmallGradients, LieAsTheirParametersDo, 1, 2) {
  const auto format = torch::MemoryFormat::ChannelsLast;
  Weights w{3};
  w.named.emplace_back("conv", torch::zeros({2, 3, 2, 2}).to(format).requires_grad_());
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  const torch::Tensor scale = torch::arange(24.f).reshape({2, 3, 2, 2});
  for (const torch::Tensor& factor : {scale, scale.to(format)}) {
    optimizer.zero_grad();
    ((w[1] * factor).sum() + w[0].sum()).mul(Mine()).backward();
    optimizer.step();
    EXPECT_TRUE(w[1].grad().is_contiguous(format));
    EXPECT_TRUE(torch::equal(w[1].grad(), scale * Mean()));
  }
}

// As in the two halves of a GAN's step: the second pass goes through the first model's parameters
// too.
RANKS_TEST(SmallGradients, OfAModelThatAnotherOnesPassGoesThrough, 2) {
  Weights d{5}, g{5};
  torch::optim::SGD sgd_d(d.all(), 1.0), sgd_g(g.all(), 1.0);
  hvd::DistributedOptimizer opt_d(sgd_d, d.named, {.name = "d"}),
      opt_g(sgd_g, g.named, {.name = "g"});
  for (int step = 0; step < 4; ++step) {
    (d[0] * Mine()).sum().backward();
    opt_d.step();
    const bool freeze = step % 2 == 0;
    if (freeze) d[0].requires_grad_(false);
    opt_g.zero_grad();
    ((g[0] + d[0]) * Mine()).sum().backward();
    opt_g.step();
    if (freeze) d[0].requires_grad_(true);
    if (!freeze) opt_d.synchronize();
    opt_d.zero_grad();
  }
  EXPECT_TRUE(AllAre(d[0].detach(), -4 * Mean()));
  EXPECT_TRUE(AllAre(g[0].detach(), -4 * Mean()));
}

// Mistakes ----------------------------------------------------------------------------------------

RANKS_TEST(SmallGradients, ThatOneRankKeepsDifferentlyAreAnErrorOnAll, 2, 3) {
  Weights w{3};
  const auto format =
      hvd::rank() == 0 ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  w.named.emplace_back("conv", torch::zeros({2, 3, 2, 2}).to(format).requires_grad_());
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    (w[1].sum() + w[0].sum()).backward();
    std::string message;
    EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message), RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("gradient.small gradients 1"), std::string::npos) << message;
    EXPECT_NE(message.find("memory format"), std::string::npos) << message;
  }
}

// Whichever it is, among many: the message shows where they differ.
RANKS_TEST(SmallGradients, ThatOneRankLacksAreAnErrorOnAll, 2, 3) {
  for (const size_t lacks : {size_t{0}, size_t{20}, size_t{39}}) {
    Weights w{};
    for (int i = 0; i < 40; ++i) {
      w.named.emplace_back("w" + std::to_string(i), torch::zeros(i + 1, torch::requires_grad()));
    }
    if (hvd::rank() == 0) w[lacks].requires_grad_(false);
    torch::optim::SGD sgd(w.all(), 1.0);
    hvd::DistributedOptimizer optimizer(sgd, w.named);
    torch::Tensor loss = torch::zeros({});
    for (torch::Tensor& parameter : w.all()) loss = loss + parameter.sum();
    loss.backward();
    std::string message;
    EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message), RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("'gradient.w" + std::to_string(lacks) + "'"), std::string::npos)
        << message;
  }
}

RANKS_TEST(SmallGradients, ThatOneRankCombinesDifferentlyAreAnErrorOnAll, 2, 3) {
  Weights w{3, 4};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named,
                                      {.op = hvd::rank() == 0 ? hvd::Adasum : hvd::Average});
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    (w[1].sum() + w[0].sum()).backward();
    EXPECT_EQ(StatusOf([&] { optimizer.step(); }), RUEDA_INVALID_ARGUMENT);
  }
}

RANKS_TEST(SmallGradients, OfAnotherShapeOnOneRankAreAnErrorOnAll, 2, 3) {
  Weights w{6, 2};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  if (hvd::rank() == 0) w[0].set_data(torch::zeros({2, 3}));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    (w[0].sum() + w[1].sum()).backward();
    std::string message;
    EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message),
              hvd::rank() == 0 ? RUEDA_FAILED_PRECONDITION : RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("gradient.w0"), std::string::npos) << message;
  }
}

RANKS_TEST(SmallGradients, OfAnotherShapeThanBeforeAreAnErrorOfTheStep, 1, 2) {
  Weights w{6, 2};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  w[0].set_data(torch::zeros({2, 3}));
  (w[0].sum() + w[1].sum()).backward();
  std::string message;
  EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message), RUEDA_FAILED_PRECONDITION);
  EXPECT_NE(message.find("'gradient.w0'"), std::string::npos) << message;
  EXPECT_NE(message.find("make it again"), std::string::npos) << message;
}

// They take as much memory, so only their places tell them apart.
RANKS_TEST(SmallGradients, ThatLieDifferentlyOnTheRanksAreNamed, 2, 3) {
  const bool first = hvd::rank() == 0;
  Weights w{4, first ? 16 : 48, first ? 48 : 16};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    (w[0].sum() + w[1].sum() + w[2].sum()).backward();
    std::string message;
    EXPECT_EQ(StatusOf([&] { optimizer.step(); }, &message), RUEDA_INVALID_ARGUMENT);
    EXPECT_NE(message.find("gradient.w"), std::string::npos) << message;
    EXPECT_NE(message.find("[48]"), std::string::npos) << message;
    EXPECT_TRUE(AllAre(w[1].detach(), 0)) << "no step was made";
  }
}

// It is of each gradient, however many lie together.
RANKS_TEST(SmallGradients, AreCombinedOneByOneByAdasum, 2) {
  Weights w{8, 8};
  torch::optim::SGD sgd(w.all(), 1.0);
  hvd::DistributedOptimizer optimizer(sgd, w.named, {.op = hvd::Adasum});
  torch::manual_seed(hvd::rank());
  const torch::Tensor a = torch::randn({8}), b = 100 * torch::randn({8});
  ((w[0] * a).sum() + (w[1] * b).sum()).backward();
  optimizer.step();
  EXPECT_TRUE(torch::equal(w[0].grad(), hvd::allreduce(a, {.name = "a", .op = hvd::Adasum})));
  EXPECT_TRUE(torch::equal(w[1].grad(), hvd::allreduce(b, {.name = "b", .op = hvd::Adasum})));
}

// What reduces them may outlive the context, and what they lie in outlives the optimizer.
RANKS_TEST(SmallGradients, StayWhenTheOptimizerIsGone, 1, 2) {
  Weights w{5, 7};
  torch::optim::SGD sgd(w.all(), 1.0);
  {
    hvd::DistributedOptimizer optimizer(sgd, w.named);
    (w[0].sum() + w[1].sum()).mul(Mine()).backward();
    optimizer.step();
  }
  EXPECT_TRUE(AllAre(w[0].grad(), Mean()));
  sgd.zero_grad();
  (w[0].sum() + w[1].sum()).mul(Mine()).backward();
  EXPECT_FLOAT_EQ(First(w[1].grad()), Mine());
}

}  // namespace
