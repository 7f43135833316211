# CUDA and NCCL, for the module of ops/nccl. Sets rueda_has_cuda and enables the language CUDA when
# RUEDA_CUDA allows it and nvcc and NCCL's header are found. No GPU and no driver are needed: the
# module is for whoever has them. NCCL is not linked; where its library is found is told to the
# module, which opens it when it is needed.
#
#   CMAKE_CUDA_ARCHITECTURES   for which GPUs; default: A100, H100, B100 and what comes after
set(rueda_has_cuda OFF)

# Folders which a Python environment has beside its own: torch's, RUEDA_VENV, third_party/setup.sh's
# if that was asked for, the active one.
function(rueda_find_nvidia_wheels result)
  set(places "")
  if(rueda_has_torch)
    list(APPEND places ${rueda_torch_root}/../nvidia)
  endif()
  foreach(environment "$ENV{RUEDA_VENV}" "${rueda_setup_venv}" "$ENV{VIRTUAL_ENV}")
    if(NOT environment STREQUAL "")
      file(GLOB wheels LIST_DIRECTORIES true "${environment}/lib/python3*/site-packages/nvidia")
      list(APPEND places ${wheels})
    endif()
  endforeach()
  set(${result} ${places} PARENT_SCOPE)
endfunction()

include(RuedaFindNvcc)

if(RUEDA_CUDA STREQUAL "OFF")
  message(STATUS "CUDA module: off (RUEDA_CUDA=OFF)")
else()
  rueda_find_nvidia_wheels(rueda_nvidia_wheels)
  set(rueda_cuda_why "")
  unset(rueda_nvcc)
  if(RUEDA_SANITIZER)
    set(rueda_cuda_why "the driver and NCCL don't run under the ${RUEDA_SANITIZER} sanitizer")
    set(rueda_cuda_advice "the release preset has it")
  else()
    set(rueda_cuda_advice "third_party/setup.sh --cuda installs what is missing, and RUEDA_SETUP_VENV=ON finds it")
    rueda_find_nvcc("${rueda_nvidia_wheels}" rueda_nvcc rueda_nvcc_version rueda_cuda_why)
    list(TRANSFORM rueda_nvidia_wheels APPEND /nccl/include OUTPUT_VARIABLE rueda_nccl_places)
    find_path(rueda_nccl_include nccl.h NO_CACHE NO_CMAKE_FIND_ROOT_PATH HINTS ${rueda_nccl_places}
              PATHS ${rueda_cuda_toolkit}/include)
    if(rueda_cuda_why STREQUAL "" AND NOT rueda_nccl_include)
      set(rueda_cuda_why "nccl.h was not found")
    endif()
  endif()
  if(rueda_cuda_why STREQUAL "")
    set(rueda_has_cuda ON)
  elseif(RUEDA_CUDA STREQUAL "ON")
    if(NOT RUEDA_SANITIZER)
      string(APPEND rueda_cuda_advice "; or name the compiler (the environment variable CUDACXX) "
                                      "and a place with NCCL (-DCMAKE_PREFIX_PATH=...)")
    endif()
    message(FATAL_ERROR "RUEDA_CUDA=ON, but ${rueda_cuda_why}. What helps: ${rueda_cuda_advice}")
  else()
    message(STATUS "CUDA module: left out, ${rueda_cuda_why} (${rueda_cuda_advice})")
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
  find_path(rueda_cuda_include cuda.h NO_CACHE NO_CMAKE_FIND_ROOT_PATH REQUIRED
            HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT}/include
                  ${rueda_nvcc_libraries}/../include)
  find_library(rueda_cudart_static NAMES libcudart_static.a NO_CACHE NO_CMAKE_FIND_ROOT_PATH REQUIRED
               HINTS ${CMAKE_CUDA_HOST_IMPLICIT_LINK_DIRECTORIES} ${CMAKE_CUDA_COMPILER_LIBRARY_ROOT}/lib64
                     ${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT}/lib64 ${rueda_nvcc_libraries})
  # Beside the header, in a wheel as in a system. Empty where it is built for other machines.
  find_library(RUEDA_NCCL_LIBRARY NAMES libnccl.so.2 nccl NO_CMAKE_FIND_ROOT_PATH
               HINTS ${rueda_nccl_include}/../lib)
  mark_as_advanced(RUEDA_NCCL_LIBRARY)
  set(rueda_nccl_library "${RUEDA_NCCL_LIBRARY}")
  if(NOT rueda_nccl_library)
    set(rueda_nccl_library "")
  endif()
  message(STATUS "CUDA module: with CUDA ${rueda_nvcc_version} (${rueda_nvcc}) for "
                 "${CMAKE_CUDA_ARCHITECTURES}, and NCCL's header in ${rueda_nccl_include}")
endif()
