"""Ranks for the tests: threads of this process, or processes by ruedarun."""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from rueda.core import _context, _library


class Failed(AssertionError):
    """What failed on a rank."""


def run_threads(size: int, body: Callable[..., Any], *args: Any, **knobs: Any) -> list[Any]:
    """body(*args) on `size` ranks that are threads; what each returned, by rank. A rank that raises
    ends the job for the others, and its error is raised here."""
    group = ctypes.c_void_p()
    _context.check(_library.lib.rueda_group_create(size, ctypes.byref(group)))
    results: list[Any] = [None] * size
    errors: list[str] = []

    def rank_main(rank: int) -> None:
        context = None
        try:
            context = _context.start(knobs, group=group.value, group_rank=rank)
            _library.lib.rueda_set_thread_context(context)
            results[rank] = body(*args)
        except BaseException:
            errors.append(f"rank {rank}:\n{traceback.format_exc()}")
            if context is not None:
                _library.lib.rueda_abort(context, b"a rank's test failed")
        finally:
            _library.lib.rueda_set_thread_context(None)
            if context is not None:
                _library.lib.rueda_shutdown(context)
                _library.lib.rueda_context_destroy(context)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _library.lib.rueda_group_destroy(group)
    if errors:
        raise Failed("\n".join(errors))
    return results


@pytest.fixture
def on_threads() -> Callable[..., list[Any]]:
    return run_threads


# For test/summary.py.
@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        terminalreporter.write_line(f"SKIPPED in part: {report.nodeid.split('::')[-1]}: {reason}")
