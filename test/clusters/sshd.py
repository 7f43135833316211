"""A real sshd on each of the hosts of hosts.py, and an ssh that knows them. Hosts have names of their own, which all of
them can look up."""
import os
import shutil
import subprocess
import time

import hosts

SSHD = "/usr/sbin/sshd"


def why_not():
    if not os.path.exists(SSHD) or shutil.which("ssh") is None:
        return "sshd or ssh is not installed (third_party/setup.sh --tests)"
    return hosts.why_not()


class Sshd:
    """`folder` gets keys and configurations; it is the caller's to remove after stop(). `names`: what the hosts are
    called among themselves."""

    def __init__(self, cluster, folder, names=None):
        self.cluster, self.folder, self.names = cluster, folder, names or cluster.names
        self.daemons, self.etc = [], []
        self.config = os.path.join(folder, "ssh_config")
        self.known_hosts = os.path.join(folder, "known_hosts")
        self.key = self.make_key("id")
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def make_key(self, name):
        path = os.path.join(self.folder, name)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True)
        return path

    def _write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="ascii") as file:
            file.write(text)
        return path

    def _start(self):
        os.makedirs("/run/sshd", exist_ok=True)  # sshd wants it, and leaves it empty
        table = "127.0.0.1 localhost\n" + "".join(f"10.77.0.{i} {name}\n" for i, name in enumerate(self.names, start=1))
        known = ""
        for i, name in enumerate(self.names, start=1):
            etc = f"/etc/netns/{self.cluster.names[i - 1]}"  # `ip netns exec` puts these files over those of /etc
            os.makedirs(etc)
            self.etc.append(etc)
            with open(f"{etc}/hosts", "w", encoding="ascii") as file:
                file.write(table)
            host_key = self.make_key(f"host_{i}")
            with open(f"{host_key}.pub", encoding="ascii") as public:
                known += f"{name},10.77.0.{i} {' '.join(public.read().split()[:2])}\n"
            config = self._write(f"sshd_{i}", f"""ListenAddress 10.77.0.{i}
HostKey {host_key}
AuthorizedKeysFile {self.key}.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PidFile none
PrintMotd no
MaxStartups 200
""")
            with open(os.path.join(self.folder, f"log_{i}"), "wb") as log:
                self.daemons.append(subprocess.Popen(
                    self.cluster.command(i - 1, "unshare", "--uts", "sh", "-c",
                                         f"hostname {name}; exec {SSHD} -D -e -f {config}"),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        self._write("known_hosts", known)
        self._write("ssh_config", f"""Host *
  IdentityFile {self.key}
  IdentitiesOnly yes
  UserKnownHostsFile {self.known_hosts}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  LogLevel ERROR
""")
        # The user's own configuration, for whoever calls `ssh` with this folder first in PATH.
        self.bin = os.path.join(self.folder, "bin")
        os.mkdir(self.bin)
        self._write("bin/ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.config} "$@"\n', 0o755)
        # A stand-in for LSF's: like it, a host and then a command's words.
        self._write("bin/blaunch", f'#!/bin/sh\nhost=$1\nshift\nexec {self.bin}/ssh "$host" "$@"\n', 0o755)
        for i, daemon in enumerate(self.daemons):
            self._await(i, daemon)

    def _await(self, host, daemon):
        deadline = time.monotonic() + 20
        probe = f"exec 3<>/dev/tcp/10.77.0.{host + 1}/22"
        while subprocess.run(self.cluster.command(host, "bash", "-c", probe), capture_output=True).returncode:
            if daemon.poll() is not None or time.monotonic() > deadline:
                with open(os.path.join(self.folder, f"log_{host + 1}"), encoding="utf-8") as log:
                    raise RuntimeError(f"sshd did not start: {log.read()}")
            time.sleep(0.02)

    def command(self, host, *words):
        """What runs `words` on the host-th of them: its network and its name."""
        return self.cluster.command(host, "unshare", "--uts", "sh", "-c",
                                    f'hostname {self.names[host]}; PATH="{self.bin}:$PATH"; exec "$@"', "sh", *words)

    def processes(self):
        """What runs on the hosts, but for their sshd itself."""
        daemons = {daemon.pid for daemon in self.daemons}
        return [pid for name in self.cluster.names
                for pid in map(int, subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True,
                                                   check=True).stdout.split()) if pid not in daemons]

    def stop(self):
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()
        for etc in self.etc:
            shutil.rmtree(etc)
        self.daemons, self.etc = [], []
