#!/usr/bin/env python3
"""The job scripts of examples/clusters, as they are: under a real SLURM, and under stand-ins for PBS, LSF and
Kubernetes, which set what those set. Hosts are namespaces (hosts.py), reached by a real ssh, which needs root.

scripts_test.py REPOSITORY DIRECTORY_OF_PROGRAMS [--write]

What each script prints is beside it, SCRIPT.out, and in docs/guides/clusters; --write writes the former anew.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import hosts
import slurm
import sshd
import support

WRITE = "--write" in sys.argv
if WRITE:
    sys.argv.remove("--write")
REPOSITORY, PROGRAMS = os.path.realpath(sys.argv.pop(1)), os.path.realpath(sys.argv.pop(1))
SCRIPTS = os.path.join(REPOSITORY, "examples", "clusters")
HANG = 60  # seconds
LONG = 300  # for eight ranks that import Lightning
ALL = os.environ.get("SOAK_SCRIPTS") == "1"  # test/soak/run.sh; else one of those with Lightning


def setUpModule():
    support.skip_all(sshd.why_not())


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def directives(script, mark):
    """The words of its lines of that kind, such as "#PBS -q gpuvolta"."""
    return [line.split()[1:] for line in read(script).splitlines() if line.startswith(mark + " ")]


def comparable(text):
    """Its lines in an order that ranks don't choose, without what differs from run to run and from machine to machine:
    pids, ports, the numbers of jobs, the step in which a warning comes, who was the first to end, cores, losses."""
    for pattern, stands_for in (
            (r"(?m)^\* ", "  "), (r" +<- first failure", ""), (r"(?m)^( +\d+) +\d+  ", r"\1 #  "),
            (r"(?m)^ruedarun: rank \d+ on host \w+ \(pid \d+\)", "ruedarun: rank #"),
            (r"ended after rank \d+", "ended after rank #"), (r"\bjob \d+", "job #"),
            (r"JOB \d+ ON (\w+) CANCELLED AT \S+", r"JOB # ON \1 CANCELLED AT #"),
            (r"(saved|begins at) step [1-9].*", r"\1 step #"), (r":\d+ \(interface", ":# (interface"),
            (r"OMP_NUM_THREADS=\d+", "OMP_NUM_THREADS=#"), (r"(loss|accuracy)=[\d.]+", r"\1=#")):
        text = re.sub(pattern, stands_for, text)
    return sorted(line.rstrip() for line in text.splitlines())


def in_order(text):
    """With the lines that every rank prints by rank."""
    lines = text.splitlines()
    for pattern in (r"rank (\d+) of \d+, local", r"rank (\d+) of \d+: average", r"global rank (\d+)"):
        places = [i for i, line in enumerate(lines) if re.search(pattern, line)]
        in_turn = sorted((lines[i] for i in places), key=lambda line: int(re.search(pattern, line)[1]))
        for i, line in zip(places, in_turn):
            lines[i] = line
    return "".join(line + "\n" for line in lines)


def without_torch(text):
    """What the ranks say, without the warnings of torch's launcher, which are others each time."""
    ours = r"rank \d+ of|\[rueda|  \w+ +(yes|no: )"
    return "".join(line + "\n" for line in text.splitlines() if re.match(ours, line))


def of_example(text):
    """What ranks and their program say, without Lightning's remarks."""
    ours = r"\[\d+\] (rank \d+ of|global rank|epoch=|test_accuracy=)"
    return "".join(line + "\n" for line in text.splitlines() if re.match(ours, line))


def python(package="lightning"):
    """The virtual environment of third_party/setup.sh, with that package in it."""
    venv = os.environ.get("RUEDA_VENV", os.path.expanduser("~/.cache/rueda/venv"))
    if subprocess.run([f"{venv}/bin/python", "-c", f"import importlib.util as i; assert i.find_spec('{package}')"],
                      check=False, capture_output=True).returncode != 0:
        raise unittest.SkipTest(f"{package} is not installed")
    return venv


