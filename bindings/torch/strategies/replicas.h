// Replicas of a model in one process, each trained by a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "rueda/strategy.hpp"

namespace rueda::libtorch {

// The threads are the ranks of a job of their own, over which they add up their gradients while
// their backward passes compute them. Replicas on one device share the parameters' memory.
//
// On CUDA replica i has the device i places behind the model's, of those that the process sees,
// and from the first on again if there are fewer. Its forward pass runs on its thread, on the
// streams that are current for the caller; backward passes run on autograd's threads, one a device.
//
// For one thread at a time.
class Replicas {
 public:
  // `model`, on one device, is the first of `count` replicas. `named`: its parameters, for errors.
  Replicas(const Model& model, const NamedTensors& named, int count);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  // Splits `input` along its first dimension as torch::chunk does, runs a replica on each part, and
  // joins their outputs. The backward pass from the result goes back through all replicas at the
  // same time; it throws what one of them has thrown, the first one's first, and then all gradients
  // are dropped.
  at::Tensor Forward(const at::Tensor& input);
  // A backward pass from a loss, within which replicas add up what several forward passes' outputs
  // have for them. With `hold` their gradients are only added to those that there are, and are the
  // first replica's from then on.
  void RunBackward(const at::Tensor& loss, bool hold);
  // The first replica's gradients are the sums of all when this returns, and the others have none.
  // Throws how it failed; then all gradients are dropped.
  void Synchronize();
  void ZeroGrad();

 private:
  class Thread;
  struct Pass;
  class Join;

  void StopThreads();
  bool are_on_cpu() const { return devices_.front().is_cpu(); }

  // Runs fn(i) on the threads of the first `count` replicas, and waits for all of them. Throws what
  // the first that failed has thrown.
  void OnAll(size_t count, const std::function<void(size_t)>& fn);
  void Mirror(const Model& replica) const;
  at::Tensor JoinWithHistory(const std::vector<at::Tensor>& outputs) const;
  void Backward(const std::vector<at::Tensor>& outputs, const at::Tensor& gradient);
  void DropAll();
  void AddToFirst();
  void FillInSparse();

  // What outputs, which may outlive this object, have of it.
  const std::shared_ptr<Replicas> self_{this, [](Replicas*) {}};
  std::vector<Model> models_;
  std::vector<at::Device> devices_;  // by replica
  rueda_group* group_ = nullptr;
  std::vector<std::unique_ptr<Thread>> threads_;
  bool hold_ = false;
  int passes_ = 0;  // forward passes that the backward pass has not come through
};

}  // namespace rueda::libtorch
