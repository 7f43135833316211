// What a claim on a device does to the device, once. Each test's own thread.
#include "ops/backend/device.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

// Counts.
class Counting : public Device {
 public:
  absl::StatusOr<int> Proposed() override { return 0; }
  absl::StatusOr<DeviceClaim> ClaimFor(int index) override {
    return DeviceClaim(this, index, /*counted=*/decided == 0);
  }
  absl::Status OrderBehind(void*, const DeviceEvent&) override { return absl::OkStatus(); }
  absl::Status CheckStream(void*) override { return absl::OkStatus(); }
  absl::StatusOr<std::shared_ptr<void>> Allocate(size_t) override { return nullptr; }

  int decided = 0;
  int given_back = 0;
  int asked_for = -1;

 private:
  absl::Status CheckPointer(int index, const void*, DType) override {
    asked_for = index;
    return absl::OkStatus();
  }
  absl::StatusOr<DeviceEvent> Record(int index, void*) override {
    asked_for = index;
    return nullptr;
  }
  void Decide() override { ++decided; }
  void GiveBack() override { ++given_back; }
};

TEST(DeviceClaim, IsGivenBackOnceHoweverOftenItMoved) {
  Counting device;
  {
    DeviceClaim claim = *device.ClaimFor(3);
    DeviceClaim moved(std::move(claim));
    claim = std::move(moved);
    EXPECT_EQ(device.given_back, 0);
  }
  EXPECT_EQ(device.given_back, 1);
  EXPECT_EQ(device.decided, 0);
}

TEST(DeviceClaim, DecidesOnTheDeviceOnlyWhenItIsKept) {
  Counting device;
  { device.ClaimFor(3)->Keep(); }
  EXPECT_EQ(device.decided, 1);
  // From then on there is nothing to keep or to give back.
  const int given_back = device.given_back;
  { device.ClaimFor(3)->Keep(); }
  EXPECT_EQ(device.decided, 1);
  EXPECT_EQ(device.given_back, given_back);
}

TEST(DeviceClaim, AsksAboutItsOwnDevice) {
  Counting device;
  const DeviceClaim claim = *device.ClaimFor(3);
  EXPECT_TRUE(claim.CheckPointer(&device, DType::kFloat32).ok());
  EXPECT_EQ(device.asked_for, 3);
  device.asked_for = -1;
  EXPECT_TRUE(claim.Record(nullptr).ok());
  EXPECT_EQ(device.asked_for, 3);
}

TEST(DeviceClaim, OfNoDeviceDoesNothing) {
  DeviceClaim claim;
  claim.Keep();
}

}  // namespace
}  // namespace rueda
