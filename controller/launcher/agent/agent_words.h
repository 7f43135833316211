// What ruedarun and its agents may say to each other: each message is read and checked here, field
// by field, before anything is done with it. An agent is behind a remote shell, and may be anything
// that answers there. PURE
#pragma once

#include "absl/strings/string_view.h"
#include "controller/launcher/agent/agent.pb.h"
#include "controller/launcher/decide/message.h"
#include "controller/launcher/decide/rank_plan.h"
#include "core/base/status.h"

namespace rueda {

// Messages of decide/message.h.
launch::Event ToWire(const Message& message);
Message FromWire(const launch::Event& event);

// A message of an agent whose ranks are `share`. Texts in it are cut, and lose what a terminal
// would take for a command. DATA_LOSS, for people: why it is none that such an agent may say.
absl::Status ReadFromAgent(absl::string_view bytes, const HostShare& share,
                           launch::FromAgent* message);

// A message of ruedarun. `share`: the agent's ranks; null: it has none yet, and an order comes.
// DATA_LOSS: it is none that ruedarun says.
absl::Status ReadToAgent(absl::string_view bytes, const HostShare* share, launch::ToAgent* message);

}  // namespace rueda
