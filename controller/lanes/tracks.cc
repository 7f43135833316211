#include "controller/lanes/tracks.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

using What = TimelineRecord::What;

// "ALLREDUCE", as a literal: it lives for ever.
const char* WordOf(OpKind kind) {
  static const auto* const words = [] {
    auto* made = new std::array<std::string, kOpKindCount>();
    for (int i = 0; i < kOpKindCount; ++i) {
      (*made)[i] = absl::AsciiStrToUpper(OpKindName(static_cast<OpKind>(i)));
    }
    return made;
  }();
  return (*words)[static_cast<int>(kind)].c_str();
}

// How many tensors of the request the timeline shows; an operation without any is shown as one.
size_t PartsOf(const Request& request) {
  return std::max<size_t>(request.parts.size(), 1);
}

int64_t PartBytes(const Request& request, size_t part) {
  if (request.parts.empty()) return 0;
  const PartArgs& args = request.parts[part];
  return args.shape.elements() * static_cast<int64_t>(DTypeSize(args.dtype));
}

uint32_t TrackAt(const Request& request, size_t part) {
  if (part == 0) return request.track;
  return part <= request.more_tracks.size() ? request.more_tracks[part - 1] : 0;
}

// Parts are set in order.
void SetTrack(Request* request, size_t part, uint32_t track) {
  if (part == 0) {
    request->track = track;
  } else {
    request->more_tracks.push_back(track);
  }
}

}  // namespace

void Tracks::Begin(Nanos file) {
  file_ = file;
  next_track_ = 1;
  buckets_ = 0;
  named_.clear();
  unnamed_.clear();
  by_name_.clear();
  queues_named_.clear();
}

// A track of 0 is one whose name found no room in the ring: what would be drawn on it is not, and
// is counted as lost.
void Tracks::FindTracks(Request* request, TensorId id) {
  if (request->spec->unnamed()) return FindTracksOfUnnamed(request);
  FindTracksByName(request);
  const std::vector<uint32_t>& more = request->more_tracks;
  if (request->track == 0 || std::find(more.begin(), more.end(), 0u) != more.end()) return;
  const uint32_t slot = TensorTable::SlotOf(id);
  if (slot >= named_.size()) named_.resize(slot + 1);
  named_[slot] = {id, request->track, more};
}

void Tracks::FindTracksOfUnnamed(Request* request) {
  if (request->token >= unnamed_.size()) unnamed_.resize(request->token + 1);
  std::vector<uint32_t>& tracks = unnamed_[request->token];
  request->more_tracks.clear();
  for (size_t part = 0; part < PartsOf(*request); ++part) {
    if (part == tracks.size()) {
      const uint32_t track = NewTrack(
          absl::StrCat("unnamed ", request->token, part == 0 ? "" : absl::StrCat(".", part)));
      if (track == 0) return;
      tracks.push_back(track);
    }
    SetTrack(request, part, tracks[part]);
  }
}

void Tracks::FindTracksByName(Request* request) {
  const TensorSpec& spec = *request->spec;
  request->more_tracks.clear();
  for (size_t part = 0; part < PartsOf(*request); ++part) {
    auto key = std::make_pair(
        spec.set, spec.signature.is_group() ? spec.signature.part_names[part] : spec.name);
    if (const auto [from, to] = spec.pair(); to >= 0) {
      absl::StrAppend(&key.second, " (from ", from, " to ", to, ")");
    }
    const auto it = by_name_.find(key);
    if (it != by_name_.end()) {
      SetTrack(request, part, it->second);
      continue;
    }
    const uint32_t track = NewTrack(
        spec.set == kWorldSet ? key.second : absl::StrCat(key.second, " (set ", spec.set, ")"));
    SetTrack(request, part, track);
    if (track != 0 && track < kTensorTracks) by_name_.emplace(std::move(key), track);
  }
}

uint32_t Tracks::NewTrack(std::string name) {
  // A viewer takes the thread that has its process's number for the main one.
  if (next_track_ == static_cast<uint32_t>(rank_)) ++next_track_;
  if (next_track_ > kTensorTracks) return kTensorTracks;
  if (next_track_ == kTensorTracks) name = "all other tensors";
  if (!timeline_->Name(What::kName, next_track_, std::move(name), file_)) return 0;
  return next_track_++;
}

