#include "ops/nccl/cuda_library.h"

#include "absl/strings/str_cat.h"
#include "ops/backend/module.h"

namespace rueda {
namespace {

// It links no NCCL, but opens the one that the process has.
constexpr ModuleName kModule = {"nccl", RUEDA_CUDA_ABI};

}  // namespace

bool BuiltWithCuda() {
#ifdef RUEDA_BUILT_WITH_CUDA
  return true;
#else
  return false;
#endif
}

absl::StatusOr<const rueda_cuda*> LoadCuda(const std::string& directory) {
  absl::StatusOr<std::string> where = directory;
  if (directory.empty()) where = ModuleDirectory();
  RUEDA_RETURN_IF_ERROR(where.status());
  absl::StatusOr<const rueda_cuda*> cuda = LoadModuleAs<rueda_cuda>(kModule, *where);
  if (!absl::IsNotFound(cuda.status())) return cuda;
  return absl::FailedPreconditionError(
      absl::StrCat(BuiltWithCuda() ? "a part of this library is missing, which it has for CUDA: "
                                   : "this library was built without CUDA: ",
                   cuda.status().message()));
}

absl::Status CudaStatus(int32_t code, const char* message) {
  if (code == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code), message);
}

}  // namespace rueda
