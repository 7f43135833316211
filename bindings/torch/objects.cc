// Strings of bytes from rank to rank.
#include "bindings/torch/operation.h"

namespace rueda::libtorch {
namespace {

// A result of the C API, until it is freed.
struct Bytes {
  Bytes() = default;
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { rueda_result_free(&result); }
  std::string Slice(int64_t begin, int64_t size) const {
    if (size == 0) return {};
    return {static_cast<const char*>(result.tensor.data) + begin, static_cast<size_t>(size)};
  }
  rueda_result result = RUEDA_RESULT_INIT;
};

}  // namespace

std::string broadcast_object(std::string_view bytes, int root_rank, const std::string& name,
                             ProcessSet process_set) {
  rueda_context* const context = CurrentContext();
  Bytes got;
  Check(context, rueda_broadcast_bytes(context, process_set.id, NameOf(name), root_rank,
                                       bytes.data(), bytes.size(), &got.result));
  return got.Slice(0, got.result.tensor.shape[0]);
}

std::vector<std::string> allgather_object(std::string_view bytes, const std::string& name,
                                          ProcessSet process_set) {
  rueda_context* const context = CurrentContext();
  const int32_t ranks = rueda_process_set_size(context, process_set.id);
  std::vector<int64_t> sizes(ranks > 0 ? static_cast<size_t>(ranks) : 1);
  Bytes got;
  Check(context, rueda_allgather_bytes(context, process_set.id, NameOf(name), bytes.data(),
                                       bytes.size(), &got.result, sizes.data()));
  std::vector<std::string> all;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    all.push_back(got.Slice(begin, size));
    begin += size;
  }
  return all;
}

}  // namespace rueda::libtorch
