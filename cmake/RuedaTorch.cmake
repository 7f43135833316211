# LibTorch, for bindings/torch and what stands on it. Sets rueda_has_torch and makes the target
# rueda_libtorch when RUEDA_TORCH allows it and torch is found; rueda_torch_python is the Python
# that has this torch, if there is one.
set(rueda_has_torch OFF)
set(rueda_torch_python "")

include(RuedaFindTorch)

if(RUEDA_TORCH STREQUAL "OFF")
  message(STATUS "LibTorch adapter: off (RUEDA_TORCH=OFF)")
else()
  set(rueda_torch_root "")
  set(rueda_torch_why "")
  if(RUEDA_SANITIZER MATCHES "^(address|thread)$")
    set(rueda_torch_why "torch does not run under the ${RUEDA_SANITIZER} sanitizer")
  else()
    rueda_find_torch(rueda_torch_root ${rueda_setup_venv})
    if(rueda_torch_root STREQUAL "")
      set(rueda_torch_why "torch was not found")
    else()
      rueda_check_torch(${rueda_torch_root} rueda_torch_version rueda_torch_why)
    endif()
  endif()
  if(rueda_torch_why STREQUAL "")
    set(rueda_has_torch ON)
    message(STATUS "LibTorch adapter: with torch ${rueda_torch_version} in ${rueda_torch_root}")
    rueda_add_libtorch(${rueda_torch_root})
    get_filename_component(rueda_torch_python ${rueda_torch_root}/../../../../bin/python3 ABSOLUTE)
    if(NOT EXISTS ${rueda_torch_python})
      set(rueda_torch_python "")
    endif()
  elseif(RUEDA_TORCH STREQUAL "ON")
    message(FATAL_ERROR
      "RUEDA_TORCH=ON, but ${rueda_torch_why}. Run third_party/setup.sh and set "
      "RUEDA_SETUP_VENV=ON, as the presets do, or name a place with torch: the environment "
      "variable RUEDA_VENV (a virtual environment), -DTorch_DIR=... or "
      "-DCMAKE_PREFIX_PATH=...")
  else()
    message(STATUS
      "LibTorch adapter: left out, ${rueda_torch_why} (third_party/setup.sh installs torch, and "
      "RUEDA_SETUP_VENV=ON finds it)")
  endif()
endif()
