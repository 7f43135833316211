// Whether a thread runs an inline callback or an allocation on behalf of the engine: it must not
// wait for an operation then.
#pragma once

namespace rueda {

bool InEngineCallback();

// The calling thread does, as long as this lives.
class EngineCallbackScope {
 public:
  EngineCallbackScope();
  ~EngineCallbackScope();
  EngineCallbackScope(const EngineCallbackScope&) = delete;
  EngineCallbackScope& operator=(const EngineCallbackScope&) = delete;
};

}  // namespace rueda
