// PURE
#include "controller/negotiation/member.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controller/negotiation/participants.h"

namespace rueda {

Member::Member(Rank rank, int world_size, absl::Span<const std::vector<Rank>> process_sets)
    : rank_(rank), sets_(world_size, process_sets), set_states_(sets_.end()) {}

void Member::Submit(Token token, SpecPtr spec, CallExtras extras, bool waited) {
  ask_queued_ = false;  // a question that is queued comes before it
  if (token >= outstanding_.size()) outstanding_.resize(token + 1);
  Outstanding& entry = outstanding_[token];
  entry.live = true;
  entry.announced = false;
  entry.waited = waited;
  entry.wait_told = waited;
  entry.sequence = 0;
  entry.id = kNoTensor;
  entry.extras = std::move(extras);
  entry.spec = std::move(spec);
  if (entry.spec->unnamed()) {
    Unnamed& unnamed = unnamed_[entry.spec->unnamed_key()];
    entry.sequence = unnamed.next++;
    unnamed.submitted.push_back({entry.sequence, token});
  } else if (entry.id = table_.Find(*entry.spec); entry.id != kNoTensor) {
    token_by_id_[TensorTable::SlotOf(entry.id)] = token;
  } else {
    undefined_.emplace(entry.spec.get(), token);
  }
  const std::vector<int64_t>& in_flight = entry.extras.first_dims;  // of a removal
  SetClosing(entry.spec->signature, in_flight.size() == 1 && in_flight[0] == 0);
  outgoing_.push_back({What::kAnnounce, token});
}

void Member::SetClosing(const Signature& removal, bool closing) {
  if (removal.kind != OpKind::kRemoveProcessSet) return;
  if (const ProcessSet* set = sets_.Find(removal.ranks)) set_states_[set->id].closing = closing;
}

void Member::MarkWaited(Token token) {
  Outstanding& entry = outstanding_[token];
  if (!entry.live || entry.waited) return;
  entry.waited = true;
  if (entry.announced) TellWait(token);
}

void Member::TellWait(Token token) {
  Outstanding& entry = outstanding_[token];
  if (entry.wait_told) return;
  if (IdOf(entry) == kNoTensor) {
    waits_owed_.push_back(token);
    return;
  }
  entry.wait_told = true;
  outgoing_.push_back({What::kWaited, token});
}

void Member::CompletedBatch(SetId lane) {
  ++set_states_[lane].completed;
}

void Member::AnnounceDone(SetId lane) {
  if (set_states_[lane].done_queued) return;
  set_states_[lane].done_queued = true;
  outgoing_.push_back({What::kDone, 0, lane});
}

void Member::Ask() {
  if (std::exchange(ask_queued_, true)) return;
  outgoing_.push_back({What::kAsk});
}

void Member::AnnounceLeave() {
  outgoing_.push_back({What::kLeave});
}

const ControlEvent* Member::Next() {
  next_.rank = rank_;
  while (!outgoing_.empty()) {
    const Outgoing& out = outgoing_.front();
    switch (out.what) {
      case What::kAnnounce: {
        const Outstanding& entry = outstanding_[out.token];
        Announced announced;
        announced.announcement.id = IdOf(entry);
        if (announced.announcement.id == kNoTensor) announced.announcement.spec = entry.spec;
        announced.announcement.waited = entry.waited;
        announced.announcement.done = static_cast<uint16_t>(set_states_[entry.spec->set].completed);
        announced.announcement.extras = entry.extras;
        next_.what = std::move(announced);
        return &next_;
      }
      case What::kWaited: {
        const Outstanding& entry = outstanding_[out.token];
        const TensorId id = entry.live ? IdOf(entry) : kNoTensor;
        if (id == kNoTensor) {  // it ended meanwhile
          outgoing_.pop_front();
          continue;
        }
        next_.what = Waited{id, static_cast<uint16_t>(entry.sequence)};
        return &next_;
      }
      case What::kDone:
        next_.what = Done{out.lane, static_cast<uint16_t>(set_states_[out.lane].completed)};
        return &next_;
      case What::kLeave:
        next_.what = Leave{};
        return &next_;
      case What::kBlocked:
        next_.what = out.blocked;
        return &next_;
      case What::kAsk:
        next_.what = Asked{};
        return &next_;
      case What::kWish:
        next_.what = out.wished;
        return &next_;
    }
  }
  return nullptr;
}

void Member::Pop() {
  const Outgoing out = outgoing_.front();
  outgoing_.pop_front();
  if (out.what == What::kAnnounce) {
    outstanding_[out.token].announced = true;
    outstanding_[out.token].wait_told = outstanding_[out.token].waited;
  } else if (out.what == What::kDone) {
    set_states_[out.lane].done_queued = false;
  } else if (out.what == What::kAsk) {
    ask_queued_ = false;
  }
}

absl::Status Member::Apply(const PlanItem& item, std::vector<Action>* actions) {
  if (const auto* order = std::get_if<Order>(&item)) return ApplyOrder(*order, actions);
  if (const auto* define = std::get_if<Define>(&item)) {
    // This rank's own, if it has submitted it: one copy then serves both.
    const auto own = undefined_.find(define->spec.get());
    RUEDA_RETURN_IF_ERROR(table_.Define(
        define->id, own == undefined_.end() ? define->spec : outstanding_[own->second].spec));
    ApplyDefine(*define);
  } else if (const auto* forget = std::get_if<Forget>(&item)) {
    ApplyForget(*forget);
  } else if (const auto* reject = std::get_if<Reject>(&item)) {
    ApplyReject(*reject, actions);
  } else if (const auto* added = std::get_if<SetAdded>(&item)) {
    return ApplySetAdded(*added, actions);
  } else if (const auto* removed = std::get_if<SetRemoved>(&item)) {
    return ApplySetRemoved(*removed, actions);
  } else if (const auto* joined = std::get_if<Joined>(&item)) {
    return ApplyJoined(*joined, actions);
  } else if (const auto* question = std::get_if<StillBlocked>(&item)) {
    actions->push_back(*question);
  } else if (const auto* agreed = std::get_if<Agreed>(&item)) {
    agreed_ = agreed->bits;
  } else if (const auto* told = std::get_if<Told>(&item)) {
    if (told->rank != rank_) return absl::OkStatus();
    const int64_t token = AnnouncedAs(*told->spec, told->sequence);
    if (token >= 0) actions->push_back(Missing{static_cast<Token>(token), told->text});
  } else {
    const Left& left = std::get<Left>(item);
    if (left.rank < 0 || left.rank >= sets_.world_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan says that rank ", left.rank, " has left"));
    }
    actions->push_back(left);
  }
  return absl::OkStatus();
}

void Member::ApplyDefine(const Define& define) {
  const uint32_t slot = TensorTable::SlotOf(define.id);
  if (slot >= token_by_id_.size()) token_by_id_.resize(slot + 1, -1);
  token_by_id_[slot] = -1;
  if (const auto it = undefined_.find(define.spec.get()); it != undefined_.end()) {
    token_by_id_[slot] = it->second;
    outstanding_[it->second].id = define.id;
    undefined_.erase(it);
  }
  std::vector<Token> owed;
  owed.swap(waits_owed_);
  for (const Token token : owed) {
    if (outstanding_[token].live) TellWait(token);
  }
}

void Member::ApplyForget(const Forget& forget) {
  const uint32_t slot = TensorTable::SlotOf(forget.id);
  if (table_.Get(forget.id) != nullptr && token_by_id_[slot] >= 0) {
    // Our announcement is under way; the coordinator recalls the spec and defines it again.
    const Token token = static_cast<Token>(token_by_id_[slot]);
    undefined_.emplace(outstanding_[token].spec.get(), token);
    token_by_id_[slot] = -1;
    outstanding_[token].id = kNoTensor;
  }
  table_.Forget(forget.id);
}

absl::Status Member::ApplySetAdded(const SetAdded& added, std::vector<Action>* actions) {
  RUEDA_ASSIGN_OR_RETURN(const SetId id, sets_.Add(added.ranks));
  if (id != added.set) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan adds process set ", added.set, " where ", id, " is next"));
  }
  if (static_cast<size_t>(id) == set_states_.size()) set_states_.emplace_back();
  set_states_[id] = SetState();
  const Token token = EndUnnamed(kWorldSet, OpKind::kAddProcessSet, added.sequence);
  actions->push_back(NewSet{id, token != kNoToken, token});
  return absl::OkStatus();
}

