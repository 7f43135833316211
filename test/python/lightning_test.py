"""Strategies for Lightning, by the real Trainer on two ranks. Ranks are started as few times as
possible: it is the imports that take time."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("tensorboard")

import rueda  # noqa: E402

HERE = pathlib.Path(__file__).parent
CASES = str(HERE / "lightning_cases.py")

sys.path.insert(0, str(HERE))
import lightning_cases as cases  # noqa: E402
from lightning.fabric.plugins import environments  # noqa: E402

from rueda.lightning import (  # noqa: E402
    DataParallelStrategy,
    RuedaEnvironment,
    RuedaStrategy,
    _data_parallel,
)

BAGUA = [
    f"bagua {name}"
    for name in (
        "gradient_allreduce",
        "bytegrad",
        "qadam",
        "decentralized",
        "low_precision_decentralized",
        "async",
    )
]
STRATEGIES = ["rueda", "horovod", "ddp_sharded", "dp", "ddp2", *BAGUA]
ON_PARTS = ("dp", "ddp2")  # of each batch
EXACT = ("rueda", "horovod", "ddp_sharded", "dp", "ddp2", BAGUA[0], BAGUA[1], BAGUA[3], BAGUA[4])
OF_GRADIENTS = ("rueda", "horovod", "ddp_sharded", "dp", "ddp2", BAGUA[0], BAGUA[1])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two ranks of ruedarun come to, by rank."""
    folder = str(tmp_path_factory.mktemp("lightning"))
    return rueda.run(cases.under_one_launcher, (STRATEGIES, folder), np=2)


@pytest.fixture
def facts(found, request):
    return [rank["features"][request.param] for rank in found]


every_strategy = pytest.mark.parametrize("facts", STRATEGIES, indirect=True)


@every_strategy
def test_lightning_knows_who_is_who(facts):
    for rank, own in enumerate(facts):
        assert own["place"] == [rank, 2, rank, 0]
        assert own["rank_zero_only"] == [rank, rank]
        assert own["is_distributed"] is True and own["sampler"] == "DistributedSampler"


@pytest.mark.parametrize("name", STRATEGIES)
def test_ranks_share_out_the_samples(found, name):
    """None of them has all data."""
    first, second = (rank["features"][name]["seen"] for rank in found)
    numbers = [n for batch in [*first, *second] for n in batch]
    assert sorted(numbers) == list(range(cases.SAMPLES))
    assert {len(batch) for batch in first} == {4 if name in ON_PARTS else 8}


@every_strategy
def test_all_stop_at_the_same_epoch(facts):
    """Rank 1 alone has a reason to."""
    steps = [own["steps"] for own in facts]
    assert [own["epochs"] for own in facts] == [2, 2] and steps[0] == steps[1]
    assert [own["metrics"]["own"] for own in facts] == [-1, 1]


@every_strategy
def test_what_is_logged_is_averaged_over_ranks(facts):
    for name in ("train_loss", "accuracy", "loss"):
        assert facts[0]["metrics"][name] == facts[1]["metrics"][name]
    assert facts[0]["logged"] == pytest.approx(facts[0]["metrics"]["train_loss"])
    accuracy = facts[0]["metrics"]["accuracy"] * cases.SAMPLES
    assert accuracy == pytest.approx(round(accuracy))  # of all samples
    assert facts[0]["tested"]["test_loss"] == pytest.approx(facts[0]["validated"]["loss"])


