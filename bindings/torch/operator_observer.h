// Tells what memory torch's operators are about to use.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

#include <functional>
#include <memory>

namespace rueda::libtorch {

// Calls `on_operator` with the storages of an operator's tensors, each time that one is about to
// run, on its thread: in forward and backward passes and everywhere else, on any thread. Operators
// inside others are told of too, those that `on_operator` calls are not. It must not throw.
// `writes`: the operator works in place, by its name (add_).
//
// It costs each operator of the process about a microsecond.
class OperatorObserver {
 public:
  using OnOperator =
      std::function<void(c10::ArrayRef<const c10::StorageImpl*> storages, bool writes)>;

  explicit OperatorObserver(OnOperator on_operator);
  // Waits for calls on other threads to end.
  ~OperatorObserver();
  OperatorObserver(const OperatorObserver&) = delete;
  OperatorObserver& operator=(const OperatorObserver&) = delete;

 private:
  struct Observer;
  static std::unique_ptr<at::ObserverContext> OnFunction(const at::RecordFunction& function);
  struct Observers;
  static Observers& TheObservers();

  const std::shared_ptr<Observer> observer_;
};

}  // namespace rueda::libtorch
