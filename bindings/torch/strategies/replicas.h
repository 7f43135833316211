// Replicas of a model in one process, each trained by a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "rueda/strategy.hpp"

namespace rueda::libtorch {

// The threads are the ranks of a job of their own, over which they add up their gradients while
// their backward passes compute them. On the CPU the replicas share the parameters' memory.
//
// For one thread at a time.
class Replicas {
 public:
  // `model` is the first of `count` replicas. `named`: its parameters, for errors.
  Replicas(const Model& model, const NamedTensors& named, int count);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  // Splits `input` along its first dimension as torch::chunk does, runs a replica on each part, and
  // joins their outputs. The backward pass from the result goes back through all replicas at the
  // same time; it throws what one of them has thrown, the first one's first, and then all gradients
  // are dropped.
  at::Tensor Forward(const at::Tensor& input);
  // Backward passes only add to each replica's gradients meanwhile.
  void Hold(bool hold) { hold_ = hold; }
  // The backward pass from a loss has come to its end. Within one, replicas add up what several
  // forward passes' outputs have for them. What was held is the first replica's from here on.
  void EndBackward();
  // The first replica's gradients are the sums of all when this returns, and the others have none.
  // Throws how it failed; then all gradients are dropped.
  void Synchronize();
  void ZeroGrad();

 private:
  class Thread;
  struct Pass;
  class Join;

  void StopThreads();

  // Runs fn(i) on the threads of the first `count` replicas, and waits for all of them. Throws what
  // the first that failed has thrown.
  void OnAll(size_t count, const std::function<void(size_t)>& fn);
  void Mirror(const Model& replica) const;
  void Backward(const std::vector<at::Tensor>& outputs, const at::Tensor& gradient);
  void AddToFirst();
  void FillInSparse();

  // What outputs, which may outlive this object, have of it.
  const std::shared_ptr<Replicas> self_{this, [](Replicas*) {}};
  std::vector<Model> models_;
  rueda_group* group_ = nullptr;
  std::vector<std::unique_ptr<Thread>> threads_;
  bool hold_ = false;
  int passes_ = 0;  // forward passes that the backward pass has not come through
};

}  // namespace rueda::libtorch
