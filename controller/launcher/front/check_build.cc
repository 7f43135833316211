#include "controller/launcher/front/check_build.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "controller/launcher/decide/options.h"
#include "controller/launcher/host/job.h"
#include "ops/nccl/cuda_library.h"

namespace rueda {
namespace {

std::string Line(bool there, absl::string_view what) {
  return absl::StrCat("  [", there ? "X" : " ", "] ", what, "\n");
}

bool IsInPath(const std::string& program) {
  return FindProgram(program, ProcessEnvironment()).ok();
}

// Where librueda.so is: beside the programs' folder, in a build as in an installation.
std::filesystem::path LibraryFolder(const std::filesystem::path& program) {
  const std::filesystem::path root = program.parent_path().parent_path();
  std::error_code error;
  for (const char* const folder : {"lib", RUEDA_LIBRARY_FOLDER}) {
    if (std::filesystem::exists(root / folder / "librueda.so", error)) return root / folder;
  }
  return root / RUEDA_LIBRARY_FOLDER;
}

// 13000 is CUDA 13.0, 23203 is NCCL 2.32.3.
std::string CudaVersion(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}
std::string NcclVersion(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// What the CUDA module says of this machine.
std::string DevicesText(const std::string& folder) {
  const absl::StatusOr<const rueda_cuda*> cuda = LoadCuda(folder);
  if (!cuda.ok()) return absl::StrCat("      can't be used here: ", cuda.status().message(), "\n");
  rueda_cuda_info info = {};
  const absl::Status status = CallCuda((*cuda)->probe, &info);
  std::string text = absl::StrCat(
      "      built with NCCL ", NcclVersion(info.nccl_header_version), " and CUDA ",
      CudaVersion(info.runtime_version), "; here there is ",
      info.nccl_version == 0 ? "no NCCL" : absl::StrCat("NCCL ", NcclVersion(info.nccl_version)),
      " and ",
      info.driver_version == 0
          ? "no driver"
          : absl::StrCat("a driver that supports CUDA ", CudaVersion(info.driver_version)),
      "\n");
  if (!status.ok()) {
    return absl::StrCat(text, "      can't be used here: ", status.message(), "\n");
  }
  for (int device = 0; device < info.devices; ++device) {
    rueda_cuda_device what = {};
    if (!CallCuda((*cuda)->describe, device, &what).ok()) continue;
    absl::StrAppend(&text, "      device ", device, ": ", what.name, ", compute capability ",
                    what.major, ".", what.minor, ", ", what.bytes >> 30, " GiB\n");
  }
  return text;
}

}  // namespace

std::string CheckBuildText(const std::string& program) {
  const std::filesystem::path folder = LibraryFolder(program);
  const auto has = [&](const char* name) {
    std::error_code error;
    return std::filesystem::exists(folder / name, error);
  };
  const bool has_nccl = has("rueda/librueda_nccl.so");
  return absl::StrCat(VersionText(), "\nFor programs in (libraries in ", folder.string(), "):\n",
                      Line(has("librueda.so"), "C and C++: librueda.so"),
                      Line(has("librueda_torch.so"), "LibTorch: librueda_torch.so"),
                      "\nTensors move by:\n",
                      Line(has("librueda.so"), "shared memory, inside a host"),
                      Line(has("rueda/librueda_gloo.so"), "Gloo, between hosts: librueda_gloo.so"),
                      Line(has_nccl, "NCCL, between GPUs: librueda_nccl.so"),
                      has_nccl || BuiltWithCuda() ? DevicesText(folder / "rueda") : "",
                      "\nOther hosts are reached by:\n", Line(IsInPath("ssh"), "ssh"),
                      Line(IsInPath("srun"), "srun, in a job of SLURM"),
                      Line(IsInPath("blaunch"), "blaunch, in a job of LSF"));
}

}  // namespace rueda
