// FAKE: see control.h.
#include "test/support/fake_cuda/control.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/tensor/dtype.h"
#include "core/tensor/signature.h"

namespace rueda::fake_cuda {
namespace {

void* Find(const char* symbol) {
  Dl_info info;
  char file[PATH_MAX];
  RUEDA_CHECK(dladdr(reinterpret_cast<const void*>(&Cuda), &info) != 0);
  RUEDA_CHECK(realpath(info.dli_fname, file) != nullptr) << info.dli_fname;
  std::string path(file);
  path = path.substr(0, path.rfind('/')) + "/rueda/librueda_nccl.so";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  RUEDA_CHECK(library != nullptr) << dlerror();
  void* const entry = dlsym(library, symbol);
  RUEDA_CHECK(entry != nullptr) << path << " is not the fake";
  return entry;
}

bool IsIn(const fake_cuda_call& call, const LogFilter& filter) {
  return (filter.device == -1 || filter.device == call.device) &&
         (filter.stream == -1 || filter.stream == call.stream) &&
         (filter.communicator == -1 || filter.communicator == call.communicator);
}

}  // namespace

const rueda_cuda& Cuda() {
  static const rueda_cuda* const table =
      reinterpret_cast<const rueda_cuda* (*)()>(Find("rueda_module_table"))();
  return *table;
}

const fake_cuda_control& Fake() {
  static const fake_cuda_control* const table =
      reinterpret_cast<fake_cuda_controls_entry>(Find(FAKE_CUDA_CONTROLS_ENTRY))();
  RUEDA_CHECK(table->size == sizeof(fake_cuda_control));
  return *table;
}

std::vector<fake_cuda_call> LogOf(const LogFilter& filter) {
  std::vector<fake_cuda_call> calls;
  for (size_t i = 0, size = Fake().log_size(); i < size; ++i) {
    fake_cuda_call call;
    Fake().log_entry(i, &call);
    if (IsIn(call, filter)) calls.push_back(call);
  }
  return calls;
}

std::string ToString(const fake_cuda_call& call) {
  std::string words = call.function;
  if (words == "wait") absl::StrAppend(&words, " for");
  if (call.event >= 0) absl::StrAppend(&words, " event ", call.event);
  if (call.count > 0) absl::StrAppend(&words, " ", call.count);
  if (call.dtype >= 0) absl::StrAppend(&words, " ", DTypeName(static_cast<DType>(call.dtype)));
  if (call.communicator >= 0 && call.reduce_op >= 0) {
    absl::StrAppend(&words, " ", ReduceOpName(static_cast<ReduceOp>(call.reduce_op)));
  }
  if (call.peer >= 0) absl::StrAppend(&words, " with ", call.peer);
  if (call.stream >= 0) absl::StrAppend(&words, " on stream ", call.stream);
  if (call.status != 0) absl::StrAppend(&words, ": status ", call.status);
  return words;
}

std::vector<std::string> WordsOf(const LogFilter& filter) {
  std::vector<std::string> words;
  for (const fake_cuda_call& call : LogOf(filter)) words.push_back(ToString(call));
  return words;
}

}  // namespace rueda::fake_cuda
