#include "controller/runtime/engine_callback.h"

namespace rueda {
namespace {

thread_local bool in_engine_callback = false;

}  // namespace

bool InEngineCallback() {
  return in_engine_callback;
}

EngineCallbackScope::EngineCallbackScope() {
  in_engine_callback = true;
}
EngineCallbackScope::~EngineCallbackScope() {
  in_engine_callback = false;
}

}  // namespace rueda
