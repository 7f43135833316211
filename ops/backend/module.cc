#include "ops/backend/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"

namespace rueda {
namespace {

// AddressSanitizer and ThreadSanitizer refuse RTLD_DEEPBIND, which would hide their own malloc.
// Their builds have no torch in the process.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

absl::Status Check(const ModuleHeader* module, const ModuleName& wanted, size_t bytes) {
  if (module == nullptr) return absl::FailedPreconditionError("it has no table of functions");
  if (module->abi != wanted.abi) {
    return absl::FailedPreconditionError(absl::StrCat("it speaks version ", module->abi,
                                                      " of the module interface, and this library ",
                                                      wanted.abi));
  }
  if (module->size != bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("its table has ", module->size, " bytes, not ", bytes));
  }
  if (module->name == nullptr || absl::string_view(module->name) != wanted.name) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it is the module ", module->name == nullptr ? "without a name" : module->name));
  }
  for (size_t at = sizeof(ModuleHeader); at < bytes; at += sizeof(void*)) {
    void* function;
    memcpy(&function, reinterpret_cast<const char*>(module) + at, sizeof function);
    if (function == nullptr) return absl::FailedPreconditionError("its table has holes");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ModuleDirectory() {
  Dl_info info;
  char path[PATH_MAX];
  if (dladdr(reinterpret_cast<const void*>(&ModuleDirectory), &info) == 0 ||
      info.dli_fname == nullptr || realpath(info.dli_fname, path) == nullptr) {
    return absl::NotFoundError("the file that librueda was loaded from can't be found");
  }
  const std::string file(path);
  return absl::StrCat(file.substr(0, file.rfind('/')), "/rueda");
}

absl::StatusOr<const ModuleHeader*> LoadModuleTable(const ModuleName& wanted,
                                                    const std::string& directory, size_t bytes) {
  const std::string path = absl::StrCat(directory, "/librueda_", wanted.name, ".so");
  if (access(path.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("there is no ", path));
  }
  // The loader's own lock orders what constructors write before what others read; this one says so
  // to the thread sanitizer, which does not look into the loader.
  static Mutex mutex;
  MutexLock lock(mutex);
  void* const library = dlopen(path.c_str(), kOpenFlags);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("can't load a module: ", dlerror()));
  }
  // From here on nothing is closed again: what a library has started (threads, handlers at exit)
  // may not outlive its code.
  const auto entry =
      reinterpret_cast<const ModuleHeader* (*)()>(dlsym(library, RUEDA_MODULE_ENTRY));
  if (entry == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no module of Rueda's: it has no ", RUEDA_MODULE_ENTRY));
  }
  const ModuleHeader* const module = entry();
  if (absl::Status status = Check(module, wanted, bytes); !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " can't be used: ", status.message()));
  }
  return module;
}

}  // namespace rueda
