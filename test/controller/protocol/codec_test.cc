// Values to messages and back, and messages that must not become values. Each test's own thread.
#include "controller/protocol/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/base/check.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pointee;

SpecPtr Allreduce(const std::string& name) {
  Signature signature;
  signature.kind = OpKind::kAllreduce;
  signature.reduce_op = ReduceOp::kProduct;
  signature.parts.push_back({DType::kBFloat16, {3, 0, int64_t{1} << 40}});
  return MakeSpec(5, name, signature);
}

SpecPtr Group() {
  Signature signature;
  signature.kind = OpKind::kAllreduce;
  signature.reduce_op = ReduceOp::kSum;
  signature.parts.push_back({DType::kFloat32, {2}});
  signature.parts.push_back({DType::kInt8, {}});
  signature.part_names = {"a", "b"};
  return MakeSpec(0, "a", signature);
}

SpecPtr Allgather() {
  Signature signature;
  signature.kind = OpKind::kAllgather;
  signature.parts.push_back({DType::kUInt8, {4}});
  return MakeSpec(0, "g", signature);
}

SpecPtr Broadcast() {
  Signature signature;
  signature.kind = OpKind::kBroadcast;
  signature.root = 65'535;
  signature.parts.push_back({DType::kBool, {1}});
  return MakeSpec(255, "b", signature);
}

