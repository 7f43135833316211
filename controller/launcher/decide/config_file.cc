// PURE
#include "controller/launcher/decide/config_file.h"

#include <yaml-cpp/yaml.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "controller/launcher/decide/options.h"

namespace rueda {
namespace {

// What the options of a section begin with.
const std::map<std::string, std::string>& Sections() {
  static const auto* const sections = new std::map<std::string, std::string>{
      {"params", ""},      {"timeline", "timeline-"}, {"stall-check", "stall-check-"},
      {"logging", "log-"}, {"library-options", ""},   {"autotune", "autotune-"},
  };
  return *sections;
}

absl::Status Refuse(const YAML::Mark& mark, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", mark.line + 1, ": ", why));
}

// Horovod's switches for whole sections.
std::string OptionOf(const std::string& name, bool on) {
  if (name == "autotune-enabled") return on ? "autotune" : "";
  if (name == "stall-check-enabled") return on ? "" : "no-stall-check";
  return on ? name : "";
}

absl::Status AddValue(const std::string& name, const YAML::Node& value,
                      std::vector<std::string>* words) {
  bool on = false;
  if (value.IsNull()) return absl::OkStatus();  // a key that was left empty
  if (!value.IsScalar()) return Refuse(value.Mark(), absl::StrCat(name, ": expected a value"));
  // Quoted words are words, even when they look like a switch.
  if (value.Tag() != "!" && YAML::convert<bool>::decode(value, on)) {
    const std::string option = OptionOf(name, on);
    if (!option.empty()) words->push_back(absl::StrCat("--", option));
  } else {
    words->push_back(absl::StrCat("--", name, "=", value.Scalar()));
  }
  return absl::OkStatus();
}

absl::Status Add(const std::string& name, const YAML::Node& value,
                 std::vector<std::string>* words) {
  if (!value.IsSequence()) return AddValue(name, value, words);
  if (!MayBeRepeated(name)) {
    return Refuse(value.Mark(), absl::StrCat(name, ": expected one value, not a list"));
  }
  for (const YAML::Node& each : value) RUEDA_RETURN_IF_ERROR(AddValue(name, each, words));
  return absl::OkStatus();
}

absl::Status AddAll(const YAML::Node& map, const std::string& prefix, bool top,
                    std::vector<std::string>* words) {
  for (const auto& entry : map) {
    const YAML::Node& key = entry.first;
    const YAML::Node& value = entry.second;
    if (!key.IsScalar()) return Refuse(key.Mark(), "expected the name of an option");
    const std::string name = absl::StrReplaceAll(key.Scalar(), {{"_", "-"}});
    const auto section = Sections().find(name);
    if (top && section != Sections().end() && value.IsMap()) {
      RUEDA_RETURN_IF_ERROR(AddAll(value, section->second, false, words));
    } else {
      RUEDA_RETURN_IF_ERROR(Add(prefix + name, value, words));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadConfigFile(const std::string& text) {
  std::vector<std::string> words;
  try {
    const YAML::Node file = YAML::Load(text);
    if (file.IsNull()) return words;
    if (!file.IsMap()) return Refuse(file.Mark(), "expected lines of the form OPTION: VALUE");
    RUEDA_RETURN_IF_ERROR(AddAll(file, "", true, &words));
  } catch (const YAML::Exception& error) {
    return Refuse(error.mark, error.msg);
  }
  return words;
}

}  // namespace rueda
