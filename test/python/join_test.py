"""What the others do after a rank has joined: against one process that has their batches."""

from __future__ import annotations

import numpy as np
import pytest

import rueda

RANKS = 3


def test_every_operation_goes_on_without_the_rank_that_joined(on_threads):
    def body():
        rank = rueda.rank()
        if rank == 1:
            return rueda.join()
        own = np.full((rank + 1, 2), rank, "float32")
        rows = rueda.allgather(own, "rows")
        assert rows.shape == (4, 2)
        assert rows[:, 0].tolist() == [0, 2, 2, 2]
        assert rueda.allgather_object({"rank": rank}) == [{"rank": 0}, {"rank": 2}]
        assert rueda.broadcast(own[:1], 2).tolist() == [[2, 2]]
        assert rueda.broadcast_object(rank, 2, "object") == 2
        # Rank r sends [r, r] to each; what is for rank 1 is lost.
        received = rueda.alltoall(np.full(2 * RANKS, rank, "float32"))
        assert received.tolist() == [0, 0, 2, 2]
        summed = rueda.reducescatter(np.full((RANKS, 2), rank + 1, "float32"), op=rueda.Sum)
        assert summed.tolist() == [[4, 4]]
        average = rueda.reducescatter(np.full((RANKS, 2), rank + 1, "float64"))
        assert average == pytest.approx(np.full((1, 2), 4 / RANKS))
        rueda.barrier()
        return rueda.join()

    assert len(set(on_threads(RANKS, body))) == 1


def test_a_root_that_has_joined_is_an_error_on_the_others(on_threads):
    def body():
        if rueda.rank() != 1:
            for name in ("b", None):
                with pytest.raises(
                    rueda.RuedaError, match="rank 1 has joined and can't be the root"
                ):
                    rueda.broadcast(np.ones(2), 1, name)
            with pytest.raises(rueda.RuedaError, match="rank 1 has joined and can't be the root"):
                rueda.broadcast_object(None, 1)
            assert rueda.allreduce(np.ones(2), op=rueda.Sum).tolist() == [2, 2]
        rueda.join()

    on_threads(RANKS, body)


def test_sparse_gradients_and_batch_norm_go_on(on_threads):
    """Rank r has r + 1 batches. Averages are over all ranks, statistics over those that go on."""
    torch = pytest.importorskip("torch")
    import rueda.torch as hvd

    class Net(torch.nn.Module):
        def __init__(self, norm):
            super().__init__()
            generator = torch.Generator().manual_seed(5)
            self.words = torch.nn.Embedding(20, 4, sparse=norm is hvd.SyncBatchNorm)
            self.norm = norm(4)
            self.out = torch.nn.Linear(4, 1)
            with torch.no_grad():
                for p in self.parameters():
                    p.copy_(torch.randn(p.shape, generator=generator))

        def forward(self, ids):
            return self.out(self.norm(self.words(ids).mean(1))).pow(2)

    def ids(rank, step):
        generator = torch.Generator().manual_seed(10 * rank + step)
        return torch.randint(0, 20, (3 + rank, 2), generator=generator)

    def state(net):
        return {key: value.detach().clone() for key, value in net.state_dict().items()}

    def body():
        net, rank = Net(hvd.SyncBatchNorm), hvd.rank()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
        for step in range(rank + 1):
            optimizer.zero_grad()
            net(ids(rank, step)).mean().backward()
            optimizer.step()
        assert hvd.join() == RANKS - 1
        return state(net)

    alone = Net(torch.nn.BatchNorm1d)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    states = []
    for step in range(RANKS):
        batches = [ids(rank, step) for rank in range(step, RANKS)]
        optimizer.zero_grad()
        losses = alone(torch.cat(batches)).split([len(batch) for batch in batches])
        (sum(loss.mean() for loss in losses) / RANKS).backward()
        optimizer.step()
        states.append(state(alone))
    for found, expected in zip(on_threads(RANKS, body), states, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
