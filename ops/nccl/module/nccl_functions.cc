#include "ops/nccl/module/nccl_functions.h"

#include <dlfcn.h>

namespace rueda::cuda {
namespace {

constexpr char kName[] = "libnccl.so.2";
constexpr char kPlace[] = RUEDA_NCCL_LIBRARY;  // where the build found it; may be empty
constexpr int kOldest = NCCL_VERSION(2, 18, 1);

std::string NcclVersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// By its name first: so a library that is already in the process is found.
void* OpenLibrary(std::string* why) {
  void* library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  *why = dlerror();
  if (kPlace[0] == 0) return nullptr;
  library = dlopen(kPlace, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) *why += std::string("; ") + dlerror();
  return library;
}

template <class Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

std::string PathOf(const void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return kName;
  return info.dli_fname;
}

Nccl OpenNccl() {
  Nccl nccl;
  std::string why;
  void* const library = OpenLibrary(&why);
  if (library == nullptr) {
    nccl.missing = "NCCL can't be loaded: " + why;
    return nccl;
  }
  if (!Find(library, "ncclGetVersion", &nccl.GetVersion) ||
      nccl.GetVersion(&nccl.version) != ncclSuccess) {
    nccl.missing = std::string(kName) + " does not say which NCCL it is";
    return nccl;
  }
  if (nccl.version < kOldest) {
    nccl.missing = "NCCL " + NcclVersionText(nccl.version) +
                   " is too old, 2.18 or newer is needed (" +
                   PathOf(reinterpret_cast<const void*>(nccl.GetVersion)) + ")";
    return nccl;
  }
#define RUEDA_NCCL_FIND(name)                                                      \
  if (!Find(library, "nccl" #name, &nccl.name)) {                                  \
    nccl.missing = "NCCL " + NcclVersionText(nccl.version) + " has no nccl" #name; \
  }
  RUEDA_NCCL_REQUIRED(RUEDA_NCCL_FIND)
#undef RUEDA_NCCL_FIND
#define RUEDA_NCCL_FIND(name) Find(library, "nccl" #name, &nccl.name);
  RUEDA_NCCL_OPTIONAL(RUEDA_NCCL_FIND)
#undef RUEDA_NCCL_FIND
  return nccl;
}

Answer AnswerOf(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:
    case ncclRemoteError:
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 32, 0)
    case ncclTimeout:
#endif
      return kUnavailable;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return kInvalidArgument;
    default:
      return kInternal;
  }
}

}  // namespace

const Nccl& TheNccl() {
  static const Nccl& nccl = *new Nccl(OpenNccl());
  return nccl;
}

int32_t SayNccl(char* message, ncclResult_t result, const char* what) {
  const Nccl& nccl = TheNccl();
  const char* const more = nccl.GetLastError(nullptr);
  const bool has_more = more != nullptr && more[0] != 0;
  return Say(message, AnswerOf(result), "%s: %s%s%s%s", what, nccl.GetErrorString(result),
             has_more ? " (" : "", has_more ? more : "", has_more ? ")" : "");
}

}  // namespace rueda::cuda