@every_strategy
def test_rank_0_writes_checkpoints_and_shows_progress(facts):
    assert facts[0]["writes"] == [4, 2]  # the best one and the last one, in two epochs
    assert facts[1]["writes"] == [0, 2]
    assert facts[0]["bar"] and not facts[1]["bar"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_gradients_are_clipped_when_they_have_been_combined(found, name):
    first, second = (rank["features"][name] for rank in found)
    assert max(first["clipped"] + second["clipped"]) <= cases.CLIP * 1.001
    assert min(first["norms"]) > cases.CLIP
    assert (first["norms"] == second["norms"]) == (name in OF_GRADIENTS)


@every_strategy
def test_the_other_loops(facts):
    tested = [n for own in facts for n in own["tested_samples"]]
    assert sorted(tested) == list(range(cases.SAMPLES))
    assert all(own["predictions_right"] for own in facts)


@pytest.mark.parametrize("name", STRATEGIES)
def test_predictions_are_of_the_ranks_samples_or_with_dp_of_all(found, name):
    first, second = (rank["features"][name]["predicted"] for rank in found)
    everything = list(range(cases.SAMPLES))
    if name in ON_PARTS:
        assert first == second == everything
    else:
        assert sorted(first + second) == everything


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_resumed_training_is_the_one_that_was_left(found, name):
    for rank in found:
        own = rank["features"][name]
        tolerance = 1e-6 if name in EXACT else 0.05  # what was in 8 bits, and who came when
        assert own["resumed"] == pytest.approx(own["whole"], rel=tolerance)
        base = {"horovod": 0.1, "bagua qadam": 0.01}.get(name, 0.05)
        assert own["rate"] == pytest.approx(base * 0.9**2)


@pytest.mark.parametrize("name", STRATEGIES)
def test_batches_that_are_accumulated_are_combined_once(found, name):
    for rank in found:
        own = rank["features"][name]
        steps = 4 if name in ON_PARTS else 2
        assert own["accumulated"] == [steps, steps, steps if name in OF_GRADIENTS else 0]
        assert own["finite"]


@every_strategy
def test_it_learns_and_the_ranks_end_with_one_model(facts):
    assert all(own["learned"] and own["agreed"] for own in facts)


def test_results_are_those_of_one_process(found):
    for rank in found:
        for name, distance in rank["equalities"].items():
            assert distance < 1e-5, name


def test_batch_normalisation_over_ranks(found):
    assert [rank["batch_norm"] for rank in found] == [(True, "rueda.lightning._ddp")] * 2


@pytest.mark.parametrize("name", ["horovod", "bagua qadam", "bagua decentralized"])
def test_a_checkpoint_after_fit_is_that_of_the_last_epoch(found, name):
    for rank in found:
        during, after, later = rank["saved"][name]
        assert during == after == later and "algorithm" in during
        assert ("'ranks': {0: " in during) is (name == "bagua decentralized")


def test_mistakes_are_told(found):
    texts = found[0]["mistakes"]
    for text, expected in zip(
        texts,
        ("no algorithm 'gossip'", "no option", "loss is 'max'", "devices=3", "num_nodes=2"),
        strict=True,
    ):
        assert expected in text


# ---- who starts the ranks ----


def run(command, **environment):
    """The FACTS that were printed, by their first word and the rank."""
    places = ("RANK", "WORLD", "LOCAL", "NODE", "GROUP", "MASTER", "RUEDA", "SLURM", "PMI", "OMPI")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(places)}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=200,
        env=clean | {"OMP_NUM_THREADS": "1"} | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return by_rank(done.stdout)


def by_rank(text):
    facts = [json.loads(line) for line in re.findall(r"FACTS (\[.*?\])", text)]
    return {(fact[0], fact[1]): fact[2:] for fact in facts}


def total(batch_size, rate=0.1, epochs=1):
    return pytest.approx(
        cases.plain(batch_size, rate, epochs=epochs).double().sum().item(), abs=1e-4
    )


def test_lines_of_tutorials():
    """Without a launcher: Lightning starts the other rank."""
    facts = run([sys.executable, CASES, "lines"])
    for kind, batch_size in (("ddp", 16), ("dp", 8), ("ddp2", 8), ("bagua", 16), ("rueda", 16)):
        for rank in range(2):
            backend = "gloo" if kind == "ddp" else "rueda"
            assert facts.pop((kind, rank)) == [2, rank, 0, backend, total(batch_size)]
    assert not facts


def test_spawned_processes():
    facts = run([sys.executable, CASES, "spawned"])
    assert list(facts) == [("ddp_spawn", total(16)), ("rueda_spawn", total(16))]


def test_mpirun_with_lightnings_own_strategy():
    program = shutil.which("mpirun")
    version = program and subprocess.run([program, "--version"], capture_output=True, text=True)
    if not version or "Open MPI" not in version.stdout:
        pytest.skip("Open MPI's mpirun is not installed")
    options = ["--allow-run-as-root", "--oversubscribe", "-np", "2"]
    facts = run([program, *options, sys.executable, CASES, "place"])
    for rank in range(2):
        assert facts["place", rank] == [2, rank, 0, "gloo", total(16)]


