"""Ctrl-C and other exceptions that come in the middle of a call, on ranks that are processes.

Functions that tests define within themselves are pickled by value and run on every rank.
"""

import pytest

import rueda

FUNCTIONS = ["allreduce", "grouped_allreduce", "barrier", "broadcast_object", "allgather_object"]
FUNCTIONS += ["join", "add_process_set"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ctrl_c_is_heard_while_another_rank_is_awaited(name, tmp_path):
    def fn():
        import os
        import signal
        import threading
        import time

        import numpy as np

        import rueda

        rueda.init()
        arguments = {
            "allreduce": (np.ones(3), "named"),
            "grouped_allreduce": ([np.ones(3)], "named"),
            "broadcast_object": ("o", 1),
            "allgather_object": ("o",),
            "add_process_set": ([0],),
        }
        call = getattr(rueda, name)
        heard = True
        if rueda.rank() == 0:
            done = threading.Event()

            def interrupt():
                while not done.wait(0.3):
                    os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            try:
                call(*arguments.get(name, ()))
                heard = False
            except KeyboardInterrupt:
                done.set()
            thread.join()
        # What was interrupted goes on, and is the other rank's counterpart.
        if rueda.rank() == 0:
            heard_at.touch()
        else:
            while not heard_at.exists():
                time.sleep(0.01)
            call(*arguments.get(name, ()))
        if name not in ("join", "barrier"):
            assert rueda.allreduce(np.ones(2), "later").tolist() == [1.0, 1.0]
        return heard

    heard_at = tmp_path / "heard"
    assert rueda.run(fn, np=2) == [True, True]


@pytest.mark.parametrize("name", ["broadcast_object", "add_process_set"])
def test_a_call_on_another_thread_is_no_thread_that_may_come_back(name):
    """A deadlock ends after its limit, not after six, which is for a main thread at work."""

    def fn():
        import time

        import numpy as np
        import pytest

        import rueda

        rueda.init({"deadlock_timeout_s": 5})
        rueda.allreduce(np.ones(1), "the main thread has waited")
        began = time.monotonic()
        with pytest.raises(rueda.RuedaError, match="RUEDA_DEADLOCK_TIMEOUT_S|aborted"):
            if rueda.rank() == 0:
                getattr(rueda, name)(*{"broadcast_object": (3, 0)}.get(name, ([0],)))
            else:
                rueda.allreduce(np.ones(1), "other")
        return time.monotonic() - began

    assert max(rueda.run(fn, np=2)) < 5 * 5


def test_memory_of_an_interrupted_operation_is_kept_until_its_end():
    def fn():
        import gc
        import os
        import signal
        import threading

        import numpy as np

        import rueda
        from rueda.core import _operations

        rueda.init()

        ones = np.ones(8 << 20, np.float32)

        def reduce():
            return rueda.allreduce(ones, "large", rueda.Sum)

        if rueda.rank() == 0:
            threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            with_error = False
            try:
                reduce()
            except KeyboardInterrupt:
                with_error = True
            assert with_error
            gc.collect()
            assert len(_operations._left_behind) == 1
            rueda.broadcast_object(None)
            rueda.barrier()
            rueda.barrier()
            assert not _operations._left_behind
        else:
            rueda.broadcast_object(None)
            assert (reduce() == 2).all()
            rueda.barrier()
            rueda.barrier()

    rueda.run(fn, np=2)


def test_what_is_done_with_a_result_may_use_collectives():
    def fn():
        import numpy as np

        import rueda

        rueda.init()
        handle = rueda.allreduce_async(np.ones(2), "outer", rueda.Sum)
        handle.then(lambda result: rueda.allgather(result, "inner"))
        other = rueda.allreduce_async(np.ones(2), "other", rueda.Sum)
        other.then(lambda result: result + handle.wait()[:2])
        return other.wait().tolist()

    assert rueda.run(fn, np=2) == [[4.0, 4.0]] * 2
