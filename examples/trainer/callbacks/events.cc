#include "examples/trainer/callbacks/events.h"

#include "examples/trainer/callbacks/event.pb.h"

namespace trainer {
namespace {

using rueda::trainer::Event;
using rueda::trainer::SessionLog;
using rueda::trainer::Summary;

Event EventAt(double wall_time_s, int64_t step) {
  Event event;
  event.set_wall_time(wall_time_s);
  event.set_step(step);
  return event;
}

}  // namespace

std::string FirstEvent(double wall_time_s) {
  Event event = EventAt(wall_time_s, 0);
  event.set_file_version("brain.Event:2");
  return event.SerializeAsString();
}

std::string RestartEvent(double wall_time_s, int64_t step) {
  Event event = EventAt(wall_time_s, step);
  event.mutable_session_log()->set_status(SessionLog::START);
  return event.SerializeAsString();
}

std::string ScalarsEvent(double wall_time_s, int64_t step,
                         const std::map<std::string, double>& scalars) {
  Event event = EventAt(wall_time_s, step);
  for (const auto& [tag, value] : scalars) {
    Summary::Value* const scalar = event.mutable_summary()->add_value();
    scalar->set_tag(tag);
    scalar->set_simple_value(static_cast<float>(value));
  }
  return event.SerializeAsString();
}

}  // namespace trainer