absl::Status Member::ApplySetRemoved(const SetRemoved& removed, std::vector<Action>* actions) {
  RUEDA_RETURN_IF_ERROR(sets_.Remove(removed.set));
  std::erase_if(unnamed_,
                [&](const auto& entry) { return std::get<0>(entry.first) == removed.set; });
  const Token token = EndUnnamed(kWorldSet, OpKind::kRemoveProcessSet, removed.sequence);
  actions->push_back(RemovedSet{removed.set, token != kNoToken, token});
  return absl::OkStatus();
}

absl::Status Member::ApplyJoined(const Joined& joined, std::vector<Action>* actions) {
  const ProcessSet* set = sets_.Find(joined.set);
  if (set == nullptr || !set->Contains(joined.last)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan says that rank ", joined.last, " joined process set ", joined.set));
  }
  if (!set->Contains(rank_)) return absl::OkStatus();
  const Token token = EndUnnamed(joined.set, OpKind::kJoin, joined.sequence);
  if (token == kNoToken) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan says that rank ", rank_, " has joined process set ", joined.set));
  }
  // Ranks have been through different numbers of unnamed operations; none is in flight.
  std::erase_if(unnamed_,
                [&](const auto& entry) { return std::get<0>(entry.first) == joined.set; });
  actions->push_back(JoinDone{token, joined.last});
  return absl::OkStatus();
}

