#include "ops/backends.h"

#include <iterator>

#include "core/base/check.h"

namespace rueda {
namespace {

struct Entry {
  absl::string_view name;
  std::unique_ptr<Backend> (*make)(const BackendArgs& args);
};

#define RUEDA_ENTRY(name, make, choice) {name, make},
constexpr Entry kEntries[] = {RUEDA_BACKENDS(RUEDA_ENTRY)};
#undef RUEDA_ENTRY

}  // namespace

std::vector<std::unique_ptr<Backend>> MakeBackends(BackendArgs args) {
  std::vector<std::unique_ptr<Backend>> backends(std::size(kEntries));
  args.other = [&](absl::string_view name) -> Backend* {
    for (size_t i = 0; i < backends.size(); ++i) {
      if (kEntries[i].name != name) continue;
      if (backends[i] == nullptr) backends[i] = kEntries[i].make(args);
      RUEDA_CHECK(backends[i]->name() == name) << name << " is called " << backends[i]->name();
      return backends[i].get();
    }
    RUEDA_CHECK(false) << "there is no backend " << name;
    return nullptr;
  };
  for (const Entry& entry : kEntries) args.other(entry.name);
  return backends;
}

}  // namespace rueda
