# LibTorch, for bindings/torch and what stands on it. Sets rueda_has_torch and makes the target
# rueda_libtorch when RUEDA_TORCH allows it and torch is found; rueda_torch_python is the Python
# that has this torch, if there is one.
#
# Torch's CMake package tells where torch lies, but is not run: of a CUDA build (as the plain wheel
# is) it demands an installed CUDA toolkit, which the adapter has no use for, and it sets variables
# and makes targets that others' names collide with. What we need of it is three lines below.
set(rueda_has_torch OFF)
set(rueda_torch_python "")

# Looked for, in this order: Torch_DIR, the virtual environment RUEDA_VENV, CMAKE_PREFIX_PATH, the
# virtual environment of third_party/setup.sh.
function(rueda_find_torch result)
  set(venv_suffix lib/python3*/site-packages/torch/share/cmake/Torch)
  set(first ${Torch_DIR} $ENV{Torch_DIR})
  if(NOT "$ENV{RUEDA_VENV}" STREQUAL "")
    file(GLOB in_venv LIST_DIRECTORIES true "$ENV{RUEDA_VENV}/${venv_suffix}")
    list(APPEND first ${in_venv})
  endif()
  if(first)
    find_path(found TorchConfig.cmake NO_CACHE NO_DEFAULT_PATH PATHS ${first})
  endif()
  find_path(found TorchConfig.cmake NO_CACHE PATH_SUFFIXES Torch share/cmake/Torch
            NO_CMAKE_SYSTEM_PATH NO_SYSTEM_ENVIRONMENT_PATH)
  set(cache "$ENV{XDG_CACHE_HOME}")
  if(cache STREQUAL "")
    set(cache "$ENV{HOME}/.cache")
  endif()
  if(NOT found AND "$ENV{RUEDA_VENV}" STREQUAL "")
    file(GLOB in_venv LIST_DIRECTORIES true "${cache}/rueda/venv/${venv_suffix}")
    if(in_venv)
      find_path(found TorchConfig.cmake NO_CACHE NO_DEFAULT_PATH PATHS ${in_venv})
    endif()
  endif()
  if(found)
    get_filename_component(root ${found}/../../.. ABSOLUTE)
    set(${result} ${root} PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

# Whether what was found will do; else `why`.
function(rueda_check_torch root version why)
  set(header ${root}/include/torch/headeronly/version.h)
  if(NOT EXISTS ${header} OR NOT EXISTS ${root}/lib/libtorch_cpu.so)
    set(${why} "${root} has no headers, no libtorch_cpu.so, or is older than 2.9" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS ${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
  string(REGEX REPLACE "[^;]* ([0-9]+)" "\\1" numbers "${lines}")
  list(JOIN numbers "." numbers)
  set(${version} ${numbers} PARENT_SCOPE)
  set(${why} "" PARENT_SCOPE)
endfunction()

if(NOT RUEDA_TORCH MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "RUEDA_TORCH=${RUEDA_TORCH}: expected ON, OFF or AUTO")
elseif(RUEDA_TORCH STREQUAL "OFF")
  message(STATUS "LibTorch adapter: off (RUEDA_TORCH=OFF)")
else()
  set(rueda_torch_root "")
  set(rueda_torch_why "")
  if(RUEDA_SANITIZER MATCHES "^(address|thread)$")
    set(rueda_torch_why "torch does not run under the ${RUEDA_SANITIZER} sanitizer")
  else()
    rueda_find_torch(rueda_torch_root)
    if(rueda_torch_root STREQUAL "")
      set(rueda_torch_why "torch was not found")
    else()
      rueda_check_torch(${rueda_torch_root} rueda_torch_version rueda_torch_why)
    endif()
  endif()
  if(rueda_torch_why STREQUAL "")
    set(rueda_has_torch ON)
    message(STATUS "LibTorch adapter: with torch ${rueda_torch_version} in ${rueda_torch_root}")
    # libtorch.so itself is empty and pulls in the CUDA half of a CUDA build; the C++ API is in
    # libtorch_cpu.so. Headers are the system's, for the compiler: no warnings out of them.
    add_library(rueda_libtorch INTERFACE IMPORTED GLOBAL)
    target_include_directories(rueda_libtorch INTERFACE
      ${rueda_torch_root}/include ${rueda_torch_root}/include/torch/csrc/api/include)
    target_link_libraries(rueda_libtorch INTERFACE
      ${rueda_torch_root}/lib/libtorch_cpu.so ${rueda_torch_root}/lib/libc10.so)
    # What a CUDA build's libtorch_cpu.so needs lies where the loader finds it, but not the linker.
    target_link_options(rueda_libtorch INTERFACE -Wl,--allow-shlib-undefined)
    get_filename_component(rueda_torch_python ${rueda_torch_root}/../../../../bin/python3 ABSOLUTE)
    if(NOT EXISTS ${rueda_torch_python})
      set(rueda_torch_python "")
    endif()
  elseif(RUEDA_TORCH STREQUAL "ON")
    message(FATAL_ERROR
      "RUEDA_TORCH=ON, but ${rueda_torch_why}. Run third_party/setup.sh, or name a place with "
      "torch: the environment variable RUEDA_VENV (a virtual environment), -DTorch_DIR=... or "
      "-DCMAKE_PREFIX_PATH=...")
  else()
    message(STATUS
      "LibTorch adapter: left out, ${rueda_torch_why} (third_party/setup.sh installs torch)")
  endif()
endif()
