// What a decorator does not override is the communicator's below it. Each test's own thread.
#include "ops/backend/decorator.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace rueda {
namespace {

class Bare : public Communicator {
 public:
  explicit Bare(std::string* calls) : calls_(*calls) {}
  void Start(const BucketOperation&) override { calls_ += "start "; }
  absl::StatusOr<Progress> Advance() override {
    calls_ += "advance ";
    return Progress::kMoved;
  }
  PhaseTimes phase_times() const override { return {.pack = 7}; }
  void Abort() override { calls_ += "abort "; }

 private:
  std::string& calls_;
};

class Versatile : public Bare, public EarlyStart, public Enqueuing, public SilenceProbe {
 public:
  using Bare::Bare;
  EarlyStart* early_start() override { return this; }
  Enqueuing* enqueuing() override { return this; }
  SilenceProbe* silence_probe() override { return this; }
  bool Prepare(const BucketOperation&) override { return true; }
  void TakeBack() override {}
  void Drop() override {}
  DeviceEvent NextEnqueued() override { return nullptr; }
  std::optional<Silence> SilentMember() override { return std::nullopt; }
};

TEST(Decorator, ForwardsEverything) {
  std::string calls;
  auto inner = std::make_unique<Versatile>(&calls);
  Versatile* const raw = inner.get();
  Decorator decorator(std::move(inner));
  decorator.Start({});
  EXPECT_EQ(*decorator.Advance(), Progress::kMoved);
  decorator.Abort();
  EXPECT_EQ(calls, "start advance abort ");
  EXPECT_EQ(decorator.phase_times().pack, 7);
  EXPECT_EQ(decorator.early_start(), raw);
  EXPECT_EQ(decorator.enqueuing(), raw);
  EXPECT_EQ(decorator.silence_probe(), raw);
}

TEST(Decorator, CanWhatTheOneBelowCan) {
  std::string calls;
  Decorator decorator(std::make_unique<Bare>(&calls));
  EXPECT_EQ(decorator.early_start(), nullptr);
  EXPECT_EQ(decorator.enqueuing(), nullptr);
  EXPECT_EQ(decorator.silence_probe(), nullptr);
}

}  // namespace
}  // namespace rueda