class OnHosts(unittest.TestCase):
    """Of a directory that looks like the root of the repository after a release was built. `names` of the hosts."""

    names = ["node1", "node2"]

    @classmethod
    def setUpClass(cls):
        cls.maxDiff = None
        cls.cluster = hosts.Hosts(len(cls.names))
        cls.addClassCleanup(cls.cluster.remove)
        cls.keys = tempfile.mkdtemp(prefix="rueda-sshd-")
        cls.addClassCleanup(shutil.rmtree, cls.keys)
        cls.sshd = sshd.Sshd(cls.cluster, cls.keys, cls.names)
        cls.addClassCleanup(cls.sshd.stop)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="rueda-scripts-")
        self.addCleanup(shutil.rmtree, self.folder)
        release = os.path.join(self.folder, "build", "release")
        os.makedirs(release)
        os.symlink(PROGRAMS, os.path.join(release, "bin"))
        os.symlink(os.path.join(os.path.dirname(PROGRAMS), "python"), os.path.join(release, "python"))
        os.symlink(os.path.join(REPOSITORY, "examples"), os.path.join(self.folder, "examples"))

    def expect_printed(self, script, text):
        """What is beside the script and in its page of the documentation."""
        path = f"{script}.out"
        if WRITE:
            with open(path, "w", encoding="utf-8") as file:
                file.write(in_order(text))
            return
        self.assertEqual(comparable(text), comparable(read(path)), text)
        pages = os.path.join(REPOSITORY, "docs", "guides", "clusters")
        page = read(os.path.join(pages, os.path.basename(os.path.dirname(script)) + ".md"))
        self.assertTrue(f"```text\n{read(path)}```\n" in page, f"{path} is not in the documentation as it is")

    def tool(self, name, text):
        """A program in the place of a batch system's."""
        path = os.path.join(self.folder, "tools", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return os.path.dirname(path)

    def run_on(self, host, *words, limit=HANG, **variables):
        done = subprocess.run(self.sshd.command(host, *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=limit, cwd=self.folder,
                              env={**os.environ, **variables})
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def expect_no_meeting_left(self):
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("rueda-")], [])


