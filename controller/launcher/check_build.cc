#include "controller/launcher/check_build.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "controller/launcher/job.h"
#include "controller/launcher/options.h"

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

}  // namespace

std::string CheckBuildText(const std::string& program) {
  const std::filesystem::path folder = LibraryFolder(program);
  const auto has = [&](const char* name) {
    std::error_code error;
    return std::filesystem::exists(folder / name, error);
  };
  return absl::StrCat(VersionText(), "\nFor programs in (libraries in ", folder.string(), "):\n",
                      Line(has("librueda.so"), "C and C++: librueda.so"),
                      Line(has("librueda_torch.so"), "LibTorch: librueda_torch.so"),
                      "\nTensors move by:\n",
                      Line(has("librueda.so"), "shared memory, inside a host"),
                      Line(has("librueda_gloo.so"), "Gloo, between hosts: librueda_gloo.so"),
                      Line(has("librueda_nccl.so"), "NCCL, between GPUs: librueda_nccl.so"),
                      "\nOther hosts are reached by:\n", Line(IsInPath("ssh"), "ssh"),
                      Line(IsInPath("srun"), "srun, in a job of SLURM"),
                      Line(IsInPath("blaunch"), "blaunch, in a job of LSF"));
}

}  // namespace rueda
