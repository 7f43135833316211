#include "bindings/torch/c10d/work.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "bindings/torch/c10d/errors.h"
#include "bindings/torch/c10d/threads.h"
#include "bindings/torch/device.h"
#include "rueda/rueda.hpp"

namespace rueda::libtorch {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;
using Future = c10::ivalue::Future;

constexpr milliseconds kSlice{200};
constexpr std::chrono::hours kLongest{24 * 365 * 100};

// The device that is no CPU, if there is one.
std::optional<at::Device> DeviceOf(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.is_cpu()) return tensor.device();
  }
  return std::nullopt;
}

std::vector<at::Tensor> ResultsOf(const std::vector<c10::intrusive_ptr<c10d::Work>>& works) {
  std::vector<at::Tensor> all;
  for (const auto& work : works) {
    const std::vector<at::Tensor> some = work->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace

c10::intrusive_ptr<Future> FutureOf(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Device> devices;
  if (const std::optional<at::Device> device = DeviceOf(outputs)) devices.push_back(*device);
  return c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()), devices);
}

std::string InSeconds(milliseconds time) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%g s", std::chrono::duration<double>(time).count());
  return text;
}

steady_clock::time_point EndOf(milliseconds limit) {
  return steady_clock::now() + std::min<nanoseconds>(limit, kLongest);
}

bool WaitInSlices(milliseconds limit, const std::function<bool(nanoseconds)>& look) {
  const auto end = EndOf(limit);
  for (nanoseconds left = limit < kSlice ? limit : kSlice;;) {
    if (look(left)) return true;
    CheckSignals();
    left = std::min<nanoseconds>(kSlice, end - steady_clock::now());
    if (left.count() <= 0) return false;
  }
}

void Put(const at::Tensor& output, const at::Tensor& values) {
  const c10::InferenceMode mode(output.is_inference());
  const at::NoGradGuard no_grad;
  output.copy_(values.view(output.sizes()));
}

c10::intrusive_ptr<GroupWork> GroupWork::Begin(const std::shared_ptr<Session>& session,
                                               const Call& call, WorkPlan plan, bool soon) {
  rueda_context* const context = session->context();
  const auto work = c10::make_intrusive<GroupWork>(session, std::move(plan));
  const nanoseconds time = soon ? std::min(kSlice, work->plan_.limit) : milliseconds(0);
  const std::shared_ptr<Operation> operation = Operation::Submit(context, call, time.count());
  work->operation_ = operation;
  for (const at::Tensor& output : work->plan_.outputs) {
    if (work->plan_.writes && !output.is_inference()) output.unsafeGetTensorImpl()->bump_version();
  }
  if (soon && operation->Poll()) {
    work->Complete();
    return work;
  }
  session->Keep(work);
  if (!soon && (work->plan_.finish != nullptr || operation->CopiesBack())) {
    try {
      operation->Then([work](const rueda::Error*) { work->Complete(); });
    } catch (const rueda::Error&) {  // the group is about to end, which completes it
    }
  }
  return work;
}

GroupWork::GroupWork(std::shared_ptr<Session> session, WorkPlan plan)
    : c10d::Work(-1, plan.type, plan.title, plan.inputs),
      session_(std::move(session)),
      plan_(std::move(plan)) {
  plan_.inputs.clear();  // the operation has what it needs
}

std::shared_ptr<Operation> GroupWork::Running() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return operation_;
}

void GroupWork::Complete() noexcept {
  // Both may hold tensors that Python knows: they go without the lock.
  std::shared_ptr<Operation> operation;
  std::function<void(Operation&)> rest;
  const std::lock_guard<std::mutex> ending(ending_);
  operation = Running();
  if (operation == nullptr) return;
  std::exception_ptr error;
  std::optional<c10::Event> there;
  try {
    operation->Wait();
    if (plan_.finish != nullptr) plan_.finish(*operation);
    if (const std::optional<at::Device> device = DeviceOf(plan_.outputs)) {
      there.emplace(device->type());
      there->record(*CurrentStream(*device));
    }
  } catch (...) {
    error = std::current_exception();
  }
  rest.swap(plan_.finish);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    there_ = std::move(there);
  }
  finish(error);
  {  // who finds none finds the error
    const std::lock_guard<std::mutex> lock(mutex_);
    operation_.reset();
  }
  session_->LetGoOf(this);
}

bool GroupWork::isCompleted() {
  const WithoutPython no_python;
  const std::shared_ptr<Operation> operation = Running();
  if (operation == nullptr) return true;
  if (!WithPythonsErrors([&] { return operation->Poll(); })) return false;
  Complete();
  return true;
}

bool GroupWork::isSuccess() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && exception_ == nullptr;
}

std::exception_ptr GroupWork::exception() const {
  std::exception_ptr error;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    error = exception_;
  }
  return error == nullptr ? nullptr : PythonsOf(error);
}

std::vector<at::Tensor> GroupWork::result() {
  (void)wait();
  return plan_.outputs;
}

void GroupWork::Check() const {
  std::exception_ptr error;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    error = exception_;
  }
  if (error != nullptr) std::rethrow_exception(error);
}