Token Member::EndUnnamed(SetId set, OpKind kind, uint32_t sequence) {
  const auto it = unnamed_.find(TensorSpec::UnnamedKey(set, kind, -1, -1));
  const Unnamed::Submitted* submitted = it == unnamed_.end() ? nullptr : it->second.Find(sequence);
  if (submitted == nullptr) return kNoToken;
  const Token token = submitted->token;
  End(token);
  return token;
}

// Null when there is none, or it has ended.
Member::Unnamed::Submitted* Member::Unnamed::Find(uint32_t sequence) {
  // Nearly always the first.
  const auto it = std::find_if(submitted.begin(), submitted.end(),
                               [&](const Submitted& each) { return each.sequence == sequence; });
  return it != submitted.end() && it->token != kNoToken ? &*it : nullptr;
}

// Notes the end of an unnamed operation that this rank may have no part in.
void Member::NoteEnded(const TensorSpec& spec, uint32_t sequence) {
  const ProcessSet* set = sets_.Find(spec.set);
  if (!spec.unnamed() || set == nullptr || Participants(spec, *set).IndexOf(rank_) < 0) return;
  uint32_t& ended = unnamed_[spec.unnamed_key()].ended;
  ended = LaterSequence(ended, sequence + 1);
}

// This rank's join has failed, and it has missed what ended meanwhile.
void Member::CatchUp(SetId set) {
  for (auto& [key, unnamed] : unnamed_) {
    if (std::get<0>(key) == set) unnamed.next = LaterSequence(unnamed.next, unnamed.ended);
  }
}

namespace {

// How many first dimensions the plan has for an operation of that many members, if `dims` may be
// it.
bool DimsFit(const Signature& signature, size_t members, size_t dims) {
  if (signature.kind == OpKind::kAlltoall) return dims == members || dims == members * members;
  return dims == (TraitsOf(signature.kind).ragged ? members * signature.parts.size() : 0);
}

}  // namespace

