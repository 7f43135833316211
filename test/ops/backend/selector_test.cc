// Which backend serves a process set, and the table that says why. Each test's own thread.
#include "ops/backend/selector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/backend/device.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

class Pretended : public Backend {
 public:
  Pretended(std::string name, absl::Status verdict)
      : name_(std::move(name)), verdict_(std::move(verdict)) {}
  absl::string_view name() const override { return name_; }
  bool connects() const override { return true; }
  absl::Status Viable(const Members&) const override { return verdict_; }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const Members&) override { return nullptr; }

 private:
  const std::string name_;
  const absl::Status verdict_;
};

const absl::Status kYes;
const absl::Status kNo = absl::FailedPreconditionError("too far away");

// solo, shm and gloo, of which some can serve the members.
std::vector<std::unique_ptr<Backend>> Backends(absl::Status solo, absl::Status shm,
                                               absl::Status gloo) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::make_unique<Pretended>("solo", std::move(solo)));
  backends.push_back(std::make_unique<Pretended>("shm", std::move(shm)));
  backends.push_back(std::make_unique<Pretended>("gloo", std::move(gloo)));
  return backends;
}

std::string Selected(absl::string_view requested,
                     const std::vector<std::unique_ptr<Backend>>& backends,
                     std::vector<Rank> ranks = {0, 1}) {
  Members members;
  members.ranks = std::move(ranks);
  const absl::StatusOr<Selection> selection = SelectBackend(requested, members, backends);
  if (!selection.ok()) return std::string(selection.status().message());
  EXPECT_EQ(selection->candidates.size(), backends.size());
  return std::string(selection->backend->name());
}

TEST(Selector, TakesTheFirstThatCan) {
  EXPECT_EQ(Selected("auto", Backends(kYes, kYes, kYes)), "solo");
  EXPECT_EQ(Selected("auto", Backends(kNo, kYes, kYes)), "shm");
  EXPECT_EQ(Selected("auto", Backends(kNo, kNo, kYes)), "gloo");
}

TEST(Selector, TakesOnlyWhatWasAskedFor) {
  EXPECT_EQ(Selected("gloo", Backends(kNo, kYes, kYes)), "gloo");
  EXPECT_THAT(Selected("shm", Backends(kNo, kNo, kYes)),
              HasSubstr("gloo         no: backend=shm was asked for"));
}

TEST(Selector, OneRankIsServedByTheFirstThatCanWhateverWasAskedFor) {
  EXPECT_EQ(Selected("gloo", Backends(kYes, kYes, kYes), {3}), "solo");
  EXPECT_EQ(Selected("gloo", Backends(kNo, kYes, kYes), {3}), "shm");
  EXPECT_EQ(Selected("gloo", Backends(kYes, kYes, kYes), {3, 4}), "gloo");
}

TEST(Selector, WhenNobodyCanTheTableSaysWhy) {
  Members members;
  members.set = 4;
  members.ranks = {1, 2};
  const auto backends = Backends(kNo, kNo, kNo);
  const absl::Status status = SelectBackend("auto", members, backends).status();
  EXPECT_EQ(status, absl::FailedPreconditionError("no backend can serve process set 4 of 2 ranks:\n"
                                                  "  solo         no: too far away\n"
                                                  "  shm          no: too far away\n"
                                                  "  gloo         no: too far away"));
  EXPECT_TRUE(absl::IsFailedPrecondition(SelectBackend("auto", members, {}).status()));
}

TEST(Selector, TheTableListsAllInOrderOfPreference) {
  const auto backends = Backends(kNo, kYes, kYes);
  EXPECT_EQ(SelectBackend("auto", Members(), backends)->Table(),
            "  solo         no: too far away\n"
            "  shm          yes\n"
            "  gloo         no: not needed");
}

TEST(Selector, AsksNobodyWhoIsNotNeeded) {
  class Untouchable : public Pretended {
   public:
    Untouchable() : Pretended("gloo", kYes) {}
    absl::Status Viable(const Members&) const override {
      ADD_FAILURE() << "asked";
      return kYes;
    }
  };
  auto backends = Backends(kNo, kYes, kYes);
  backends[2] = std::make_unique<Untouchable>();
  EXPECT_EQ(Selected("auto", backends), "shm");
  EXPECT_EQ(Selected("shm", backends), "shm");
}

TEST(Selector, LeavesOutWhatServesDevices) {
  class OnDevice : public DeviceBackend {
   public:
    absl::string_view name() const override { return "device"; }
    bool connects() const override { return true; }
    absl::Status Viable(const Members&) const override {
      ADD_FAILURE() << "asked";
      return kYes;
    }
    Device& device() override { abort(); }
    absl::Status CheckOperation(OpKind, ReduceOp, const Compression&) const override {
      return kYes;
    }
    absl::StatusOr<std::unique_ptr<Communicator>> ConnectOn(const Members&, bool,
                                                            Communicator*) override {
      return nullptr;
    }
    void SkipSplit(Communicator*) override {}
    void Retire(std::unique_ptr<Communicator>) override {}
    bool WaitUntilLeft() override { return true; }
  };
  auto backends = Backends(kNo, kNo, kYes);
  backends.insert(backends.begin(), std::make_unique<OnDevice>());
  EXPECT_EQ(SelectBackend("auto", Members(), backends)->Table(),
            "  solo         no: too far away\n"
            "  shm          no: too far away\n"
            "  gloo         yes");
}

}  // namespace
}  // namespace rueda
