// What the engine does, as the timeline tells it: finds each tensor a track of its own, and turns
// the ends of operations and buckets into records.
//
// Owned by the engine; called by the holder of the baton. Costs one load a call while the timeline
// is off.
#pragma once

#include <string>
#include <vector>

#include "controller/lanes/lane.h"
#include "controller/negotiation/tensor_table.h"
#include "controller/timeline/timeline.h"
#include "core/base/hash_map.h"

namespace rueda {

class Tracks {
 public:
  Tracks(Timeline* timeline, Rank rank) : timeline_(timeline), rank_(rank) {}

  // The request is ordered, under `id`.
  void Ordered(Request* request, TensorId id) {
    if (!IsOn()) return;
    const uint32_t slot = TensorTable::SlotOf(id);
    if (slot < named_.size() && named_[slot].id == id) {
      request->track = named_[slot].track;
      if (!named_[slot].more.empty()) request->more_tracks = named_[slot].more;
    } else {
      FindTracks(request, id);
    }
  }
  // The lane has done with a bucket; none of its requests has ended by it yet.
  void BucketDone(const Lane& lane, Queue queue, const LaneBucket& bucket) {
    if (IsOn()) TellBucket(lane, queue, bucket);
  }
  // The request ends, with what its status says.
  void Ended(Request* request) {
    const bool told = request->ordered_at != 0 && request->status.ok();  // by its buckets
    if (!told && IsOn()) TellEnd(request);
  }
  // Something that is no operation's; `name` is a literal.
  void Note(const char* name, std::string text) {
    const Nanos now = MonotonicNow();
    if (timeline_->on()) timeline_->Instant(name, kEventsTrack, std::move(text), now, now);
  }

 private:
  struct Named {
    TensorId id = kNoTensor;  // kNoTensor: not known
    uint32_t track = 0;       // as in Request
    std::vector<uint32_t> more;
  };

  // Whether the timeline is on; then all below belongs to its file. It may stop at any moment, and
  // still takes what is told then.
  bool IsOn() {
    const Nanos file = timeline_->began();
    if (file == kForever) return false;
    if (file != file_) Begin(file);
    return true;
  }
  void Begin(Nanos file);
  void FindTracks(Request* request, TensorId id);
  void FindTracksOfUnnamed(Request* request);
  void FindTracksByName(Request* request);
  uint32_t NewTrack(std::string name);
  void TellBucket(const Lane& lane, Queue queue, const LaneBucket& bucket);
  void TellEnd(Request* request);

  Timeline* const timeline_;
  const Rank rank_;
  Nanos file_ = kForever;  // Timeline::began of the file that all below belongs to
  uint32_t next_track_ = 1;
  uint32_t buckets_ = 0;
  std::vector<Named> named_;                    // by slot of the id
  std::vector<std::vector<uint32_t>> unnamed_;  // by token, of which no two are in flight, and part
  HashMap<std::pair<SetId, std::string>, uint32_t> by_name_;
  std::vector<bool> queues_named_;  // of lanes: by queue, then set
};

}  // namespace rueda
