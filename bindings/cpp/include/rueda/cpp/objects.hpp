// Rueda's C++ API: strings of bytes. Included by rueda/rueda.hpp, which says how to use it.
#ifndef RUEDA_CPP_OBJECTS_HPP_
#define RUEDA_CPP_OBJECTS_HPP_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rueda/cpp/errors.hpp"
#include "rueda/cpp/options.hpp"
#include "rueda/rueda.h"

namespace rueda {

/// \addtogroup cpp_objects
/// @{

namespace detail {

struct Bytes {
  rueda_result result = RUEDA_RESULT_INIT;

  Bytes() = default;
  Bytes(const Bytes&) = delete;
  ~Bytes() { rueda_result_free(&result); }
  const char* data() const { return static_cast<const char*>(result.tensor.data); }
};

}  // namespace detail

/// Returns the `object` of `root_rank` on every rank: any string of bytes, such as something
/// serialized. Elsewhere it is not looked at.
inline std::string broadcast_object(const std::string& object, int root_rank,
                                    const Options& options = {}) {
  detail::Bytes bytes;
  detail::Check(rueda_broadcast_bytes(detail::Current(), options.process_set.id,
                                      detail::NameOf(options.name), root_rank, object.data(),
                                      object.size(), &bytes.result));
  return std::string(bytes.data(), static_cast<size_t>(bytes.result.tensor.shape[0]));
}

/// All ranks' objects, in rank order; an empty string of a rank that has joined.
inline std::vector<std::string> allgather_object(const std::string& object,
                                                 const Options& options = {}) {
  detail::Bytes bytes;
  std::vector<int64_t> sizes(static_cast<size_t>(options.process_set.size()));
  detail::Check(rueda_allgather_bytes(detail::Current(), options.process_set.id,
                                      detail::NameOf(options.name), object.data(), object.size(),
                                      &bytes.result, sizes.data()));
  std::vector<std::string> objects;
  const char* next = bytes.data();
  for (const int64_t size : sizes) {
    objects.emplace_back(next, static_cast<size_t>(size));
    next += size;
  }
  return objects;
}

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_OBJECTS_HPP_
