# Cross-compiles for 64-bit Arm: Debian's g++-aarch64-linux-gnu, and the libraries of a sysroot that
# third_party/sysroot.sh has made. ctest runs the programs by qemu-aarch64.
#
#   RUEDA_SYSROOT   the sysroot, a variable of the environment; default: build/sysroot
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

if(NOT DEFINED CACHE{RUEDA_SYSROOT})
  set(rueda_sysroot "$ENV{RUEDA_SYSROOT}")
  if(rueda_sysroot STREQUAL "")
    set(rueda_sysroot ${CMAKE_CURRENT_LIST_DIR}/../../build/sysroot)
  endif()
  get_filename_component(rueda_sysroot "${rueda_sysroot}" ABSOLUTE BASE_DIR "$ENV{PWD}")
  set(RUEDA_SYSROOT "${rueda_sysroot}" CACHE PATH "The sysroot of the machine that is compiled for")
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES RUEDA_SYSROOT)
if(NOT IS_DIRECTORY "${RUEDA_SYSROOT}/usr/include")
  message(FATAL_ERROR
    "RUEDA_SYSROOT=${RUEDA_SYSROOT}: there is no such sysroot (third_party/sysroot.sh makes one)")
endif()
set(CMAKE_SYSROOT "${RUEDA_SYSROOT}")

# Programs such as protoc are this machine's, everything else is the sysroot's.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${RUEDA_SYSROOT})
