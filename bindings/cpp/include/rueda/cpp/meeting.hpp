// Rueda's C++ API: barrier and join. Included by rueda/rueda.hpp, which says how to use it.
#ifndef RUEDA_CPP_MEETING_HPP_
#define RUEDA_CPP_MEETING_HPP_

#include <cstdint>
#include <utility>

#include "rueda/cpp/calls.hpp"
#include "rueda/cpp/errors.hpp"
#include "rueda/cpp/handles.hpp"
#include "rueda/cpp/options.hpp"
#include "rueda/cpp/process_sets.hpp"
#include "rueda/rueda.h"

namespace rueda {

/// \addtogroup cpp_meeting
/// @{

/// Waits until all ranks of the process set are here.
inline void barrier(ProcessSet process_set = global_process_set) {
  detail::Execute(detail::CallOf(RUEDA_BARRIER, Options{.process_set = process_set}), nullptr);
}

/// The same, in the background: the operation ends when all ranks are there.
[[nodiscard]] inline Handle<> barrier_async(ProcessSet process_set = global_process_set) {
  auto state = detail::MakeCargo<detail::State<void>>();
  const rueda_operation operation =
      detail::COperation(detail::CallOf(RUEDA_BARRIER, Options{.process_set = process_set}));
  state->flight.Start({&operation, 1}, detail::When::kInBackground);
  return Handle<>(std::move(state));
}

/// Says that this rank has no more data: the others' operations in the process set go on without it
/// (rueda_join). Waits until all ranks have joined; returns the one that joined last.
inline int join(ProcessSet process_set = global_process_set) {
  int32_t last_rank = -1;
  detail::Check(rueda_join(detail::Current(), process_set.id, RUEDA_FOREVER, &last_rank));
  return last_rank;
}

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_MEETING_HPP_
