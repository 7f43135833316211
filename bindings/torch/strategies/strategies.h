// The strategies' makers, a file each.
#pragma once

#include <memory>
#include <string>

#include "bindings/torch/strategies/base.h"

namespace rueda::libtorch {

using MakeStrategy = std::unique_ptr<Strategy>(std::string name, const Model& model,
                                               torch::optim::Optimizer& optimizer,
                                               const StrategyOptions& options);
MakeStrategy MakeAsync;          // async.cc
MakeStrategy MakeDataParallel;   // data_parallel.cc: dp, ddp2, mirrored
MakeStrategy MakeDdp;            // ddp.cc: ddp, horovod, multi_worker, bytegrad
MakeStrategy MakeDecentralized;  // decentralized.cc
MakeStrategy MakeLocalSteps;     // local_steps.cc: adasum, local_sgd, diloco
MakeStrategy MakeLowPrecision;   // low_precision.cc: low_precision_decentralized
MakeStrategy MakePipeline;       // pipeline.cc
MakeStrategy MakeQAdam;          // qadam.cc
MakeStrategy MakeSharded;        // sharded.cc: sharded, fsdp

}  // namespace rueda::libtorch
