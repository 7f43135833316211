# Finds LibTorch: for the build of the adapter (RuedaTorch.cmake) and, installed beside it, for the
# projects that use the adapter (ruedaConfig.cmake). The torch of either is the user's own.
#
# Torch's CMake package tells where torch lies, but is not run: of a CUDA build (as the plain wheel
# is) it demands an installed CUDA toolkit, which the adapter has no use for, and it sets variables
# and makes targets that others' names collide with. What we need of it is three lines below.

# rueda_find_torch(RESULT [ENVIRONMENT]): looked for, in this order: Torch_DIR, the virtual
# environment RUEDA_VENV, CMAKE_PREFIX_PATH, the virtual environment ENVIRONMENT, the active one.
function(rueda_find_torch result)
  set(venv_suffix lib/python3*/site-packages/torch/share/cmake/Torch)
  set(first ${Torch_DIR} $ENV{Torch_DIR})
  if(NOT "$ENV{RUEDA_VENV}" STREQUAL "")
    file(GLOB in_venv LIST_DIRECTORIES true "$ENV{RUEDA_VENV}/${venv_suffix}")
    list(APPEND first ${in_venv})
  endif()
  # A name of ours: find_path takes any variable of that name, a caller's too, for an answer.
  unset(rueda_torch_package)
  if(first)
    find_path(rueda_torch_package TorchConfig.cmake NO_CACHE NO_DEFAULT_PATH PATHS ${first})
  endif()
  find_path(rueda_torch_package TorchConfig.cmake NO_CACHE PATH_SUFFIXES Torch share/cmake/Torch
            NO_CMAKE_SYSTEM_PATH NO_SYSTEM_ENVIRONMENT_PATH)
  foreach(environment IN LISTS ARGN ITEMS "$ENV{VIRTUAL_ENV}")
    if(NOT rueda_torch_package AND NOT environment STREQUAL "" AND "$ENV{RUEDA_VENV}" STREQUAL "")
      file(GLOB in_venv LIST_DIRECTORIES true "${environment}/${venv_suffix}")
      if(in_venv)
        find_path(rueda_torch_package TorchConfig.cmake NO_CACHE NO_DEFAULT_PATH PATHS ${in_venv})
      endif()
    endif()
  endforeach()
  if(rueda_torch_package)
    get_filename_component(root ${rueda_torch_package}/../../.. ABSOLUTE)
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

# The targets rueda_libtorch and rueda_libtorch_cuda, and rueda_torch_has_cuda. libtorch.so itself is
# empty and pulls in the CUDA half of a CUDA build; the C++ API is in libtorch_cpu.so. Headers are
# the system's, for the compiler: no warnings out of them. What a CUDA build's libtorch_cpu.so needs
# lies where the loader finds it, but not the linker.
function(rueda_add_libtorch root)
  add_library(rueda_libtorch INTERFACE IMPORTED GLOBAL)
  target_include_directories(rueda_libtorch INTERFACE
    ${root}/include ${root}/include/torch/csrc/api/include)
  target_link_libraries(rueda_libtorch INTERFACE ${root}/lib/libtorch_cpu.so ${root}/lib/libc10.so)
  target_link_options(rueda_libtorch INTERFACE -Wl,--allow-shlib-undefined
    # Also of a program that uses nothing of torch's by itself: an installed librueda_torch.so does
    # not know where torch is, and finds the one that the program brings.
    "LINKER:--push-state,--no-as-needed,${root}/lib/libtorch_cpu.so,${root}/lib/libc10.so,--pop-state")
  # For programs that work on CUDA tensors: torch's CUDA half, if this torch has one. Its kernels
  # are found by the dispatcher, and not by name, so the linker would leave it out. Half a gigabyte
  # to load; the adapter does without.
  add_library(rueda_libtorch_cuda INTERFACE IMPORTED GLOBAL)
  target_link_libraries(rueda_libtorch_cuda INTERFACE rueda_libtorch)
  set(rueda_torch_has_cuda OFF PARENT_SCOPE)
  if(EXISTS ${root}/lib/libtorch_cuda.so)
    set(rueda_torch_has_cuda ON PARENT_SCOPE)
    target_link_libraries(rueda_libtorch_cuda INTERFACE
      -Wl,--push-state,--no-as-needed ${root}/lib/libtorch_cuda.so -Wl,--pop-state)
  endif()
endfunction()
