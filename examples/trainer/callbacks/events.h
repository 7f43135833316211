// TensorBoard's events, as the bytes of records. Apart from what includes torch, whose headers have
// another Protobuf among them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace trainer {

// A file's first one.
std::string FirstEvent(double wall_time_s);
// A training goes on from here: events of this step and later ones, in older files, don't count.
std::string RestartEvent(double wall_time_s, int64_t step);
std::string ScalarsEvent(double wall_time_s, int64_t step,
                         const std::map<std::string, double>& scalars);

}  // namespace trainer