Error GroupWork::TimedOut(const std::string& why, milliseconds limit) const {
  return Error(RUEDA_DEADLINE_EXCEEDED,
               session_->title() + ": after a timeout of " + InSeconds(limit) + ", " + why);
}

bool GroupWork::wait(milliseconds timeout) {
  const WithoutPython no_python;
  if (const std::shared_ptr<Operation> operation = Running()) {
    const milliseconds limit = timeout.count() > 0 ? timeout : plan_.limit;
    WithPythonsErrors([&] {
      if (operation->IsOnDevice() || WaitInSlices(limit, [&](nanoseconds slice) {
            return operation->WaitFor(slice.count());
          })) {
        return Complete();
      }
      const std::string why = operation->Explain();
      if (!operation->WaitFor(0)) throw TimedOut(why, limit);
      Complete();  // it has ended meanwhile
    });
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (there_.has_value()) there_->block(*CurrentStream(*DeviceOf(plan_.outputs)));
  return true;
}

c10::intrusive_ptr<Future> GroupWork::getFuture() {
  const WithoutPython no_python;
  std::shared_ptr<Operation> operation;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_ != nullptr) return future_;
    future_ = FutureOf(plan_.outputs);
    operation = operation_;
  }
  if (operation == nullptr) {
    Tell();
  } else {
    // Callbacks of the future may wait for other operations.
    const auto self = c10::intrusive_ptr<GroupWork>::unsafe_reclaim_from_nonowning(this);
    const auto tell = [self] { self->Tell(); };
    giving_up_ = RunAt(EndOf(plan_.limit), [self] { self->GiveUp(); });
    try {
      operation->Then([tell](const rueda::Error*) { RunSoon(tell); });
    } catch (const rueda::Error&) {  // the group is about to end
      RunSoon(tell);
    }
  }
  return future_;
}

void GroupWork::Tell() {
  const std::optional<at::Device> device = DeviceOf(plan_.outputs);
  c10::OptionalStreamGuard guard;
  if (device.has_value()) {
    const c10::impl::VirtualGuardImpl impl(device->type());
    guard.reset_stream(impl.getStreamFromGlobalPool(*device));
  }
  std::exception_ptr error;
  try {
    (void)wait();
  } catch (...) {
    error = std::current_exception();
  }
  Cancel(giving_up_);
  if (told_.exchange(true)) return;
  if (error == nullptr) {
    future_->markCompleted(c10::IValue(plan_.outputs));
  } else {
    future_->setError(error);
  }
}

void GroupWork::GiveUp() {
  const std::shared_ptr<Operation> operation = Running();
  std::string why;
  try {
    if (operation == nullptr) return;  // it is being told
    why = operation->Explain();
    if (operation->WaitFor(0)) return;
  } catch (const rueda::Error&) {  // the group is about to end, which tells it
    return;
  }
  if (told_.exchange(true)) return;
  future_->setError(PythonsOf(std::make_exception_ptr(TimedOut(why, plan_.limit))));
}

void CompletionHook::Follow(const c10::intrusive_ptr<GroupWork>& work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++followed_;
  }
  const auto end = [self = shared_from_this(), work, began = steady_clock::now()] {
    const auto ended = steady_clock::now();
    self->Add(std::make_shared<c10d::WorkInfo>(work->retrieveOpType(), work->getSequencenumber(),
                                               began, ended, ended - began));
  };
  const std::shared_ptr<Operation> operation = work->Running();
  if (operation == nullptr) return end();
  try {
    operation->Then([end](const rueda::Error*) { end(); });
  } catch (const rueda::Error&) {  // the group is about to end
    end();
  }
}

void CompletionHook::Add(Info info) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_.push_back(std::move(info));
  if (std::exchange(is_calling_, true)) return;
  RunSoon([self = shared_from_this()] { self->CallAll(); });
}

void CompletionHook::CallAll() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ended_.empty()) {
    const Info info = std::move(ended_.front());
    ended_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      hook_(info);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error_ == nullptr) error_ = error;
    if (--followed_ == 0) all_called_.notify_all();
  }
  is_calling_ = false;
}

bool CompletionHook::Await(nanoseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!all_called_.wait_for(lock, time, [this] { return followed_ == 0; })) return false;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  return true;
}

bool GroupWorks::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](auto& work) { return work->isCompleted(); });
}

bool GroupWorks::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](auto& work) { return work->isSuccess(); });
}

std::exception_ptr GroupWorks::exception() const {
  for (const auto& work : works_) {
    if (const std::exception_ptr error = work->exception()) return error;
  }
  return nullptr;
}

std::vector<at::Tensor> GroupWorks::result() {
  return ResultsOf(works_);
}

bool GroupWorks::wait(milliseconds timeout) {
  const WithoutPython no_python;
  for (const auto& work : works_) (void)work->wait(timeout);
  return true;
}

c10::intrusive_ptr<Future> GroupWorks::getFuture() {
  c10::List<c10::intrusive_ptr<Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then(
      [works = works_](Future& ended) {
        if (ended.hasError()) std::rethrow_exception(ended.exception_ptr());
        return c10::IValue(ResultsOf(works));
      },
      c10::ListType::create(c10::TensorType::get()));
}

}  // namespace rueda::libtorch
