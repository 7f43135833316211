// PURE
#include "controller/rendezvous/detect/tf_config.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/limits.h"
#include "nlohmann/json.hpp"

namespace rueda {
namespace {

using Json = nlohmann::json;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "TF_CONFIG ", what,
      "; expected {\"cluster\": {\"worker\": [\"host:port\", ...]}, \"task\": {\"type\": "
      "\"worker\", \"index\": 0}}"));
}

// The member `key` of an object; null when it is not there.
const Json* Find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

std::string HostOf(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

}  // namespace

absl::StatusOr<std::optional<TfTask>> ParseTfConfig(absl::string_view text) {
  if (text.empty()) return std::nullopt;
  const Json config = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded()) return Malformed("is no JSON");
  if (!config.is_object()) return Malformed("is no object");
  const Json* const cluster = Find(config, "cluster");
  if (cluster == nullptr) return std::nullopt;
  const Json* const task = Find(config, "task");
  const Json* const type = task == nullptr ? nullptr : Find(*task, "type");
  const Json* const index = task == nullptr ? nullptr : Find(*task, "index");

  std::vector<std::string> addresses;
  size_t before = 0, like_this = 0;  // tasks of types before this one's, and of its own
  for (const char* job : {"chief", "master", "worker"}) {  // "master": the chief of TensorFlow 1
    const Json* const tasks = Find(*cluster, job);
    if (tasks == nullptr) continue;
    if (!tasks->is_array()) return Malformed(absl::StrCat("has no list of addresses for ", job));
    if (type != nullptr && *type == job) {
      before = addresses.size();
      like_this = tasks->size();
    }
    for (const Json& address : *tasks) {
      if (!address.is_string()) {
        return Malformed(absl::StrCat("has no list of addresses for ", job));
      }
      addresses.push_back(address.get<std::string>());
    }
  }
  if (addresses.size() > kRanksMax)
    return Malformed(absl::StrCat("has over ", kRanksMax, " tasks"));
  const std::string name =
      type != nullptr && type->is_string() ? type->get<std::string>() : std::string();
  if (name == "ps" || name == "evaluator") {
    return absl::FailedPreconditionError(
        absl::StrCat("TF_CONFIG says that this process is of type ", name,
                     ", which takes no part in the training: don't call init in it, or unset "
                     "TF_CONFIG to run alone"));
  }
  if (addresses.size() <= 1) return std::nullopt;
  if (name.empty()) return Malformed("names no task");
  if (like_this == 0) {
    return Malformed(absl::StrCat("says that this is a ", name, ", which its cluster has not"));
  }
  if (index == nullptr || !index->is_number_unsigned() || index->get<uint64_t>() >= like_this) {
    return Malformed(absl::StrCat("has a task whose index is no whole number from 0 to ",
                                  like_this - 1, ", of which there is a ", name));
  }
  const size_t rank = before + index->get<uint64_t>();
  const std::string host = HostOf(addresses[rank]);
  TfTask out;
  out.rank = static_cast<int>(rank);
  out.size = static_cast<int>(addresses.size());
  out.local_size = static_cast<int>(
      std::count_if(addresses.begin(), addresses.end(),
                    [&](const std::string& address) { return HostOf(address) == host; }));
  out.cluster = absl::StrJoin(addresses, ",");
  return out;
}

}  // namespace rueda
