# CUDA and NCCL, for the module of ops/nccl. Sets rueda_has_cuda and enables the language CUDA when
# RUEDA_CUDA allows it and nvcc and NCCL's header are found. No GPU and no driver are needed: the
# module is for whoever has them. NCCL is not linked; where its library is found is told to the
# module, which opens it when it is needed.
#
#   CMAKE_CUDA_ARCHITECTURES   for which GPUs; default: A100, H100, B100 and what comes after
set(rueda_has_cuda OFF)

# Folders which a Python environment has beside its own: torch's, RUEDA_VENV, third_party/setup.sh's.
function(rueda_find_nvidia_wheels result)
  set(cache "$ENV{XDG_CACHE_HOME}")
  if(cache STREQUAL "")
    set(cache "$ENV{HOME}/.cache")
  endif()
  set(places "")
  if(rueda_has_torch)
    list(APPEND places ${rueda_torch_root}/../nvidia)
  endif()
  file(GLOB wheels LIST_DIRECTORIES true "$ENV{RUEDA_VENV}/lib/python3*/site-packages/nvidia"
       "${cache}/rueda/venv/lib/python3*/site-packages/nvidia")
  set(${result} ${places} ${wheels} PARENT_SCOPE)
endfunction()

# nvcc's version and what else it needs; `why` says why it will not do.
function(rueda_check_nvcc nvcc version why)
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE text ERROR_VARIABLE text
                  RESULT_VARIABLE failed)
  if(failed OR NOT text MATCHES "release ([0-9]+[.][0-9]+)")
    set(${why} "${nvcc} does not say which version it is" PARENT_SCOPE)
    return()
  endif()
  set(${version} ${CMAKE_MATCH_1} PARENT_SCOPE)
  if(CMAKE_MATCH_1 VERSION_LESS 12.1)
    set(${why} "${nvcc} is CUDA ${CMAKE_MATCH_1}, and 12.1 is the oldest that will do" PARENT_SCOPE)
  else()
    set(${why} "" PARENT_SCOPE)
  endif()
endfunction()

if(NOT RUEDA_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "RUEDA_CUDA=${RUEDA_CUDA}: expected ON, OFF or AUTO")
elseif(RUEDA_CUDA STREQUAL "OFF")
  message(STATUS "CUDA module: off (RUEDA_CUDA=OFF)")
else()
  rueda_find_nvidia_wheels(rueda_nvidia_wheels)
  set(rueda_cuda_why "")
  unset(rueda_nvcc)
  if(RUEDA_SANITIZER)
    set(rueda_cuda_why "the driver and NCCL don't run under the ${RUEDA_SANITIZER} sanitizer")
  else()
    list(TRANSFORM rueda_nvidia_wheels APPEND /cu13/bin OUTPUT_VARIABLE rueda_nvcc_places)
    find_program(rueda_nvcc nvcc NO_CACHE HINTS ${CMAKE_CUDA_COMPILER} $ENV{CUDACXX}
                 PATHS /usr/local/cuda/bin ${rueda_nvcc_places})
    foreach(named ${CMAKE_CUDA_COMPILER} $ENV{CUDACXX})
      if(EXISTS ${named})
        set(rueda_nvcc ${named})
        break()
      endif()
    endforeach()
    list(TRANSFORM rueda_nvidia_wheels APPEND /nccl/include OUTPUT_VARIABLE rueda_nccl_places)
    find_path(rueda_nccl_include nccl.h NO_CACHE HINTS ${rueda_nccl_places}
              PATHS /usr/local/cuda/include)
    if(NOT rueda_nvcc)
      set(rueda_cuda_why "nvcc was not found")
    elseif(NOT rueda_nccl_include)
      set(rueda_cuda_why "nccl.h was not found")
    else()
      rueda_check_nvcc(${rueda_nvcc} rueda_nvcc_version rueda_cuda_why)
    endif()
  endif()
  if(rueda_cuda_why STREQUAL "")
    set(rueda_has_cuda ON)
  elseif(RUEDA_CUDA STREQUAL "ON")
    message(FATAL_ERROR
      "RUEDA_CUDA=ON, but ${rueda_cuda_why}. Run third_party/setup.sh --cuda, or name the compiler "
      "(the environment variable CUDACXX) and a place with NCCL (-DCMAKE_PREFIX_PATH=...)")
  else()
    message(STATUS
      "CUDA module: left out, ${rueda_cuda_why} (third_party/setup.sh --cuda installs both)")
  endif()
endif()

if(rueda_has_cuda)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    if(rueda_nvcc_version VERSION_LESS 12.8)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 100-virtual)
    endif()
  endif()
  set(CMAKE_CUDA_COMPILER ${rueda_nvcc} CACHE FILEPATH "nvcc")
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
  if(RUEDA_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  # The compiler out of wheels looks for its libraries in a folder of another name than they are in.
  get_filename_component(rueda_nvcc_libraries ${rueda_nvcc}/../../lib ABSOLUTE)
  if(EXISTS ${rueda_nvcc_libraries}/libcudart_static.a AND
     NOT CMAKE_CUDA_FLAGS MATCHES "-L${rueda_nvcc_libraries}")
    set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -L${rueda_nvcc_libraries}")
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know that nvcc has C++20, which the C++ files' standard asks of it, too.
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  # Of the toolkit this is all that is linked. (CMake's own package of it wants more than wheels have.)
  find_path(rueda_cuda_include cuda.h NO_CACHE REQUIRED
            HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT}/include
                  ${rueda_nvcc_libraries}/../include)
  find_library(rueda_cudart_static NAMES libcudart_static.a NO_CACHE REQUIRED
               HINTS ${CMAKE_CUDA_HOST_IMPLICIT_LINK_DIRECTORIES} ${CMAKE_CUDA_COMPILER_LIBRARY_ROOT}/lib64
                     ${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT}/lib64 ${rueda_nvcc_libraries})
  # Beside the header, in a wheel as in a system.
  find_library(rueda_nccl_library NAMES libnccl.so.2 nccl NO_CACHE
               HINTS ${rueda_nccl_include}/../lib)
  if(NOT rueda_nccl_library)
    set(rueda_nccl_library "")
  endif()
  message(STATUS "CUDA module: with CUDA ${rueda_nvcc_version} (${rueda_nvcc}) for "
                 "${CMAKE_CUDA_ARCHITECTURES}, and NCCL's header in ${rueda_nccl_include}")
endif()
