// From the library's errors to Python's, and what else C++ has to do with the interpreter.
#pragma once

#include <exception>

namespace rueda::libtorch {

// `error`, or if it is a rueda::Error, the exception of rueda.errors that tells as much. Takes the
// interpreter's lock.
std::exception_ptr PythonsOf(const std::exception_ptr& error);

// Calls `f`; the library's errors become Python's.
template <typename F>
auto WithPythonsErrors(F f) -> decltype(f()) {
  try {
    return f();
  } catch (...) {
    std::rethrow_exception(PythonsOf(std::current_exception()));
  }
}

// While there is one, this thread does not hold the interpreter's lock. Whoever waits for another
// thread needs one: that thread may be about to let go of a tensor that Python knows.
class WithoutPython {
 public:
  WithoutPython();
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;
  ~WithoutPython();

 private:
  void* const state_;  // null: it did not hold it
};

// Throws what a handler of a signal that has come raises, on the main thread of Python.
void CheckSignals();

}  // namespace rueda::libtorch
