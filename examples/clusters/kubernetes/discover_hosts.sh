#!/bin/sh
# Prints the pods that a headless Service finds ready, an address a line, for `ruedarun
# --host-discovery-script`. Fails when the name service has no answer: the hosts stay as they are.
#
#     discover_hosts.sh SERVICE
addresses=$(getent ahostsv4 "$1") || {
  echo "discover_hosts.sh: no pod of the Service $1 is ready, or the name service does not answer" >&2
  exit 1
}
echo "$addresses" | awk '$2 == "STREAM" { print $1 }'
