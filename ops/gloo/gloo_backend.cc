#include "ops/gloo/gloo_backend.h"

#include "absl/strings/str_cat.h"
#include "core/base/interfaces.h"
#include "ops/backend/make.h"
#include "ops/backend/module.h"
#include "ops/gloo/blocking_communicator.h"

namespace rueda {
namespace {

constexpr ModuleName kModule = {"gloo"};

}  // namespace

absl::StatusOr<const rueda_module*> GlooBackend::Module() const {
  if (absl::IsUnknown(module_.status())) {
    absl::StatusOr<std::string> directory = options_.module_directory;
    if (options_.module_directory.empty()) directory = ModuleDirectory();
    module_ = directory.ok() ? LoadModule(kModule, *directory) : directory.status();
  }
  return module_;
}

absl::Status GlooBackend::Viable(const Members& members) const {
  if (members.ranks.size() < 2) return absl::FailedPreconditionError("there is one rank");
  return Module().status();
}

absl::StatusOr<ModuleArgs> GlooBackend::ArgsFor(const Members& members,
                                                absl::string_view word) const {
  ModuleArgs args;
  RUEDA_ASSIGN_OR_RETURN(args.module, Module());
  // Gloo's own words for a missing interface come late and name no other.
  RUEDA_ASSIGN_OR_RETURN(const Interface interface, FindInterface(options_.network_interface));
  args.members = static_cast<int>(members.ranks.size());
  args.self = members.self;
  args.prefix = absl::StrCat(word, "/", JobKey(options_.job, options_.membership), "/", members.set,
                             ".", members.generation, members.low_priority ? "/low" : "");
  args.network_interface = interface.name;
  args.timeout = options_.timeout;
  args.silence_limit = options_.silence_limit;
  args.store = options_.store;
  args.wake = options_.wake;
  return args;
}

absl::StatusOr<std::unique_ptr<Communicator>> GlooBackend::Connect(const Members& members) {
  RUEDA_ASSIGN_OR_RETURN(ModuleArgs args, ArgsFor(members, "gloo"));
  return BlockingCommunicator::Create(std::move(args));
}

std::unique_ptr<Backend> MakeGloo(const BackendArgs& args) {
  GlooOptions options;
  options.job = args.job;
  options.membership = args.membership;
  options.network_interface = args.network_interface;
  options.timeout = static_cast<Nanos>(args.config->gloo_timeout_s * kSecond);
  options.silence_limit = args.silence_limit;
  options.store = args.store;
  options.wake = args.wake;
  return std::make_unique<GlooBackend>(std::move(options));
}

}  // namespace rueda
