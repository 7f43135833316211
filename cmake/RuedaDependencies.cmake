# Everything that is not ours, each found once. third_party/ says what each is for.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # before 0.8
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
# libsodium has no package of CMake's.
find_path(SODIUM_INCLUDE_DIR sodium.h)
find_library(SODIUM_LIBRARY sodium)
if(NOT SODIUM_INCLUDE_DIR OR NOT SODIUM_LIBRARY)
  message(FATAL_ERROR "libsodium was not found (Debian: libsodium-dev)")
endif()
add_library(rueda_sodium INTERFACE IMPORTED)
target_include_directories(rueda_sodium INTERFACE ${SODIUM_INCLUDE_DIR})
target_link_libraries(rueda_sodium INTERFACE ${SODIUM_LIBRARY})

include(RuedaTorch)
