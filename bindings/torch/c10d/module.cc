// The Python module rueda_c10d: what rueda/distributed/_backend.py makes of process groups.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>

#include "bindings/torch/c10d/backend.h"
#include "bindings/torch/c10d/session.h"
#include "bindings/torch/c10d/threads.h"

namespace rueda::libtorch {
namespace {

namespace py = pybind11;

// Ctrl-C may end the wait for them.
struct Leaving {
  std::vector<std::thread> threads;
  ~Leaving() {
    for (std::thread& thread : threads) {
      if (thread.joinable()) thread.detach();
    }
  }
};

// How long what callbacks of futures do may go on when the program ends. They are Python's, which
// must not end meanwhile.
constexpr std::chrono::seconds kLastTasks{10};

// Leaves all groups that are open, or ends them for `reason`; what is returned waits for the
// others.
py::cpp_function BeginToLeave(const std::optional<std::string>& reason) {
  const auto leaving = std::make_shared<Leaving>();
  const py::gil_scoped_release no_gil;
  for (const std::shared_ptr<Session>& session : Session::AllOpen()) {
    if (reason.has_value()) {
      session->Abort(*reason);
    } else {
      leaving->threads.emplace_back([session] { session->Shutdown(); });
    }
  }
  const py::gil_scoped_acquire gil;
  return py::cpp_function([leaving] {
    const py::gil_scoped_release no_gil_either;
    for (std::thread& thread : leaving->threads) thread.join();
    leaving->threads.clear();
    (void)AwaitTasks(kLastTasks);
  });
}

}  // namespace
}  // namespace rueda::libtorch

PYBIND11_MODULE(rueda_c10d, module) {
  using rueda::libtorch::GroupBackend;
  namespace py = pybind11;
  py::module_::import("torch.distributed");
  module.attr("rueda_version") = RUEDA_VERSION;
  py::class_<GroupBackend, c10::intrusive_ptr<GroupBackend>, c10d::Backend>(module, "GroupBackend")
      .def(py::init([](uintptr_t context, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                       int size, std::chrono::milliseconds timeout, const std::string& name,
                       std::vector<int64_t> global_ranks) {
        return c10::make_intrusive<GroupBackend>(reinterpret_cast<rueda_context*>(context), store,
                                                 rank, size, timeout, name,
                                                 std::move(global_ranks));
      }))
      .def_property_readonly("options", &GroupBackend::getBackendOptions)
      .def("sequence_number", &GroupBackend::getSequenceNumberForGroup);
  module.def("begin_to_leave", &rueda::libtorch::BeginToLeave);
}
