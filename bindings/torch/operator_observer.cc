#include "bindings/torch/operator_observer.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <memory>
#include <shared_mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace rueda::libtorch {
namespace {

using Storages = c10::SmallVector<const c10::StorageImpl*, 8>;

void AddStorage(const at::Tensor& tensor, Storages* storages) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  storages->push_back(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

}  // namespace

struct OperatorObserver::Observer {
  const OnOperator on_operator;
  std::shared_mutex mutex;  // shared by calls that are running
  bool ended = false;       // guarded by mutex
};

// torch's callbacks are plain functions, and global: a strategy may be used on another thread than
// that which has made it.
struct OperatorObserver::Observers {
  std::shared_mutex mutex;  // not held while they are called: one may wait for another's coming
  // Guarded by mutex.
  std::vector<std::shared_ptr<Observer>> all;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
};

OperatorObserver::Observers& OperatorObserver::TheObservers() {
  static Observers* const observers = new Observers();  // operators run while a program ends
  return *observers;
}

std::unique_ptr<at::ObserverContext> OperatorObserver::OnFunction(
    const at::RecordFunction& function) {
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
  const bool writes = std::string_view(function.name()).ends_with('_');
  const at::DisableRecordFunctionGuard no_recursion;
  c10::SmallVector<std::shared_ptr<Observer>, 2> observers;
  {
    const std::shared_lock<std::shared_mutex> lock(TheObservers().mutex);
    observers.append(TheObservers().all.begin(), TheObservers().all.end());
  }
  for (const std::shared_ptr<Observer>& observer : observers) {
    const std::shared_lock<std::shared_mutex> running(observer->mutex);
    if (!observer->ended) observer->on_operator(storages, writes);
  }
  return nullptr;
}

// torch locks its list of callbacks, and each thread notices a change of it.
OperatorObserver::OperatorObserver(OnOperator on_operator)
    : observer_(new Observer{.on_operator = std::move(on_operator), .mutex = {}}) {
  Observers& observers = TheObservers();
  const std::unique_lock<std::shared_mutex> lock(observers.mutex);
  observers.all.push_back(observer_);
  if (observers.all.size() > 1) return;
  observers.handle = at::addGlobalCallback(at::RecordFunctionCallback(&OnFunction)
                                               .needsInputs(true)
                                               .scopes({at::RecordScope::FUNCTION}));
}

OperatorObserver::~OperatorObserver() {
  {
    Observers& observers = TheObservers();
    const std::unique_lock<std::shared_mutex> lock(observers.mutex);
    std::erase(observers.all, observer_);
    if (observers.all.empty()) at::removeCallback(observers.handle);
  }
  const std::unique_lock<std::shared_mutex> none_running(observer_->mutex);
  observer_->ended = true;
}

}  // namespace rueda::libtorch