def test_ddp2_is_dp_inside_a_host_and_ddp_across(tmp_path):
    """Four processes that take each other for two hosts."""
    common = {k: v for k, v in os.environ.items() if not k.startswith("RUEDA_")}
    common |= {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29433",
        "RUEDA_SHARED_DIR": str(tmp_path),
        "RUEDA_NETWORK_INTERFACE": "lo",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, CASES, "hosts"],
            env=common | {"RANK": str(rank), "RUEDA_HOST_ID": f"host {rank // 2}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(4)
    ]
    for rank, process in enumerate(ranks):
        out, _ = process.communicate(timeout=200)
        assert process.returncode == 0, out
        expected = [4, rank % 2, rank // 2, "rueda", total(32, 0.05, 2)]
        assert by_rank(out)["hosts", rank] == expected


LAUNCHERS = {
    "ruedarun": {"RUEDA_RANK": "0", "RUEDA_SIZE": "1"},
    "torchrun": {"TORCHELASTIC_RUN_ID": "a", "RANK": "0", "WORLD_SIZE": "2"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
    "Hydra": {"MPI_LOCALNRANKS": "2", "PMI_RANK": "0", "PMI_SIZE": "2"},
    "srun": {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
    "jsrun": {"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "2"},
    "a script": {"RANK": "1", "WORLD_SIZE": "2"},
    "nobody": {"WORLD_SIZE": "2", "LOCAL_RANK": "1"},  # of ranks that Lightning has started
    "mpirun -np 1": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers_are_known(monkeypatch, name):
    for variable in [v for own in LAUNCHERS.values() for v in own]:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in LAUNCHERS[name].items():
        monkeypatch.setenv(variable, value)
    starts = name not in ("nobody", "mpirun -np 1")
    assert RuedaEnvironment.detect() is starts
    strategy = RuedaStrategy()
    strategy.cluster_environment = environments.LightningEnvironment()
    assert isinstance(strategy.cluster_environment, RuedaEnvironment) is starts
    # A job of SLURM around another launcher; what srun itself has started Lightning sees well.
    slurm = object.__new__(environments.SLURMEnvironment)
    strategy.cluster_environment = slurm
    replaced = isinstance(strategy.cluster_environment, RuedaEnvironment)
    assert replaced is (starts and name not in ("srun", "torchrun"))


def test_a_part_of_a_batch_is_weighed_by_its_samples():
    strategy = DataParallelStrategy()
    strategy.local_place = lambda: (1, 2)
    strategy._lightning_module = None
    strategy._parallel_devices = [cases.torch.device("cpu")] * 2
    x = cases.torch.arange(5)
    taken = strategy.batch_to_device({"x": x, "text": "as it is", "pair": (x, 3)})
    assert taken["x"].tolist() == [3, 4] and taken["text"] == "as it is"
    assert taken["pair"][0].tolist() == [3, 4] and taken["pair"][1] == 3
    assert strategy._factor == pytest.approx(2 * 2 / 5)
    strategy.batch_to_device([x[:1]])
    assert strategy._factor == 0


class Encoding(collections.UserDict):
    """As Hugging Face's BatchEncoding: no dict, and with more than its items."""

    def __init__(self, data, kind="text"):
        super().__init__(data)
        self.kind = kind


def test_batches_that_are_other_mappings_are_shared_out():
    x = cases.torch.arange(4)
    rows = slice(2, 4)
    default = collections.defaultdict(list, x=x, text=["as it is"])
    fixed = types.MappingProxyType({"x": x})
    for batch in (default, Encoding({"x": x}, "own"), collections.OrderedDict(x=x), fixed):
        assert _data_parallel._first_tensor(batch) is x
        taken = _data_parallel._taken(batch, rows)
        assert type(taken) is type(batch) and taken["x"].tolist() == [2, 3]
        assert batch["x"] is x
        joined = _data_parallel._joined([{**taken, "x": x[:2]}, taken])
        assert joined["x"].tolist() == [0, 1, 2, 3]
        assert type(_data_parallel._joined([taken, taken])) is type(batch)
        assert getattr(taken, "kind", "own") == "own"
    assert _data_parallel._taken(default, rows)["more"] == []
