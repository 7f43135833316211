"""A private SLURM on this machine, for tests: its own controller and nodes, and nothing of it outside one folder. Its
nodes are this machine, on ports of 127.0.0.1 that were free, for which no root is needed; or one on each of hosts.Hosts,
by its node's name, the controller on the first."""
import os
import pwd
import socket
import stat
import subprocess
import time

PROGRAMS = "slurmctld", "slurmd", "srun"
LIMIT = 60  # seconds, for what takes one


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Cluster:
    def __init__(self, folder, nodes, cpus, hosts=None, gpus=0):
        """`gpus`: each node is said to have as many; SLURM then sets CUDA_VISIBLE_DEVICES."""
        self.folder, self.conf, self.hosts = folder, os.path.join(folder, "slurm.conf"), hosts
        self.environment = {**os.environ, "SLURM_CONF": self.conf}
        self.names = [f"node{i}" for i in range(1, nodes + 1)]
        self.daemons = []
        self._write_configuration(cpus, gpus)
        try:
            self._start(0, "slurmctld", "-D")
            for i, name in enumerate(self.names):
                os.makedirs(os.path.join(folder, f"spool.{name}"))
                self._start(i, f"slurmd.{name}", "-D", "-N", name)
            self._await_nodes()
        except BaseException:
            self.stop()
            raise

    def _host_name(self, node):
        return self.names[node] if self.hosts else socket.gethostname().split(".")[0]

    def _write_configuration(self, cpus, gpus):
        folder = self.folder
        user = pwd.getpwuid(os.geteuid()).pw_name
        controller, *ports = free_ports(1 + len(self.names))
        addresses = [f"10.77.0.{i}" if self.hosts else "127.0.0.1" for i in range(1, len(self.names) + 1)]
        lines = [
            "ClusterName=test", f"SlurmctldHost={self._host_name(0)}({addresses[0]})",
            f"SlurmUser={user}", f"SlurmdUser={user}",
            "AuthType=auth/none", "CredType=cred/none",  # one user on one machine
            f"SlurmctldPort={controller}", f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"StateSaveLocation={folder}/state", f"SlurmdPidFile={folder}/slurmd.%n.pid",
            f"SlurmdSpoolDir={folder}/spool.%n",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SwitchType=switch/none",
            "MpiDefault=none", "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none", "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core", "SchedulerType=sched/builtin",
            "SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0",
            "SlurmdParameters=config_overrides",  # as many processors as we say
            "ReturnToService=2", "MailProg=/bin/true", "KillWait=5", "InactiveLimit=0",
        ]
        if not self.hosts:  # loopback only, which in a namespace would be its own
            lines.append("CommunicationParameters=NoCtldInAddrAny,NoInAddrAny")
        if gpus:
            lines.append("GresTypes=gpu")
        for i, (name, address, port) in enumerate(zip(self.names, addresses, ports)):
            lines.append(f"NodeName={name} NodeHostname={self._host_name(i)} NodeAddr={address} Port={port} CPUs={cpus} "
                         f"Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=1000 "
                         f"State=UNKNOWN{f' Gres=gpu:{gpus}' if gpus else ''}")
        lines.append(f"PartitionName=test Nodes={','.join(self.names)} Default=YES MaxTime=60 State=UP "
                     "OverSubscribe=FORCE:4")
        with open(self.conf, "w", encoding="utf-8") as conf:
            conf.write("\n".join(lines) + "\n")
        with open(os.path.join(self.folder, "cgroup.conf"), "w", encoding="utf-8") as conf:
            conf.write("CgroupPlugin=cgroup/v1\n")  # looks for no hierarchy that may not be there
        if gpus:
            self._write_gpus(gpus)
        os.makedirs(os.path.join(self.folder, "state"))

    def _write_gpus(self, gpus):
        """Null devices in their place: SLURM looks whether they are there, and devices."""
        for i in range(gpus):
            os.mknod(os.path.join(self.folder, f"gpu{i}"), 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        with open(os.path.join(self.folder, "gres.conf"), "w", encoding="ascii") as conf:
            conf.write(f"AutoDetect=off\nName=gpu File={self.folder}/gpu[0-{gpus - 1}]\n")

    def command(self, *words, host=0):
        """What runs `words` where SLURM's own commands work."""
        if not self.hosts:
            return list(words)
        return self.hosts.command(host, "unshare", "--uts", "sh", "-c",
                                  f'hostname {self.names[host]}; exec "$@"', "sh", *words)

    def _start(self, host, name, *options):
        with open(os.path.join(self.folder, f"{name}.out"), "w", encoding="utf-8") as out:
            self.daemons.append(subprocess.Popen(
                self.command(name.split(".")[0], *options, host=host), stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, env=self.environment))

    def _command(self, *words):
        return subprocess.run(self.command(*words), capture_output=True, text=True, env=self.environment,
                              timeout=LIMIT, stdin=subprocess.DEVNULL).stdout

    def _await_nodes(self):
        deadline = time.monotonic() + LIMIT
        while set(self._command("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()) != set(self.names):
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self.daemons):
                raise RuntimeError("SLURM did not come up:\n" + self._logs())
            time.sleep(0.05)

    def _logs(self):
        texts = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".out"):
                with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as log:
                    texts.append(f"== {name}\n" + log.read()[-2000:])
        return "\n".join(texts)

    def stop(self):
        """Jobs first: what serves a job outlives its node, and would try for ever to reach the controller."""
        try:
            if self.daemons and self.daemons[0].poll() is None:
                self._command("scancel", "--full", "-u", pwd.getpwuid(os.geteuid()).pw_name)
                deadline = time.monotonic() + LIMIT
                while self._command("squeue", "-h") and time.monotonic() < deadline:
                    time.sleep(0.05)
        finally:
            for daemon in self.daemons:
                daemon.terminate()
            for daemon in self.daemons:
                try:
                    daemon.wait(timeout=LIMIT)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
