# Everything that is not ours, each found once. third_party/ says what each is for.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
include(RuedaTorch)
