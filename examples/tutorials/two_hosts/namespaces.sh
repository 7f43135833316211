#!/usr/bin/env bash
# Two "hosts" on one machine, node1 and node2: network namespaces with a name, an address and an
# sshd each. They share the machine's files and cores. Needs root, iproute2 and an OpenSSH server.
#
#     namespaces.sh up                 makes them
#     namespaces.sh on HOST COMMAND    runs a command on one of them
#     namespaces.sh down               removes them, and ends what runs there
#
# Interfaces and addresses exist in the namespaces alone. Keys and configurations lie in the folder
# TUTORIAL_DIR (/tmp/rueda-tutorial), host names in /etc/netns until `down`.
set -euo pipefail

folder=${TUTORIAL_DIR:-/tmp/rueda-tutorial}
space() { echo "$(basename "$folder")-$1"; }

up() {
  [[ ! -e $folder ]] || { echo "$folder exists: run '$0 down' first" >&2; exit 1; }
  mkdir -m 700 "$folder"
  mkdir -p /run/sshd  # sshd wants it
  ssh-keygen -q -t ed25519 -N '' -f "$folder/id"
  ssh-keygen -q -t ed25519 -N '' -f "$folder/host"
  local i
  for i in 1 2; do
    ip netns add "$(space node$i)"
    ip -n "$(space node$i)" link set lo up
    mkdir -p "/etc/netns/$(space node$i)"
    printf '127.0.0.1 localhost\n10.78.0.1 node1\n10.78.0.2 node2\n' \
      >"/etc/netns/$(space node$i)/hosts"
    echo "node$i $(cut -d' ' -f1,2 "$folder/host.pub")" >>"$folder/known_hosts"
  done
  # One cable between the two.
  ip -n "$(space node1)" link add eth0 type veth peer name eth0 netns "$(space node2)"
  for i in 1 2; do
    ip -n "$(space node$i)" addr add "10.78.0.$i/24" dev eth0
    ip -n "$(space node$i)" link set eth0 up
  done
  cat >"$folder/ssh_config" <<END
Host node1 node2
  IdentityFile $folder/id
  UserKnownHostsFile $folder/known_hosts
  BatchMode yes
  LogLevel ERROR
END
  cat >"$folder/sshd_config" <<END
HostKey $folder/host
AuthorizedKeysFile $folder/id.pub
StrictModes no
PasswordAuthentication no
UsePAM no
PidFile none
END
  for i in 1 2; do
    on node$i /usr/sbin/sshd -f "$folder/sshd_config"
  done
}

on() {
  local host=$1
  shift
  # shellcheck disable=SC2016  # for the other shell
  ip netns exec "$(space "$host")" unshare --uts \
    sh -c 'hostname "$1"; shift; exec "$@"' sh "$host" "$@"
}

down() {
  local i pids
  for i in 1 2; do
    pids=$(ip netns pids "$(space node$i)" 2>/dev/null || true)
    # shellcheck disable=SC2086  # several
    [[ -z $pids ]] || kill -9 $pids 2>/dev/null || true
    ip netns del "$(space node$i)" 2>/dev/null || true
    rm -rf "/etc/netns/$(space node$i)"
  done
  rm -rf "$folder"
}

case "${1:-}" in
  up | down) "$1" ;;
  on)
    shift
    on "$@"
    ;;
  *)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 2
    ;;
esac