absl::Status Member::ApplyOrder(const Order& order, std::vector<Action>* actions) {
  const ProcessSet* set = sets_.Find(order.lane);
  if (set == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan orders something on process set ", order.lane));
  }
  if (!set->Contains(rank_)) return absl::OkStatus();
  SetState& state = set_states_[order.lane];
  const uint64_t number = state.ordered++;
  if (order.to >= 0 && order.from != rank_ && order.to != rank_) {
    ++state.completed;  // nothing to do here
    return absl::OkStatus();
  }
  const bool absent = std::binary_search(order.absent.begin(), order.absent.end(), rank_);
  if (order.data != nullptr && (order.data->size() != static_cast<size_t>(set->size()) ||
                                order.batch.size() != 1 || !order.absent.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan orders ", order.batch.size(), " operations, without ",
                     order.absent.size(), " ranks, with the data of ", order.data->size()));
  }
  Launch launch = {order.lane, number, order.absent, order.scaling, {}, order.data, agreed_};
  launch.items.reserve(order.batch.size());
  for (const Ordered& ordered : order.batch) {
    const SpecPtr* spec = table_.Get(ordered.id);
    const int64_t token =
        spec == nullptr || absent ? -1 : TokenOf(**spec, ordered.id, ordered.sequence);
    if (spec == nullptr || (token < 0 && !absent)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan orders tensor id ", ordered.id, " (",
                       spec == nullptr ? "undefined" : SpecLabel(**spec, ordered.sequence),
                       "), which rank ", rank_, " has not submitted"));
    }
    const Signature& signature = (*spec)->signature;
    if (!DimsFit(signature, static_cast<size_t>(set->size()), ordered.first_dims.size()) ||
        (absent && !CanMiss(signature, rank_))) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan orders ", SpecLabel(**spec, ordered.sequence), " with ",
                       ordered.first_dims.size(), " first dimensions"));
    }
    if (order.data != nullptr && BytesBrought(signature, {}, rank_) < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the plan has the data of ", SpecLabel(**spec, ordered.sequence), ", which needs none"));
    }
    launch.items.push_back(
        {absent ? kNoToken : static_cast<Token>(token), ordered.id, *spec, ordered.first_dims});
    if (absent) {
      NoteEnded(**spec, ordered.sequence);
    } else {
      End(static_cast<Token>(token));
    }
  }
  actions->push_back(std::move(launch));
  return absl::OkStatus();
}

void Member::ApplyReject(const Reject& reject, std::vector<Action>* actions) {
  const TensorSpec& spec = *reject.spec;
  NoteEnded(spec, reject.sequence);
  if (!std::binary_search(reject.ranks.begin(), reject.ranks.end(), rank_)) return;
  const int64_t token = AnnouncedAs(spec, reject.sequence);
  if (token < 0) return;
  SetClosing(spec.signature, false);
  End(static_cast<Token>(token));
  if (spec.signature.kind == OpKind::kJoin) CatchUp(spec.set);
  actions->push_back(Rejected{static_cast<Token>(token), reject.status});
}

int64_t Member::AnnouncedAs(const TensorSpec& spec, uint32_t sequence) {
  if (spec.unnamed()) return TokenOf(spec, kNoTensor, sequence);
  for (size_t i = 0; i < outstanding_.size(); ++i) {
    const Outstanding& entry = outstanding_[i];
    if (entry.live && entry.announced && entry.spec->set == spec.set &&
        entry.spec->pair() == spec.pair() && entry.spec->name == spec.name) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

int64_t Member::TokenOf(const TensorSpec& spec, TensorId id, uint32_t sequence) {
  if (!spec.unnamed()) return token_by_id_[TensorTable::SlotOf(id)];
  const auto it = unnamed_.find(spec.unnamed_key());
  const Unnamed::Submitted* submitted = it == unnamed_.end() ? nullptr : it->second.Find(sequence);
  return submitted == nullptr ? int64_t{-1} : submitted->token;
}

void Member::End(Token token) {
  Outstanding& entry = outstanding_[token];
  const TensorSpec& spec = *entry.spec;
  if (spec.unnamed()) {
    Unnamed& unnamed = unnamed_[spec.unnamed_key()];
    unnamed.Find(entry.sequence)->token = kNoToken;
    while (!unnamed.submitted.empty() && unnamed.submitted.front().token == kNoToken) {
      unnamed.submitted.pop_front();
    }
  } else if (entry.id != kNoTensor) {
    token_by_id_[TensorTable::SlotOf(entry.id)] = -1;
  } else {
    undefined_.erase(&spec);
  }
  entry.live = false;
  entry.extras.said = nullptr;
  entry.spec.reset();
}

}  // namespace rueda
