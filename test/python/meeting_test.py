"""How process groups of torch.distributed meet, and what a stranger who writes to their store can
do about it."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import sys

import pytest

torch = pytest.importorskip("torch")

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import hostile_store  # noqa: E402

SEEDS = int(os.environ.get("SOAK_SEEDS", "500"))
RANKS = 3


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def spawn(body, size, *args):
    torch.multiprocessing.spawn(body, (size, free_port(), *args), nprocs=size)


@pytest.fixture
def folder(tmp_path):
    """Where ranks may have written something: they have not."""
    path = tmp_path / "ranks"
    path.mkdir()
    yield path
    assert list(path.iterdir()) == []


def secret_in(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return {"RUEDA_SECRET_FILE": str(path), "RUEDA_NETWORK_INTERFACE": "lo"}


@pytest.mark.parametrize(("hosts", "seeds"), [(1, SEEDS), (2, SEEDS // 5)])
def test_what_a_stranger_writes_is_an_error_on_all_ranks(tmp_path, folder, hosts, seeds):
    variables = secret_in(tmp_path) if hosts > 1 else {}
    spawn(hostile_store.read_altered, RANKS, str(folder), range(seeds), variables, hosts)
    for rank in range(RANKS):
        ends = json.loads((tmp_path / f"ranks.{rank}").read_text())
        for seed, key, alteration, error, left, seconds in ends:
            at = f"seed {seed}, rank {rank}, key '{key}', {alteration}: {error or 'no error'}"
            assert f"key '{key}'" in error, at
            assert left == [], at
            assert seconds < hostile_store.START_S, at
        assert len(ends) == seeds


def test_a_stranger_who_is_first_in_a_real_store(folder):
    spawn(hostile_store.stranger_was_first, 2, str(folder))


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_store_is_used_again_after_groups_that_failed(ranks):
    spawn(hostile_store.again, ranks)


def test_a_rank_that_comes_late_is_told_what_the_others_were():
    spawn(hostile_store.late_to_a_refusal, RANKS)


def test_a_rank_that_never_answers_is_named_by_its_key():
    spawn(hostile_store.dies_in_the_middle, 3)


def test_torchs_own_call_and_a_store_that_is_used_again(folder):
    spawn(hostile_store.init_process_group, 2, str(folder))


def test_notices_of_messages_for_any_source():
    spawn(hostile_store.any_source, 2)
