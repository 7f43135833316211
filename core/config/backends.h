// The list of backends: one entry each, in order of preference. The knob `backend` takes its
// choices from here, and ops/backends.cc makes the backends. docs/internals/new-backend.md adds
// one. PURE
//
//     ENTRY(name, make, choice)
//
//   name    what knobs, logs and timelines call it
//   make    the function of the backend's folder that makes it (ops/backend/make.h)
//   choice  whether the knob can ask for it alone; the others serve whom they can
#pragma once

#define RUEDA_BACKENDS(ENTRY)                    \
  ENTRY("solo", MakeSolo, false)                 \
  ENTRY("shm", MakeShm, true)                    \
  ENTRY("hierarchical", MakeHierarchical, false) \
  ENTRY("gloo", MakeGloo, true)                  \
  ENTRY("nccl", MakeNccl, false)
