#include "bindings/torch/c10d/errors.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/torch/c10d/session.h"

namespace rueda::libtorch {
namespace {

namespace py = pybind11;

// Of the exception that Python has now.
std::exception_ptr Raised() {
  python_error error;
  error.persist();
  return std::make_exception_ptr(std::move(error));
}

// `kind`: its class; "": by its status.
std::exception_ptr Make(const Error& error, const char* kind) {
  const py::gil_scoped_acquire gil;
  try {
    const py::object made =
        py::module_::import("rueda.distributed._errors")
            .attr("exception")(static_cast<int>(error.status()), error.what(), kind,
                               error.recoverable(), error.rank(), error.host(), error.pid(),
                               error.cause(), error.operation(), error.tensor(),
                               error.membership());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  } catch (py::error_already_set& failure) {
    failure.restore();
  }
  return Raised();
}

}  // namespace

std::exception_ptr PythonsOf(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const MismatchError& mismatch) {
    return Make(mismatch, "MismatchError");
  } catch (const GroupEndedError& ended) {
    return Make(ended, "NotInitializedError");
  } catch (const Error& other) {
    return Make(other, "");
  } catch (...) {
    return error;
  }
}

WithoutPython::WithoutPython()
    : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}

WithoutPython::~WithoutPython() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

void CheckSignals() {
  if (PyGILState_GetThisThreadState() == nullptr) return;  // a thread of torch's own
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) std::rethrow_exception(Raised());
}

}  // namespace rueda::libtorch
