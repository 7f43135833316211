#include "bindings/torch/operator_observer.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace rueda::libtorch {
namespace {

using Storages = c10::SmallVector<const c10::StorageImpl*, 8>;

// torch's callbacks are plain functions, and global: a strategy may be used on another thread than
// that which has made it.
struct Observers {
  std::shared_mutex mutex;
  // Guarded by mutex.
  std::vector<const OperatorObserver::OnOperator*> calls;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
};

Observers& TheObservers() {
  static Observers* const observers = new Observers();  // operators run while a program ends
  return *observers;
}

void AddStorage(const at::Tensor& tensor, Storages* storages) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  storages->push_back(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

std::unique_ptr<at::ObserverContext> OnFunction(const at::RecordFunction& function) {
  Storages storages;
  for (const c10::IValue& input : function.inputs()) {
    if (input.isTensor()) {
      AddStorage(input.toTensor(), &storages);
    } else if (input.isList()) {
      for (const c10::IValue& element : input.toListRef()) {
        if (!element.isTensor()) break;
        AddStorage(element.toTensor(), &storages);
      }
    }
  }
  if (storages.empty()) return nullptr;
  const at::DisableRecordFunctionGuard no_recursion;
  const std::shared_lock<std::shared_mutex> lock(TheObservers().mutex);
  for (const OperatorObserver::OnOperator* call : TheObservers().calls) (*call)(storages);
  return nullptr;
}

}  // namespace

// torch locks its list of callbacks, and each thread notices a change of it.
OperatorObserver::OperatorObserver(OnOperator on_operator) : on_operator_(std::move(on_operator)) {
  Observers& observers = TheObservers();
  const std::unique_lock<std::shared_mutex> lock(observers.mutex);
  observers.calls.push_back(&on_operator_);
  if (observers.calls.size() > 1) return;
  observers.handle = at::addGlobalCallback(at::RecordFunctionCallback(&OnFunction)
                                               .needsInputs(true)
                                               .scopes({at::RecordScope::FUNCTION}));
}

OperatorObserver::~OperatorObserver() {
  Observers& observers = TheObservers();
  const std::unique_lock<std::shared_mutex> lock(observers.mutex);
  std::erase(observers.calls, &on_operator_);
  if (observers.calls.empty()) at::removeCallback(observers.handle);
}

}  // namespace rueda::libtorch