void Tracks::TellBucket(const Lane& lane, Queue queue, const LaneBucket& bucket) {
  const auto number_of_queue =
      static_cast<size_t>(queue) * kProcessSetsMax + static_cast<size_t>(lane.set());
  const uint32_t track = kFirstLaneTrack + static_cast<uint32_t>(number_of_queue);
  if (number_of_queue >= queues_named_.size()) queues_named_.resize(number_of_queue + 1);
  if (!queues_named_[number_of_queue]) {
    const bool is_low = queue == Queue::kLow;
    queues_named_[number_of_queue] = timeline_->Name(
        What::kLane, track,
        absl::StrCat(lane.backend(queue).name(), is_low ? ", low priority" : ""), file_);
  }
  const PhaseTimes times = lane.phase_times(queue, bucket);
  const char* const word = WordOf(bucket.operation.kind);
  const uint32_t number = ++buckets_;
  const auto element_bytes = static_cast<int64_t>(DTypeSize(bucket.operation.dtype));
  const auto tensors = static_cast<uint32_t>(bucket.requests.size());
  int64_t bytes = 0;  // that this rank gives
  for (const Piece& piece : bucket.pieces) bytes += piece.elements * element_bytes;
  // A rank that has joined works for the others' tensors, and has none.
  const bool absent = bucket.requests[0] == nullptr;
  const Request* request = nullptr;  // the parts of one are neighbours
  size_t part = 0;
  const auto next = [&](uint32_t i) {
    const Request* const before = std::exchange(request, bucket.requests[i]);
    part = request == before ? part + 1 : PartsOf(*request) - request->buckets_left;
  };
  timeline_->Append(1 + (absent ? 0 : tensors), [&](uint32_t i, TimelineRecord& record) {
    record.name = word;
    record.bucket = number;
    record.started = bucket.started_at;
    record.done = bucket.done_at;
    if (i == 0) {
      if (!absent) next(0);
      record.what = What::kBucket;
      record.tensors = tensors;
      record.in_plan = bucket.data != nullptr;
      record.track = track;
      record.row = absent ? 0 : TrackAt(*request, part);
      record.pack = times.pack;
      record.unpack = times.unpack;
      record.bytes = bytes;
      return;
    }
    if (i > 1) next(i - 1);
    record.what = What::kTensor;
    record.track = TrackAt(*request, part);
    record.submitted = request->submitted_at;
    record.ordered = request->ordered_at;
    record.bytes = PartBytes(*request, part);  // pieces have no empty ones
  });
  if (times.packed_at != 0) {
    timeline_->Span("MEMCPY_IN_FUSION_BUFFER", track, 0, times.packed_at - times.pack,
                    times.packed_at);
  }
  if (times.unpacking_at != 0) {
    timeline_->Span("MEMCPY_OUT_FUSION_BUFFER", track, 0, times.unpacking_at,
                    times.unpacking_at + times.unpack);
  }
}

// What no bucket has told: an operation that was never ordered, and one that failed on its way.
void Tracks::TellEnd(Request* request) {
  if (request->submitted_at < file_) return;
  const Nanos now = MonotonicNow();
  const size_t parts = PartsOf(*request);
  const bool ordered = request->ordered_at != 0;
  if (!ordered) {
    if (request->spec->unnamed()) {
      FindTracksOfUnnamed(request);
    } else {
      FindTracksByName(request);
    }
  }
  const size_t left = ordered ? static_cast<size_t>(request->buckets_left) : parts;
  timeline_->Append(static_cast<uint32_t>(left), [&](uint32_t i, TimelineRecord& record) {
    const size_t part = parts - left + i;
    record.what = What::kTensor;
    record.track = TrackAt(*request, part);
    record.bucket = 0;
    record.name = WordOf(request->spec->signature.kind);
    record.submitted = request->submitted_at;
    record.ordered = request->ordered_at;
    record.started = request->started_at;
    record.done = now;
    record.bytes = PartBytes(*request, part);
  });
  if (!request->status.ok()) {
    timeline_->Instant("ERROR", TrackAt(*request, 0), std::string(request->status.message()),
                       request->submitted_at, now);
  }
}

}  // namespace rueda