class Slurm(OnHosts):
    """The real one, which believes that its nodes have GPUs."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        support.needs(*slurm.PROGRAMS)
        cls.state = tempfile.mkdtemp(prefix="rueda-slurm-")
        cls.addClassCleanup(shutil.rmtree, cls.state)
        cls.slurm = slurm.Cluster(cls.state, nodes=2, cpus=4, hosts=cls.cluster, gpus=4)
        cls.addClassCleanup(cls.slurm.stop)

    def command(self, *words, **variables):
        done = subprocess.run(self.slurm.command(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=HANG, cwd=self.folder, env={**self.slurm.environment, **variables})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def submit(self, script, **variables):
        job = self.command("sbatch", "--parsable", os.path.relpath(script, REPOSITORY), **variables)
        return job, os.path.join(self.folder, os.path.basename(script).replace(".sbatch", f".{job}.out"))

    def await_true(self, condition, out, limit=HANG):
        deadline = time.monotonic() + limit
        while not condition():
            self.assertLess(time.monotonic(), deadline, read(out) if os.path.exists(out) else "no output")
            time.sleep(0.05)

    def steps(self):
        """Pids of what serves a job on a node."""
        found = []
        for pid in self.sshd.processes():
            try:
                if read(f"/proc/{pid}/comm").startswith("slurmstepd"):
                    found.append(pid)
            except OSError:
                pass  # it has ended
        return found

    def state_of(self, job):
        return re.search(r"JobState=(\w+)", self.command("scontrol", "show", "job", job))[1]

    def await_end(self, job, out, limit=HANG):
        ongoing = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        self.await_true(lambda: self.state_of(job) not in ongoing, out, limit)
        self.assertEqual(self.state_of(job), "COMPLETED", read(out))

    def expect_job(self, name, **variables):
        script = os.path.join(SCRIPTS, "slurm", name)
        job, out = self.submit(script, **variables)
        self.await_end(job, out)
        self.expect_printed(script, read(out))
        self.expect_no_meeting_left()

    def test_train(self):
        self.expect_job("train.sbatch")

    def test_srun(self):
        self.expect_job("srun.sbatch")

    def test_torchrun(self):
        venv = os.environ.get("RUEDA_VENV", os.path.expanduser("~/.cache/rueda/venv"))
        path = f"{venv}/bin:{os.environ['PATH']}"
        if shutil.which("torchrun", path=path) is None:
            self.skipTest("no torchrun")
        job, out = self.submit(os.path.join(SCRIPTS, "slurm", "torchrun.sbatch"), PATH=path)
        self.await_end(job, out)
        self.expect_printed(os.path.join(SCRIPTS, "slurm", "torchrun.sbatch"), without_torch(read(out)))
        self.expect_no_meeting_left()

    def test_lightning(self):
        script, venv = os.path.join(SCRIPTS, "slurm", "lightning.sbatch"), python()
        job, out = self.submit(script, RUEDA_VENV=venv)
        self.await_end(job, out, LONG)
        self.expect_printed(script, of_example(read(out)))

    @unittest.skipUnless(ALL, "test/soak/run.sh has it")
    def test_lightning_started_by_srun(self):
        """Lightning's own environment for SLURM, in which devices and nodes are to be named."""
        script, out = os.path.join(self.folder, "srun.sh"), os.path.join(self.folder, "srun.out")
        with open(script, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\nexport RUEDA_SHARED_DIR=$PWD PYTHONPATH=$PWD/build/release/python\n"
                       f"exec srun {python()}/bin/python examples/python/mnist_lightning.py --strategy decentralized"
                       " --devices 2 --nodes 2 --epochs 2\n")
        job = self.command("sbatch", "--parsable", "-N2", "--ntasks-per-node=2", "-o", out, script)
        self.await_end(job, out, LONG)
        places = sorted(re.findall(r"global rank (\d), member \d of 4, backend rueda, local rank (\d)", read(out)))
        self.assertEqual(places, [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")])
        self.assertIn("replicas_equal=true", read(out))

    def test_ranks_have_the_gpus_of_their_node_however_they_were_asked_for(self):
        script = os.path.join(self.folder, "devices.sh")
        with open(script, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nexport SLURM_LABELIO=1\n"
                       f"exec {PROGRAMS}/ruedarun --prefix none sh -c 'echo $RANK $CUDA_VISIBLE_DEVICES'\n")
        out = os.path.join(self.folder, "devices.out")
        for option in ("--gpus=8", "--gpus-per-task=2", "--gpus-per-node=4"):
            job = self.command("sbatch", "--parsable", "-N2", "--ntasks-per-node=2", option, "-o", out, script)
            self.await_end(job, out)
            self.assertEqual(sorted(read(out).splitlines()), [f"{rank} 0,1,2,3" for rank in range(4)])

    def test_elastic(self):
        """A rank is killed; the others continue, and get another."""
        script, venv = os.path.join(SCRIPTS, "slurm", "elastic.sbatch"), python("torch")
        job, out = self.submit(script, RUEDA_VENV=venv)
        self.await_true(lambda: os.path.exists(out) and "step 100:" in read(out), out, LONG)
        os.kill(int(re.search(r"membership 1: rank 3 of 4, pid (\d+)", read(out))[1]), signal.SIGKILL)
        self.await_end(job, out, LONG)
        self.assertRegex(read(out), r"ruedarun: membership 2 of 3 ranks after")
        self.assertRegex(read(out), r"ruedarun: membership 3 of 4 ranks after .*; process 3 joined")
        self.assertIn("done after step 500: replicas_equal=true", read(out))

    def test_requeue(self):
        """Warned in its first start, done in its second, with the same result as one that nobody warned."""
        script = os.path.join(SCRIPTS, "slurm", "requeue.sbatch")
        job, out = self.submit(script)
        self.await_true(lambda: os.path.exists(out) and "begins at" in read(out), out)
        self.command("scancel", "--batch", "--signal=USR1", job)
        self.await_true(lambda: "asks to be requeued" in read(out), out)
        # SLURM lets what was requeued wait for two minutes. A node refuses a job that it has ended within the second.
        self.await_true(lambda: self.state_of(job) == "PENDING" and not self.steps(), out)
        self.command("scontrol", "update", f"JobId={job}", "StartTime=now+2")
        self.await_end(job, out)
        self.assertIn("Restarts=1", self.command("scontrol", "show", "job", job))
        self.expect_printed(script, read(out))
        alone = self.run_on(0, f"{PROGRAMS}/ruedarun", "-H", "node1:2,node2:2", f"{PROGRAMS}/checkpoint", "--steps",
                            "150", "--step-ms", "0")
        self.assertIn(re.search(r"done at step .*", alone)[0], read(out))


class Pbs(OnHosts):
    def test_gadi(self):
        script = os.path.join(SCRIPTS, "pbs", "gadi.pbs")
        self.expect_printed(script, self.run_as_job(script))

    @unittest.skipUnless(ALL, "test/soak/run.sh has it")
    def test_lightning(self):
        script = os.path.join(SCRIPTS, "pbs", "lightning.pbs")
        self.expect_printed(script, of_example(self.run_as_job(script, limit=LONG, RUEDA_VENV=python())))

    def run_as_job(self, script, limit=HANG, **variables):
        """In the place of PBS Pro at NCI: what its directives ask for, in the variables and the file that it gives."""
        asked = {words[0]: words[1:] for words in directives(script, "#PBS") if words[0] != "-l"}
        resources = dict((words[1].split("=") + [""])[:2] for words in directives(script, "#PBS") if words[0] == "-l")
        cores, gpus = int(resources["ncpus"]), int(resources["ngpus"])
        self.assertEqual((asked["-q"], cores, gpus), (["gpuvolta"], 12 * gpus, 8))
        self.assertLessEqual(set(resources), {"ncpus", "ngpus", "mem", "jobfs", "walltime", "storage", "wd"})
        nodes = os.path.join(self.folder, "nodes")
        with open(nodes, "w", encoding="ascii") as file:
            file.write("".join(f"{name}\n" * 48 for name in self.names))
        spool = os.path.join(self.folder, "spool.SC")
        shutil.copy(script, spool)
        return self.run_on(
            0, "bash", spool, limit=limit, PBS_JOBID="7.gadi-pbs", PBS_ENVIRONMENT="PBS_BATCH", PBS_NODEFILE=nodes,
            PBS_O_WORKDIR=self.folder, PBS_NCPUS=str(cores), PBS_NGPUS=str(gpus), PBS_NCI_NCPUS_PER_NODE="48",
            **variables)


class Lsf(OnHosts):
    def test_train(self):
        """With blaunch: a host, then a command's words."""
        script = os.path.join(SCRIPTS, "lsf", "train.lsf")
        self.assertIn(["-n", "8"], directives(script, "#BSUB"))
        tools = self.tool("blaunch", f'#!/bin/sh\nhost=$1\nshift\nexec {self.sshd.bin}/ssh "$host" "$@"\n')
        self.expect_printed(script, self.run_on(
            0, "bash", script, PATH=f"{tools}:{os.environ['PATH']}", LSB_JOBID="7", LSB_MCPU_HOSTS="node1 4 node2 4",
            LSB_HOSTS=" ".join(["node1"] * 4 + ["node2"] * 4), CUDA_VISIBLE_DEVICES="0,1,2,3"))


JSRUN = r"""#!/usr/bin/env python3
# In the place of IBM's: resource sets of one rank and one GPU, an environment that goes along.
import os, subprocess, sys
options, words = {}, sys.argv[1:]
while words[0].startswith("--"):
    options[words[0]] = int(words[1])
    words = words[2:]
size, local_size = options["--nrs"], options["--rs_per_host"]
assert options["--tasks_per_rs"] == options["--gpu_per_rs"] == 1, options
ranks = []
for rank in range(size):
    host, local_rank = rank // local_size, rank % local_size
    variables = {"JSM_NAMESPACE_RANK": rank, "JSM_NAMESPACE_SIZE": size, "JSM_NAMESPACE_LOCAL_RANK": local_rank,
                 "JSM_NAMESPACE_LOCAL_SIZE": local_size, "PMIX_NAMESPACE": 1, "PMIX_RANK": rank,
                 "CUDA_VISIBLE_DEVICES": local_rank}
    ranks.append(subprocess.Popen(
        ["ip", "netns", "exec", NAMESPACES[host], "unshare", "--uts", "sh", "-c", f'hostname node{host + 1}; exec "$@"',
         "sh", *words], stdin=subprocess.DEVNULL, env={**os.environ, **{name: str(value) for name, value in variables.items()}}))
sys.exit(max(rank.wait() for rank in ranks))
"""


class Jsrun(OnHosts):
    names = ["node1", "node2", "launch"]

    def test_jsrun(self):
        script = os.path.join(SCRIPTS, "lsf", "jsrun.lsf")
        self.assertIn(["-nnodes", "2"], directives(script, "#BSUB"))
        tools = self.tool("jsrun", JSRUN.replace("NAMESPACES", repr(self.cluster.names)))
        self.expect_printed(script, self.run_on(2, "bash", script, LSB_JOBID="7", CSM_ALLOCATION_ID="7",
                                                PATH=f"{tools}:{os.environ['PATH']}"))
        self.expect_no_meeting_left()


def manifests(name):
    import yaml
    return list(yaml.safe_load_all(read(os.path.join(SCRIPTS, "kubernetes", name))))


class Kubernetes(OnHosts):
    """Not a cluster: what the manifests start, where and with what they say."""

    names = ["train-worker-0.train.default.svc", "train-worker-1.train.default.svc", "train-launcher"]

    def setUp(self):
        super().setUp()
        try:
            import yaml  # noqa: F401
        except ImportError:
            self.skipTest("python3-yaml is not installed")
        # The image.
        self.image = os.path.join(self.folder, "opt")
        programs = os.path.join(self.image, "bin")
        os.makedirs(programs)
        os.symlink(os.path.join(PROGRAMS, "ruedarun"), os.path.join(programs, "ruedarun"))
        package = os.path.join(os.path.dirname(PROGRAMS), "python")
        with open(os.path.join(programs, "python"), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\nPYTHONPATH={package} exec {python('numpy')}/bin/python \"$@\"\n")
        os.chmod(file.name, 0o755)
        os.symlink(os.path.join(REPOSITORY, "examples"), os.path.join(self.image, "examples"))

    def inside(self, word):
        return word.replace("/opt/rueda", self.image)

    def test_mpijob(self):
        [job] = manifests("mpijob.yaml")
        self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v2beta1", "MPIJob"))
        spec = job["spec"]
        self.assertEqual(spec["launcherCreationPolicy"], "WaitForWorkersReady")
        worker = spec["mpiReplicaSpecs"]["Worker"]
        [container] = worker["template"]["spec"]["containers"]
        self.assertEqual(container["command"][0], "/usr/sbin/sshd")
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], spec["slotsPerWorker"])
        self.assertEqual(container["readinessProbe"]["tcpSocket"]["port"], 22)
        self.assertEqual(worker["replicas"], 2)
        # As the operator writes it for Open MPI.
        hostfile = os.path.join(self.folder, "hostfile")
        with open(hostfile, "w", encoding="ascii") as file:
            for name in self.names[:2]:
                file.write(f"{name} slots={spec['slotsPerWorker']}\n")
        [launcher] = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
        words = [self.inside(word).replace("/etc/mpi/hostfile", hostfile)
                 for word in launcher["command"] + launcher["args"]]
        self.expect_printed(os.path.join(SCRIPTS, "kubernetes", "mpijob.yaml"), self.run_on(2, *words))

    def train_elastically(self, launcher, replaced, say):
        """Its program, until a second worker has come and the first one has left. `replaced`: words of the command."""
        words = launcher["command"] + launcher["args"]
        self.assertEqual(words[-2], "--steps")
        words[-1] = "1000000"
        for old, new in replaced.items():
            words = [word.replace(old, new) for word in words]
        out, end = os.path.join(self.folder, "out"), os.path.join(self.folder, "stop")
        with open(os.path.join(self.image, "bin", "python"), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\nPYTHONPATH={os.path.dirname(PROGRAMS)}/python OMP_NUM_THREADS=1 RUEDA_STOP_FILE={end} "
                       f"exec {python('torch')}/bin/python \"$@\"\n")
        say(0)
        with open(out, "wb") as file:
            process = subprocess.Popen(self.sshd.command(2, *map(self.inside, words)), stdin=subprocess.DEVNULL, stdout=file,
                                       stderr=subprocess.STDOUT, cwd=self.folder)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def await_found(pattern):
            deadline = time.monotonic() + LONG
            while not re.search(pattern, read(out)):
                self.assertTrue(time.monotonic() < deadline and process.poll() is None, read(out))
                time.sleep(0.05)

        await_found(r"membership 1: rank 1 of 2")
        say(0, 1)
        await_found(r"membership \d+: rank 3 of 4")
        say(1)
        await_found(r"ruedarun: host \S+ is to be left")
        await_found(r"ruedarun: membership \d+ of 2 ranks after")
        with open(end, "w", encoding="ascii"):
            pass
        self.assertEqual(process.wait(HANG), 0, read(out))
        self.assertIn("replicas_equal=true", read(out))

    @unittest.skipUnless(ALL, "test/soak/run.sh has it")
    def test_elastic_mpijob(self):
        [job] = manifests("mpijob-elastic.yaml")
        spec = job["spec"]
        [launcher] = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
        words = launcher["command"]
        self.assertEqual(words[words.index("--slots") + 1], str(spec["slotsPerWorker"]))
        self.assertEqual(job["metadata"]["name"], manifests("mpijob.yaml")[0]["metadata"]["name"])
        script = os.path.join(self.folder, "discover_hosts.sh")

        def say(*workers):
            # As the operator writes it.
            with open(f"{script}.new", "w", encoding="ascii") as file:
                file.write("#!/bin/sh\n" + "".join(f"echo {self.names[i]}\n" for i in workers))
            os.chmod(f"{script}.new", 0o755)
            os.replace(f"{script}.new", script)

        self.train_elastically(launcher, {"/etc/mpi/discover_hosts.sh": script}, say)

    @unittest.skipUnless(ALL, "test/soak/run.sh has it")
    def test_elastic_service(self):
        """The name service of the launcher's host is its file of hosts."""
        service, deployment, job = manifests("elastic.yaml")
        self.assertEqual([each["kind"] for each in (service, deployment, job)], ["Service", "Deployment", "Job"])
        pod = deployment["spec"]["template"]
        self.assertEqual(service["spec"], {"clusterIP": "None", "selector": pod["metadata"]["labels"]})
        [worker] = pod["spec"]["containers"]
        [launcher] = job["spec"]["template"]["spec"]["containers"]
        words, name = launcher["command"], service["metadata"]["name"]
        self.assertEqual(words[words.index("--slots") + 1], str(worker["resources"]["limits"]["nvidia.com/gpu"]))
        self.assertTrue(words[-1].endswith(f"/discover_hosts.sh {name}"), words)
        for each in (worker, launcher):
            self.assertEqual(each["volumeMounts"], [{"name": "ssh", "mountPath": "/root/.ssh", "readOnly": True}])
        table = f"/etc/netns/{self.cluster.names[2]}/hosts"
        others = read(table)

        def say(*workers):
            # In its place: it is mounted over /etc/hosts.
            with open(table, "w", encoding="ascii") as file:
                file.write(others + "".join(f"10.77.0.{i + 1} {name}\n" for i in workers))

        self.train_elastically(launcher, {}, say)

    @unittest.skipUnless(ALL, "test/soak/run.sh has it")
    def test_hosts_stay_when_no_pod_is_ready(self):
        script = os.path.join(SCRIPTS, "kubernetes", "discover_hosts.sh")
        found = subprocess.run([script, "no-such-service.invalid"], capture_output=True, text=True, check=False)
        self.assertEqual((found.returncode, found.stdout), (1, ""))
        self.assertIn("no pod of the Service no-such-service.invalid is ready", found.stderr)
        found = subprocess.run([script, "localhost"], capture_output=True, text=True, check=True)
        self.assertEqual(found.stdout, "127.0.0.1\n")

    def test_job(self):
        service, job = manifests("job.yaml")
        self.assertEqual([each["kind"] for each in (service, job)], ["Service", "Job"])
        name, spec = job["metadata"]["name"], job["spec"]
        pod = spec["template"]["spec"]
        [container] = pod["containers"]
        self.assertEqual(service["spec"], {"clusterIP": "None", "selector": {"job-name": name}})
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.assertEqual(spec["completionMode"], "Indexed")
        [volume] = pod["volumes"]
        self.assertIn(f"create secret generic {volume['secret']['secretName']} --from-literal=secret=",
                      read(os.path.join(SCRIPTS, "kubernetes", "job.yaml")))
        [mount] = container["volumeMounts"]
        self.assertEqual(mount["name"], volume["name"])
        variables = {each["name"]: each for each in container["env"]}
        meeting = variables["RUEDA_MEETING_ADDRESS"]["value"].split(":")[0]
        self.assertEqual(meeting, f"{name}-0.{service['metadata']['name']}")
        self.assertEqual(int(variables["WORLD_SIZE"]["value"]), spec["completions"])
        self.assertEqual(spec["parallelism"], spec["completions"])
        for space in self.cluster.names:  # what the Service does
            with open(f"/etc/netns/{space}/hosts", "a", encoding="ascii") as file:
                file.write(f"10.77.0.1 {meeting}\n")
        mounted = os.path.join(self.folder, "mounted")
        os.mkdir(mounted)
        with open(os.path.join(mounted, "secret"), "w", encoding="ascii") as file:
            file.write("sixty-four hexadecimal digits")
        pods = [self.start_pod(index, f"{name}-{index}", container,
                               {mount["mountPath"]: mounted, "/tmp/secret": f"{self.folder}/{index}"})
                for index in range(spec["completions"])]
        text = ""
        for index, each in enumerate(pods):
            out, _ = each.communicate(timeout=HANG)
            self.assertEqual(each.returncode, 0, out)
            text += "".join(f"[pod/{name}-{index}-#/{container['name']}] {line}\n" for line in out.splitlines())
        self.expect_printed(os.path.join(SCRIPTS, "kubernetes", "job.yaml"), text)

    def start_pod(self, index, hostname, container, paths):
        """`paths`: where what is at some in the pod is here."""
        def here(word):
            for inside, outside in paths.items():
                word = word.replace(inside, outside)
            return self.inside(word)

        fields = {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
                  "metadata.labels['batch.kubernetes.io/controller-uid']": "6ab1-12f8-" + os.path.basename(self.folder)}
        environment = {"PATH": os.environ["PATH"]}
        for each in container["env"]:
            if "value" in each:
                environment[each["name"]] = here(each["value"])
            elif "fieldRef" in each["valueFrom"]:
                environment[each["name"]] = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                limit = each["valueFrom"]["resourceFieldRef"]["resource"].removeprefix("limits.")
                environment[each["name"]] = container["resources"]["limits"][limit]
        words = map(here, container["command"] + container["args"])
        return subprocess.Popen(
            self.cluster.command(index, "unshare", "--uts", "sh", "-c", f'hostname {hostname}; exec "$@"', "sh", *words),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


class Scripts(unittest.TestCase):
    def test_shellcheck_finds_nothing(self):
        support.needs("shellcheck")
        found = [os.path.join(folder, name) for folder, _, names in os.walk(SCRIPTS) for name in names
                 if name.endswith((".sh", ".sbatch", ".pbs", ".lsf"))]
        self.assertGreater(len(found), 6)
        done = subprocess.run(["shellcheck", *found], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    support.main()