SpecPtr NewSet() {
  Signature signature;
  signature.kind = OpKind::kAddProcessSet;
  signature.ranks = {0, 2, 65'535};
  return MakeSpec(0, "", signature);
}

SpecPtr Pair() {
  Signature signature;
  signature.kind = OpKind::kSendRecv;
  signature.root = 0;
  signature.peer = 65'535;
  signature.parts.push_back({DType::kComplex64, {2}});
  return MakeSpec(3, "p", signature);
}

SpecPtr Removal() {
  Signature signature = NewSet()->signature;
  signature.kind = OpKind::kRemoveProcessSet;
  return MakeSpec(0, "", signature);
}

SpecPtr Compressed() {
  Signature signature;
  signature.kind = OpKind::kReducescatter;
  signature.reduce_op = ReduceOp::kAverage;
  signature.compression = {Compressor::kTopK, 10'000, true};
  signature.parts.push_back({DType::kBFloat16, {70, 2}});
  return MakeSpec(0, "c", signature);
}

// A kind that has nothing but tensors, a root, a reduce operation, as it wants them.
SpecPtr OfKind(OpKind kind) {
  Signature signature;
  signature.kind = kind;
  if (TraitsOf(kind).reduces) signature.reduce_op = ReduceOp::kMin;
  if (TraitsOf(kind).rooted) signature.root = 4;
  if (TraitsOf(kind).tensors()) signature.parts.push_back({DType::kFloat64, {7}});
  return MakeSpec(0, kind == OpKind::kJoin ? "" : "x", signature);
}

std::vector<SpecPtr> AllSpecs() {
  return {Allreduce("w"),
          Allreduce("ä/0"),
          Group(),
          Allgather(),
          Broadcast(),
          NewSet(),
          Removal(),
          Pair(),
          Compressed(),
          OfKind(OpKind::kAlltoall),
          OfKind(OpKind::kReducescatter),
          OfKind(OpKind::kReduce),
          OfKind(OpKind::kGather),
          OfKind(OpKind::kScatter),
          OfKind(OpKind::kJoin),
          MakeSpec(0, "", Signature())};
}

ControlEvent Passed(const ControlEvent& event) {
  std::vector<ControlEvent> unpacked;
  for (const std::string& packed : PackEvents({event}, kControlFrameBytesMax)) {
    const absl::Status status = UnpackEvents(packed, &unpacked);
    EXPECT_TRUE(status.ok()) << status;
  }
  RUEDA_CHECK(unpacked.size() == 1);
  EXPECT_EQ(unpacked[0].rank, event.rank);
  EXPECT_EQ(unpacked[0].what.index(), event.what.index());
  return unpacked[0];
}

PlanItem Passed(const PlanItem& item) {
  Plan unpacked;
  for (const std::string& packed : PackPlan({item}, kControlFrameBytesMax)) {
    const absl::Status status = UnpackPlan(packed, &unpacked);
    EXPECT_TRUE(status.ok()) << status;
  }
  RUEDA_CHECK(unpacked.size() == 1);
  EXPECT_EQ(unpacked[0].index(), item.index());
  return unpacked[0];
}

Announcement Announcing(SpecPtr spec, CallExtras extras = {}) {
  Announcement announcement;
  announcement.spec = std::move(spec);
  announcement.extras = std::move(extras);
  return announcement;
}

TEST(Codec, SpecsOfEveryKindComeThrough) {
  for (const SpecPtr& spec : AllSpecs()) {
    const PlanItem item = Passed(Define{77, spec});
    const Define& define = std::get<Define>(item);
    EXPECT_EQ(define.id, 77u);
    EXPECT_EQ(*define.spec, *spec) << spec->signature.ToString();
  }
}

TEST(Codec, AnnouncementsComeThrough) {
  Announcement announcement;
  announcement.id = 0x3FFF'FFFF;
  announcement.waited = true;
  announcement.done = 65'535;
  announcement.extras.scaling.prescale = 0.5;
  announcement.extras.scaling.postscale = -3;
  announcement.extras.first_dims = {0, 5, INT64_MAX};
  announcement.extras.SayFault(
      "b\xC3\xA4"
      "d");
  const ControlEvent event = Passed(ControlEvent{9, Announced{announcement}});
  const Announcement& got = std::get<Announced>(event.what).announcement;
  EXPECT_EQ(got.id, announcement.id);
  EXPECT_EQ(got.spec, nullptr);
  EXPECT_TRUE(got.waited);
  EXPECT_EQ(got.done, 65'535);
  EXPECT_EQ(got.extras.scaling.prescale, 0.5);
  EXPECT_EQ(got.extras.scaling.postscale, -3);
  EXPECT_THAT(got.extras.first_dims, ElementsAre(0, 5, INT64_MAX));
  ASSERT_NE(got.extras.fault(), nullptr);
  EXPECT_EQ(*got.extras.fault(),
            "b\xC3\xA4"
            "d");
  EXPECT_EQ(got.extras.data(), nullptr);
}

TEST(Codec, AnAnnouncementsDataComesThrough) {
  for (const std::string& data : {std::string("\xff\0", 2), std::string()}) {
    Announcement announcement;
    announcement.id = 5;
    announcement.extras.SayData(data);
    const ControlEvent event = Passed(ControlEvent{9, Announced{announcement}});
    const Announcement& got = std::get<Announced>(event.what).announcement;
    ASSERT_NE(got.extras.data(), nullptr) << "to bring nothing is not to say nothing";
    EXPECT_EQ(*got.extras.data(), data);
    EXPECT_EQ(got.extras.fault(), nullptr);
  }
}

TEST(Codec, AnAnnouncementWithoutAnIdCarriesItsSpec) {
  const ControlEvent event = Passed(ControlEvent{0, Announced{Announcing(Group())}});
  const Announcement& got = std::get<Announced>(event.what).announcement;
  EXPECT_EQ(got.id, kNoTensor);
  EXPECT_EQ(*got.spec, *Group());
  EXPECT_FALSE(got.waited);
  EXPECT_TRUE(got.extras.scaling.none());
  EXPECT_THAT(got.extras.first_dims, IsEmpty());
}

TEST(Codec, OtherEventsComeThrough) {
  const ControlEvent waited = Passed(ControlEvent{1, Waited{12, 65'535}});
  EXPECT_EQ(std::get<Waited>(waited.what).id, 12u);
  EXPECT_EQ(std::get<Waited>(waited.what).sequence, 65'535);
  const ControlEvent done = Passed(ControlEvent{2, Done{255, 65'534}});
  EXPECT_EQ(std::get<Done>(done.what).lane, 255);
  EXPECT_EQ(std::get<Done>(done.what).count, 65'534);
  const ControlEvent expire = Passed(ControlEvent{3, Expire{13, 7}});
  EXPECT_EQ(std::get<Expire>(expire.what).id, 13u);
  EXPECT_EQ(std::get<Expire>(expire.what).sequence, 7);
  const ControlEvent blocked = Passed(ControlEvent{4, Blocked{Blocked::kStill, 65'535}});
  EXPECT_EQ(std::get<Blocked>(blocked.what).level, Blocked::kStill);
  EXPECT_EQ(std::get<Blocked>(blocked.what).question, 65'535);
  for (const uint8_t bits : {uint8_t{0}, uint8_t{6}, uint8_t{255}}) {
    EXPECT_EQ(std::get<Wished>(Passed(ControlEvent{5, Wished{bits}}).what).bits, bits);
  }
  Passed(ControlEvent{kRanksMax - 1, Leave{}});
  EXPECT_TRUE(std::holds_alternative<Asked>(Passed(ControlEvent{3, Asked{}}).what));
}

TEST(Codec, PlanItemsComeThrough) {
  EXPECT_EQ(std::get<Forget>(Passed(PlanItem(Forget{5}))).id, 5u);
  EXPECT_EQ(std::get<StillBlocked>(Passed(PlanItem(StillBlocked{65'535}))).question, 65'535);
  EXPECT_EQ(std::get<Left>(Passed(PlanItem(Left{0}))).rank, 0);
  for (const uint8_t bits : {uint8_t{0}, uint8_t{6}, uint8_t{255}}) {
    EXPECT_EQ(std::get<Agreed>(Passed(PlanItem(Agreed{bits}))).bits, bits);
  }
  const Told told = std::get<Told>(Passed(PlanItem(Told{7, Group(), 65'536, "missing: \xff"})));
  EXPECT_EQ(told.rank, 7);
  EXPECT_EQ(*told.spec, *Group());
  EXPECT_EQ(told.sequence, 65'536u);
  EXPECT_EQ(told.text, "missing: \xff");

  Order order;
  order.lane = 3;
  order.batch.push_back({1, 0xFFFF'FFFF, {4, 0, 7}});
  order.batch.push_back({2, 0, {}});
  order.data = std::make_shared<std::vector<std::string>>(
      std::vector<std::string>{"", std::string("\0\xff", 2)});
  const PlanItem ordered = Passed(PlanItem(order));
  const Order& got = std::get<Order>(ordered);
  EXPECT_EQ(got.lane, 3);
  ASSERT_EQ(got.batch.size(), 2u);
  EXPECT_EQ(got.batch[0].id, 1u);
  EXPECT_EQ(got.batch[0].sequence, 0xFFFF'FFFF);
  EXPECT_THAT(got.batch[0].first_dims, ElementsAre(4, 0, 7));
  EXPECT_EQ(got.batch[1].id, 2u);
  EXPECT_THAT(got.batch[1].first_dims, IsEmpty());
  EXPECT_THAT(got.data, Pointee(ElementsAre("", std::string("\0\xff", 2))));

  const PlanItem rejected =
      Passed(PlanItem(Reject{Broadcast(), 8, {1, 4}, absl::DeadlineExceededError("why ä")}));
  const Reject& reject = std::get<Reject>(rejected);
  EXPECT_EQ(*reject.spec, *Broadcast());
  EXPECT_EQ(reject.sequence, 8u);
  EXPECT_THAT(reject.ranks, ElementsAre(1, 4));
  EXPECT_EQ(reject.status, absl::DeadlineExceededError("why ä"));

  const PlanItem added = Passed(PlanItem(SetAdded{2, {0, 3}, 6}));
  EXPECT_EQ(std::get<SetAdded>(added).set, 2);
  EXPECT_THAT(std::get<SetAdded>(added).ranks, ElementsAre(0, 3));
  EXPECT_EQ(std::get<SetAdded>(added).sequence, 6u);

  const PlanItem removed = Passed(PlanItem(SetRemoved{2, 0xFFFF'FFFF}));
  EXPECT_EQ(std::get<SetRemoved>(removed).set, 2);
  EXPECT_EQ(std::get<SetRemoved>(removed).sequence, 0xFFFF'FFFF);

  const PlanItem joined = Passed(PlanItem(Joined{3, 65'535, 9}));
  EXPECT_EQ(std::get<Joined>(joined).set, 3);
  EXPECT_EQ(std::get<Joined>(joined).last, 65'535);
  EXPECT_EQ(std::get<Joined>(joined).sequence, 9u);
}

TEST(Codec, WhoIsInAPairAndWhoIsAbsentComeThrough) {
  Order order;
  order.batch.push_back({1, 0, {}});
  const PlanItem plain = Passed(PlanItem(order));
  EXPECT_EQ(std::get<Order>(plain).from, -1);
  EXPECT_EQ(std::get<Order>(plain).to, -1);
  EXPECT_THAT(std::get<Order>(plain).absent, IsEmpty());

  order.from = 65'535;
  order.to = 0;
  const PlanItem pair = Passed(PlanItem(order));
  EXPECT_EQ(std::get<Order>(pair).from, 65'535);
  EXPECT_EQ(std::get<Order>(pair).to, 0);

  order.from = order.to = -1;
  order.absent = {0, 4};
  order.scaling.prescale = 0.5;
  order.scaling.postscale = -3;
  const PlanItem joined = Passed(PlanItem(order));
  EXPECT_THAT(std::get<Order>(joined).absent, ElementsAre(0, 4));
  EXPECT_EQ(std::get<Order>(joined).scaling.prescale, 0.5);
  EXPECT_EQ(std::get<Order>(joined).scaling.postscale, -3);
}

// Bad content ------------------------------------------------------------------------------------

absl::Status DecodeChangedSpec(const SpecPtr& spec,
                               const std::function<void(wire::Spec*)>& change) {
  wire::PlanItem item;
  EncodePlanItem(Define{1, spec}, &item);
  change(item.mutable_define()->mutable_spec());
  return DecodePlanItem(item).status();
}

TEST(Codec, RefusesSpecsThatMakeNoSense) {
  using Change = std::function<void(wire::Spec*)>;
  const auto signature = [](std::function<void(wire::Signature*)> change) -> Change {
    return [change = std::move(change)](wire::Spec* s) { change(s->mutable_signature()); };
  };
  const std::pair<SpecPtr, Change> kCases[] = {
      {Allreduce("w"), [](wire::Spec* s) { s->set_set(-1); }},
      {Allreduce("w"), [](wire::Spec* s) { s->set_set(kProcessSetsMax); }},
      {Allreduce("w"), [](wire::Spec* s) { s->set_name(std::string(kNameBytesMax + 1, 'x')); }},
      {Allreduce("w"),
       [](wire::Spec* s) {
         s->clear_signature();
         s->set_set(-2);
       }},
      {Allreduce("w"), signature([](auto* s) { s->set_kind(kOpKindCount); })},
      {Allreduce("w"), signature([](auto* s) { s->set_kind(UINT32_MAX); })},
      {Allreduce("w"), signature([](auto* s) { s->set_reduce_op(kReduceOpCount); })},
      {Allreduce("w"),
       signature([](auto* s) { s->set_reduce_op(static_cast<uint32_t>(ReduceOp::kNone)); })},
      {Allreduce("w"), signature([](auto* s) { s->set_device(kDeviceTypeCount); })},
      {OfKind(OpKind::kJoin), signature([](auto* s) { s->set_device(1); })},
      {Allreduce("w"), signature([](auto* s) { s->set_priority(1); })},
      {Allreduce("w"), signature([](auto* s) { s->set_priority(kPriorityCount); })},
      {OfKind(OpKind::kJoin), signature([](auto* s) { s->set_priority(2); })},
      {Allreduce("w"), signature([](auto* s) { s->set_root(0); })},
      {Allreduce("w"), signature([](auto* s) { s->clear_parts(); })},
      {Allreduce("w"), signature([](auto* s) { s->add_parts(); })},
      {Allreduce("w"), signature([](auto* s) { s->add_part_names("w"); })},
      {Allreduce("w"), signature([](auto* s) { s->add_ranks(1); })},
      {Allreduce("w"), signature([](auto* s) { s->mutable_parts(0)->set_dtype(kDTypeCount); })},
      {Allreduce("w"), signature([](auto* s) { s->mutable_parts(0)->set_dtype(UINT32_MAX); })},
      {Allreduce("w"), signature([](auto* s) { s->mutable_parts(0)->set_dims(0, -1); })},
      {Allreduce("w"), signature([](auto* s) { s->mutable_parts(0)->set_dims(0, INT64_MAX); })},
      {Allreduce("w"), signature([](auto* s) {
         for (int i = 0; i < kDimsMax; ++i) s->mutable_parts(0)->add_dims(1);
       })},
      {Group(), signature([](auto* s) { s->mutable_part_names()->RemoveLast(); })},
      {Group(), signature([](auto* s) { s->clear_part_names(); })},
      {Group(),
       signature([](auto* s) { s->set_part_names(1, std::string(kNameBytesMax + 1, 'x')); })},
      {Group(), signature([](auto* s) {  // parts of 2^59 bytes
         for (int i = 0; i < 17; ++i) {
           wire::Part* part = s->add_parts();
           part->add_dims(INT64_MAX / 16);
           s->add_part_names("p");
         }
       })},
      {Group(), signature([](auto* s) {
         for (int i = 0; i < kGroupTensorsMax; ++i) {
           s->add_parts();
           s->add_part_names("");
         }
       })},
      {Broadcast(), signature([](auto* s) { s->set_root(-1); })},
      {Broadcast(), signature([](auto* s) { s->set_root(kRanksMax); })},
      {Broadcast(), signature([](auto* s) { s->set_reduce_op(0); })},
      {NewSet(), signature([](auto* s) { s->clear_ranks(); })},
      {NewSet(), signature([](auto* s) { s->set_ranks(0, 2); })},
      {NewSet(), signature([](auto* s) { s->set_ranks(0, -1); })},
      {NewSet(), signature([](auto* s) { s->set_ranks(2, kRanksMax); })},
      {NewSet(), signature([](auto* s) { s->add_parts(); })},
      {Removal(), signature([](auto* s) { s->clear_ranks(); })},
      {Pair(), signature([](auto* s) { s->set_root(-1); })},
      {Pair(), signature([](auto* s) { s->set_root(kRanksMax); })},
      {Pair(), signature([](auto* s) { s->set_peer(-1); })},
      {Pair(), signature([](auto* s) { s->set_peer(kRanksMax); })},
      {Pair(), signature([](auto* s) { s->set_peer(s->root()); })},
      {Allreduce("w"), signature([](auto* s) { s->set_peer(1); })},
      {Compressed(), signature([](auto* s) { s->set_compressor(kCompressorCount); })},
      {Compressed(), signature([](auto* s) { s->set_compression_parameter(0); })},
      {Compressed(), signature([](auto* s) { s->set_compressor(0); })},
      {Compressed(), signature([](auto* s) { s->set_reduce_op(2); })},
      {Pair(), signature([](auto* s) { s->set_compressor(1); })},
      {OfKind(OpKind::kJoin), signature([](auto* s) { s->add_parts(); })},
      {OfKind(OpKind::kJoin), signature([](auto* s) { s->set_root(1); })},
      {OfKind(OpKind::kReduce), signature([](auto* s) { s->set_root(-1); })},
      {OfKind(OpKind::kScatter), signature([](auto* s) { s->set_root(-1); })},
      {OfKind(OpKind::kAlltoall), signature([](auto* s) { s->set_root(0); })},
      {OfKind(OpKind::kAlltoall), signature([](auto* s) { s->set_reduce_op(0); })},
  };
  for (size_t i = 0; i < std::size(kCases); ++i) {
    const auto& [spec, change] = kCases[i];
    ASSERT_TRUE(DecodeChangedSpec(spec, [](wire::Spec*) {}).ok()) << "case " << i;
    const absl::Status status = DecodeChangedSpec(spec, change);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << "case " << i << ": " << status;
  }
}

TEST(Codec, RefusesEventsThatMakeNoSense) {
  const std::pair<const char*, std::function<void(wire::Event*)>> kCases[] = {
      {"no content", [](wire::Event* e) { e->clear_what(); }},
      {"rank -1", [](wire::Event* e) { e->set_rank(-1); }},
      {"rank 65536", [](wire::Event* e) { e->set_rank(kRanksMax); }},
      {"no id and no spec", [](wire::Event* e) { e->mutable_announced()->set_id(0); }},
      {"done", [](wire::Event* e) { e->mutable_announced()->set_done(65'536); }},
      {"scale",
       [](wire::Event* e) {
         e->mutable_announced()->set_scaled(true);
         e->mutable_announced()->set_prescale(std::nan(""));
       }},
      {"scale",
       [](wire::Event* e) {
         e->mutable_announced()->set_scaled(true);
         e->mutable_announced()->set_postscale(HUGE_VAL);
       }},
      {"dimension", [](wire::Event* e) { e->mutable_announced()->add_first_dims(-1); }},
      {"fault",
       [](wire::Event* e) {
         e->mutable_announced()->set_fault(std::string(kFaultBytesMax + 1, 'x'));
       }},
      {"data",
       [](wire::Event* e) {
         e->mutable_announced()->set_data(std::string(kInlineBytesMax + 1, 'x'));
       }},
      {"dimensions",
       [](wire::Event* e) {
         for (int i = 0; i <= kGroupTensorsMax; ++i) e->mutable_announced()->add_first_dims(1);
       }},
      {"sequence", [](wire::Event* e) { e->mutable_waited()->set_sequence(65'536); }},
      {"sequence", [](wire::Event* e) { e->mutable_expire()->set_sequence(65'536); }},
      {"count", [](wire::Event* e) { e->mutable_done()->set_count(65'536); }},
      {"wish", [](wire::Event* e) { e->set_wished(256); }},
      {"wish", [](wire::Event* e) { e->set_wished(UINT32_MAX); }},
      {"lane", [](wire::Event* e) { e->mutable_done()->set_lane(-1); }},
      {"lane", [](wire::Event* e) { e->mutable_done()->set_lane(kProcessSetsMax); }},
  };
  wire::Event good;
  good.mutable_announced()->set_id(3);
  ASSERT_TRUE(DecodeEvent(good).ok());
  for (const auto& [what, change] : kCases) {
    wire::Event event = good;
    change(&event);
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeEvent(event).status())) << what;
  }
}

TEST(Codec, RefusesPlanItemsThatMakeNoSense) {
  wire::PlanItem reject;
  EncodePlanItem(Reject{Broadcast(), 8, {1, 4}, absl::AbortedError("x")}, &reject);
  ASSERT_TRUE(DecodePlanItem(reject).ok());
  const std::pair<const char*, std::function<void(wire::PlanItem*)>> kCases[] = {
      {"no content", [](wire::PlanItem* i) { i->clear_what(); }},
      {"code OK", [](wire::PlanItem* i) { i->mutable_reject()->set_code(0); }},
      {"code 17", [](wire::PlanItem* i) { i->mutable_reject()->set_code(17); }},
      {"order of ranks", [](wire::PlanItem* i) { i->mutable_reject()->set_ranks(0, 4); }},
      {"rank -1", [](wire::PlanItem* i) { i->mutable_reject()->set_ranks(0, -1); }},
      {"rank 65536", [](wire::PlanItem* i) { i->mutable_reject()->set_ranks(1, kRanksMax); }},
      {"lane", [](wire::PlanItem* i) { i->mutable_order()->set_lane(-1); }},
      {"lane", [](wire::PlanItem* i) { i->mutable_order()->set_lane(kProcessSetsMax); }},
      {"dimension",
       [](wire::PlanItem* i) { i->mutable_order()->add_batch()->add_first_dims(INT64_MIN); }},
      {"set", [](wire::PlanItem* i) { i->mutable_set_added()->set_set(-1); }},
      {"set's ranks", [](wire::PlanItem* i) { i->mutable_set_added()->add_ranks(-1); }},
      {"left", [](wire::PlanItem* i) { i->set_left(-1); }},
      {"left", [](wire::PlanItem* i) { i->set_left(kRanksMax); }},
      {"agreement", [](wire::PlanItem* i) { i->set_agreed(256); }},
      {"agreement", [](wire::PlanItem* i) { i->set_agreed(UINT32_MAX); }},
      {"removed set", [](wire::PlanItem* i) { i->mutable_set_removed()->set_set(-1); }},
      {"removed set",
       [](wire::PlanItem* i) { i->mutable_set_removed()->set_set(kProcessSetsMax); }},
      {"joined set", [](wire::PlanItem* i) { i->mutable_joined()->set_set(-1); }},
      {"who joined last", [](wire::PlanItem* i) { i->mutable_joined()->set_last(-1); }},
      {"who joined last", [](wire::PlanItem* i) { i->mutable_joined()->set_last(kRanksMax); }},
      {"who sends", [](wire::PlanItem* i) { i->mutable_order()->mutable_pair()->set_from(-1); }},
      {"who receives",
       [](wire::PlanItem* i) { i->mutable_order()->mutable_pair()->set_to(kRanksMax); }},
      {"absent rank",
       [](wire::PlanItem* i) { i->mutable_order()->mutable_absent()->add_ranks(-1); }},
      {"order of absent ranks",
       [](wire::PlanItem* i) {
         i->mutable_order()->mutable_absent()->add_ranks(2);
         i->mutable_order()->mutable_absent()->add_ranks(1);
       }},
      {"scale",
       [](wire::PlanItem* i) {
         i->mutable_order()->mutable_absent()->add_ranks(2);
         i->mutable_order()->mutable_absent()->set_prescale(std::nan(""));
       }},
  };
  for (const auto& [what, change] : kCases) {
    wire::PlanItem item = reject;
    change(&item);
    EXPECT_TRUE(absl::IsInvalidArgument(DecodePlanItem(item).status())) << what;
  }
}

TEST(Codec, RefusesTextThatIsNotUtf8) {
  wire::StoreGet message;
  message.set_key("ab");
  std::string bytes = message.SerializeAsString();
  ASSERT_TRUE(ParseMessage(bytes, &message).ok());
  bytes[bytes.find('b')] = '\xFF';
  EXPECT_FALSE(ParseMessage(bytes, &message).ok());
}

TEST(Codec, RefusesWhatIsNestedTooDeeply) {
  const auto nested = [](int depth) {  // groups of an unknown field
    return std::string(static_cast<size_t>(depth), '\x7b') +
           std::string(static_cast<size_t>(depth), '\x7c');
  };
  wire::Events events;
  EXPECT_TRUE(ParseMessage(nested(10), &events).ok());
  EXPECT_FALSE(ParseMessage(nested(200), &events).ok());
  EXPECT_FALSE(ParseMessage(nested(1'000'000), &events).ok());
}

TEST(Codec, RefusesWhatIsLongerThanAFrame) {
  wire::StoreSet message;
  message.set_value(std::string(kControlFrameBytesMax, 'x'));
  const absl::Status status = ParseMessage(message.SerializeAsString(), &message);
  EXPECT_THAT(std::string(status.message()), HasSubstr("too long"));
}

// A length that promises more than there is must not be believed.
TEST(Codec, ALyingLengthCostsNothing) {
  wire::StoreSet message;
  EXPECT_FALSE(ParseMessage(std::string("\x12\xff\xff\xff\x7f", 5), &message).ok());
  EXPECT_LT(message.value().capacity(), 4'096u);
  wire::Events events;
  EXPECT_FALSE(ParseMessage(std::string("\x0a\xff\xff\xff\xff\x07", 6), &events).ok());
}

// Many at once ----------------------------------------------------------------------------------

std::vector<ControlEvent> ManyEvents() {
  std::vector<ControlEvent> events;
  for (const SpecPtr& spec : AllSpecs()) {
    CallExtras extras;
    if (spec->signature.kind == OpKind::kAllgather) extras.first_dims = {3};
    events.push_back({1, Announced{Announcing(spec, extras)}});
  }
  events.push_back({2, Waited{1, 2}});
  events.push_back({3, Done{0, 9}});
  events.push_back({4, Expire{5, 6}});
  events.push_back({5, Leave{}});
  events.push_back({6, Blocked{Blocked::kForTheLimit}});
  events.push_back({7, Wished{0xA5}});
  return events;
}

Plan ManyItems() {
  Plan plan;
  TensorId id = 1;
  for (const SpecPtr& spec : AllSpecs()) plan.push_back(Define{id++, spec});
  Order order;
  for (TensorId i = 1; i < id; ++i) order.batch.push_back({i, i, {1, 2}});
  plan.push_back(order);
  plan.push_back(Forget{3});
  plan.push_back(Reject{Group(), 0, {0, 1, 2}, absl::InvalidArgumentError("because")});
  plan.push_back(SetAdded{1, {0, 1}, 0});
  plan.push_back(Left{2});
  plan.push_back(StillBlocked{3});
  plan.push_back(Agreed{0xA5});
  plan.push_back(Told{1, Group(), 4, "missing: rank 0"});
  return plan;
}

// The serialized form tells everything, and is compared whole.
std::string Wire(const std::vector<ControlEvent>& events) {
  const std::vector<std::string> packed = PackEvents(events, SIZE_MAX / 2);
  return packed.empty() ? "" : packed[0];
}
std::string Wire(const Plan& plan) {
  const std::vector<std::string> packed = PackPlan(plan, SIZE_MAX / 2);
  return packed.empty() ? "" : packed[0];
}

TEST(Pack, SplitsWhereItMustAndLosesNothing) {
  std::vector<ControlEvent> events;
  for (int i = 0; i < 20; ++i) {
    for (ControlEvent& event : ManyEvents()) events.push_back(std::move(event));
  }
  const std::string whole = Wire(events);
  for (const size_t bytes_max : {size_t{1}, size_t{60}, size_t{200}, size_t{5'000}, whole.size()}) {
    const std::vector<std::string> packed = PackEvents(events, bytes_max);
    std::vector<ControlEvent> unpacked;
    for (const std::string& message : packed) {
      const size_t before = unpacked.size();
      ASSERT_TRUE(UnpackEvents(message, &unpacked).ok());
      ASSERT_GT(unpacked.size(), before) << "no empty messages";
      ASSERT_TRUE(message.size() <= bytes_max || unpacked.size() == before + 1);
    }
    EXPECT_EQ(Wire(unpacked), whole);
  }
  EXPECT_EQ(PackEvents(events, 1).size(), events.size());
}

TEST(Pack, PlansAsWell) {
  const Plan plan = ManyItems();
  for (const size_t bytes_max : {size_t{1}, size_t{100}, size_t{1} << 20}) {
    Plan unpacked;
    for (const std::string& message : PackPlan(plan, bytes_max)) {
      ASSERT_TRUE(UnpackPlan(message, &unpacked).ok());
    }
    EXPECT_EQ(Wire(unpacked), Wire(plan));
  }
}

TEST(Pack, NothingMakesNoMessage) {
  EXPECT_THAT(PackEvents({}, 100), IsEmpty());
  EXPECT_THAT(PackPlan({}, 100), IsEmpty());
  std::vector<ControlEvent> events;
  EXPECT_TRUE(UnpackEvents("", &events).ok());
  EXPECT_THAT(events, IsEmpty());
}

// A cut between two entries leaves a shorter list, any other an error; never something else.
TEST(Pack, EveryTruncationIsAnErrorOrAShorterList) {
  const std::vector<ControlEvent> events = ManyEvents();
  const std::string whole = Wire(events);
  size_t shorter = 0;
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    std::vector<ControlEvent> unpacked;
    if (!UnpackEvents(whole.substr(0, bytes), &unpacked).ok()) continue;
    ++shorter;
    ASSERT_EQ(Wire(unpacked), whole.substr(0, bytes));
  }
  EXPECT_EQ(shorter, events.size());
}

// What is accepted is valid: it says the same after another trip.
TEST(Pack, EveryFlippedByteIsAnErrorOrAnotherValidList) {
  const std::string events = Wire(ManyEvents());
  const std::string plan = Wire(ManyItems());
  for (const int flip : {0x01, 0x80, 0xFF, 0x08}) {
    for (size_t i = 0; i < events.size(); ++i) {
      std::string bad = events;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      std::vector<ControlEvent> first, second;
      if (!UnpackEvents(bad, &first).ok()) continue;
      ASSERT_TRUE(UnpackEvents(Wire(first), &second).ok()) << i;
      ASSERT_EQ(Wire(second), Wire(first)) << i;
    }
    for (size_t i = 0; i < plan.size(); ++i) {
      std::string bad = plan;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      Plan first, second;
      if (!UnpackPlan(bad, &first).ok()) continue;
      ASSERT_TRUE(UnpackPlan(Wire(first), &second).ok()) << i;
      ASSERT_EQ(Wire(second), Wire(first)) << i;
    }
  }
}

}  // namespace
}  // namespace rueda
