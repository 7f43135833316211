#include "ops/backend/module_library.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

// Callbacks of the module. They run on the thread that is inside one of its functions.

int32_t Report(const absl::Status& status, char* message) {
  const size_t length = std::min<size_t>(status.message().size(), RUEDA_MODULE_MESSAGE_BYTES - 1);
  std::copy_n(status.message().begin(), length, message);
  message[length] = 0;
  return static_cast<int32_t>(status.code());
}

int32_t StoreSet(void* user, const char* key, const void* value, size_t bytes, char* message) {
  return Report(static_cast<LaneStore*>(user)->Set(
                    key, absl::string_view(static_cast<const char*>(value), bytes)),
                message);
}

int32_t StoreGet(void* user, const char* key, int64_t timeout, void* value, size_t* bytes,
                 char* message) {
  const absl::StatusOr<std::string> found = static_cast<LaneStore*>(user)->Get(key, timeout);
  if (!found.ok()) return Report(found.status(), message);
  if (found->size() > *bytes) {
    return Report(absl::InternalError(absl::StrCat("the value of ", key, " is too long")), message);
  }
  memcpy(value, found->data(), found->size());
  *bytes = found->size();
  return 0;
}

}  // namespace

absl::StatusOr<rueda_module_communicator*> CreateInModule(const ModuleArgs& args,
                                                          LaneStore* store) {
  rueda_module_group group = {};
  group.size = sizeof(group);
  group.members = args.members;
  group.self = args.self;
  group.prefix = args.prefix.c_str();
  group.interface = args.network_interface.c_str();
  group.timeout = args.timeout;
  group.silence_limit = args.silence_limit;
  group.store = {store, &StoreSet, &StoreGet};
  rueda_module_communicator* library = nullptr;
  char message[RUEDA_MODULE_MESSAGE_BYTES] = "";
  const int32_t code = args.module->create(&group, &library, message);
  RUEDA_RETURN_IF_ERROR(ModuleStatus(*args.module, code, message));
  return library;
}

std::optional<Silence> SilentMember(const rueda_module& module,
                                    rueda_module_communicator* library) {
  if (library == nullptr) return std::nullopt;
  int64_t time = 0;
  int32_t is_of_large = 0;
  const int32_t member = module.silent_peer(library, &time, &is_of_large);
  if (member < 0) return std::nullopt;
  return Silence{member, time, is_of_large != 0};
}

absl::Status ModuleStatus(const rueda_module& module, int32_t code, const char* message) {
  if (code == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::StrCat(module.name, ": ", message));
}

}  // namespace rueda
