// Opens the modules: shared libraries in rueda/, beside librueda.so, that hold what it must neither
// link nor need in order to load.
//
// Why: libtorch_cpu.so exports some 470 symbols of its own, younger Gloo. Whatever binds to gloo::
// in a process with torch may get torch's, and crashes. RTLD_LOCAL keeps a module's symbols to
// itself; RTLD_DEEPBIND makes it look into its own libraries before the program's. For malloc it
// has to look there all the same (program_malloc.cc).
#pragma once

#include <string>

#include "core/base/status.h"
#include "ops/backend/module_abi.h"

namespace rueda {

// Where modules lie: in the folder `rueda` beside the file that holds this code, librueda.so or a
// program that links it statically.
absl::StatusOr<std::string> ModuleDirectory();

struct ModuleName {
  const char* name;  // "gloo": librueda_gloo.so
  uint32_t abi = RUEDA_MODULE_ABI;
};

// What every module's table begins with. Nothing but pointers to functions follows.
struct ModuleHeader {
  uint32_t size;  // of the table
  uint32_t abi;
  const char* name;
};

// Opens the module in `directory` and checks that it is what it should be, with a table of `bytes`.
// It stays in the process for good; loading it again returns the same table. Any thread.
//
// NOT_FOUND: there is no such file. FAILED_PRECONDITION: it, or a library that it needs, can't be
// loaded, or it is no module, another one, or of another version.
absl::StatusOr<const ModuleHeader*> LoadModuleTable(const ModuleName& wanted,
                                                    const std::string& directory, size_t bytes);

template <typename Table>
absl::StatusOr<const Table*> LoadModuleAs(const ModuleName& wanted, const std::string& directory) {
  RUEDA_ASSIGN_OR_RETURN(const ModuleHeader* table,
                         LoadModuleTable(wanted, directory, sizeof(Table)));
  return reinterpret_cast<const Table*>(table);
}

inline absl::StatusOr<const rueda_module*> LoadModule(const ModuleName& wanted,
                                                      const std::string& directory) {
  return LoadModuleAs<rueda_module>(wanted, directory);
}

}  // namespace rueda
