# Compiler settings for the whole tree and the two functions that every folder's list file uses.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${rueda_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${rueda_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${rueda_BINARY_DIR}/lib/static)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Instead of CMake's own flags; those that somebody has chosen, a distribution say, hold.
foreach(language C CXX)
  if("${CMAKE_${language}_FLAGS_RELEASE}" STREQUAL "-O3 -DNDEBUG")
    set(CMAKE_${language}_FLAGS_RELEASE "-O3 -g1")
  endif()
  if(RUEDA_SANITIZER)  # -g takes half as long again
    set(CMAKE_${language}_FLAGS_RELWITHDEBINFO "-O1 -g1")
  endif()
endforeach()

# A fused multiply-add would make a result depend on how a loop was vectorised.
# -Wrestrict: GCC 12 sees overlaps in std::string that are none (its bug 105651).
# -Warray-bounds, -Wstringop-...: GCC 12 shows what it wrongly warns of in the standard library when that is precompiled.
set(rueda_warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread>)
set(rueda_is_cuda $<COMPILE_LANGUAGE:CUDA>)  # nvcc hands on what stands behind -Xcompiler=
add_compile_options($<IF:${rueda_is_cuda},-Xcompiler=,>-ffp-contract=off)
add_compile_options($<IF:${rueda_is_cuda},-Xcompiler=,>-ffile-prefix-map=${rueda_SOURCE_DIR}=.)

# In a large unit GCC inlines no more than makes it grow by 40%: the negotiation took a tenth more instructions.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=large-unit-insns=1000000>)
endif()

if(RUEDA_SANITIZER STREQUAL "address")
  # GCC then sees uninitialized values in the standard library that are none.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=address,undefined)
elseif(RUEDA_SANITIZER STREQUAL "thread")
  # GCC's ThreadSanitizer does not model fences; ours only ever guard against a lost wake-up.
  add_compile_options(-fsanitize=thread -Wno-tsan)
  add_link_options(-fsanitize=thread)
elseif(RUEDA_SANITIZER STREQUAL "fuzzer")
  # With clang: libFuzzer's counters, and the sanitizers that see what goes wrong.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(RUEDA_SANITIZER)
  message(FATAL_ERROR
    "RUEDA_SANITIZER=${RUEDA_SANITIZER}: expected address, thread or fuzzer")
endif()

# A fresh clone shares the cache with an old one only if paths are taken relative to the source: on
# the command line, and in what -g writes.
find_program(RUEDA_CCACHE ccache)
if(RUEDA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${rueda_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${RUEDA_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

# What most files include, which then need not be read by the compiler each time: a quarter of its
# time. Each file includes what it uses all the same. Only for targets whose options are those of
# rueda_base: GCC 12 breaks down when they are optimised differently.
set(rueda_reuses_headers ON)
set(rueda_common_headers <algorithm> <atomic> <cstring> <functional> <map> <memory> <optional> <string> <vector>
    <absl/container/flat_hash_map.h> <absl/container/inlined_vector.h> <absl/status/statusor.h>
    <absl/strings/str_cat.h> <absl/types/span.h>)

# rueda_library(NAME SOURCES ... [DEPS ...]): the static library of one folder. DEPS are public edges.
function(rueda_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${rueda_SOURCE_DIR})
  target_compile_options(${name} PRIVATE ${rueda_warnings})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  if(name STREQUAL rueda_base)
    target_precompile_headers(${name} PRIVATE ${rueda_common_headers})
  elseif(rueda_reuses_headers AND NOT rueda_torch IN_LIST ARG_DEPS)  # torch has flags of its own
    target_precompile_headers(${name} REUSE_FROM rueda_base)
  endif()
endfunction()

# rueda_proto(NAME FILE): the messages of FILE, in the folder that calls it.
function(rueda_proto name file)
  file(RELATIVE_PATH path ${rueda_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  string(REGEX REPLACE "[.]proto$" ".pb" stem ${path})
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
  add_custom_command(
    OUTPUT ${generated}/${stem}.cc ${generated}/${stem}.h
    COMMAND ${CMAKE_COMMAND} -E make_directory ${generated}
    COMMAND protobuf::protoc --proto_path=${rueda_SOURCE_DIR} --cpp_out=${generated} ${path}
    WORKING_DIRECTORY ${rueda_SOURCE_DIR}
    DEPENDS ${file}
    VERBATIM)
  # Generated code is compiled apart: it is not held to our warnings.
  add_library(${name} STATIC ${generated}/${stem}.cc)
  target_include_directories(${name} SYSTEM PUBLIC ${generated})
  target_link_libraries(${name} PUBLIC protobuf::libprotobuf-lite)
endfunction()

# rueda_program(NAME SOURCES ... DEPS ...): an executable in build/<preset>/bin.
function(rueda_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${rueda_SOURCE_DIR})
  target_compile_options(${name} PRIVATE ${rueda_warnings})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()
