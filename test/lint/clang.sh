#!/usr/bin/env bash
# Checks that the public headers compile with Clang, and that it warns of an asynchronous operation's handle that outlives
# a local tensor. Exit status 77: skipped.
#
#     test/lint/clang.sh C_INCLUDES CPP_INCLUDES [TORCH_INCLUDES ROOT_OF_TORCH]
set -euo pipefail

c=$1 cpp=$2 torch=${3:-} torch_root=${4:-}
export CC=clang-14 CXX=clang++-14
if ! command -v "$CXX" >/dev/null; then
  echo "SKIPPED: $CXX is not installed (third_party/setup.sh --tests)"
  exit 77
fi
cd "$(dirname "${BASH_SOURCE[0]}")"
./headers.sh rueda/rueda.h c c11 "$c"
./headers.sh rueda/rueda.h c++ c++11 "$c"
./headers.sh rueda/rueda.hpp c++ c++20 "$cpp" "$c"
./headers.sh rueda/run.hpp c++ c++20 "$cpp" "$c"
if [[ -n $torch ]]; then  # with torch.hpp in it
  ./headers.sh rueda/training.hpp c++ c++20 "$torch" "$cpp" "$c" "system:$torch_root/include" \
    "system:$torch_root/include/torch/csrc/api/include"
fi

while read -r call; do
  said=$("$CXX" -std=c++20 -fsyntax-only -I "$cpp" -I "$c" -x c++ - 2>&1 <<END
#include <rueda/rueda.hpp>
#include <vector>
rueda::Handle<> outlives() {
  std::vector<float> local(4);
  return rueda::$call;
}
END
  ) || { echo "$call: $said" && exit 1; }
  if [[ $said != *"stack memory associated with local variable 'local'"* ]]; then
    echo "$call: Clang does not warn of the handle that outlives its tensor: $said"
    exit 1
  fi
  echo "$call: warned of"
done <<'END'
allreduce_async_(local)
reduce_async_(local, 0)
broadcast_async_(local, 0)
recv_async(local, 0)
allreduce_async_(local, "by position")
reduce_async_(local, 0, "by position")
broadcast_async_(local, 0, "by position")
recv_async(local, 0, "by position")
END
