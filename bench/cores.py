"""Give a server's forward passes cores of their own, so that its clients do not slow it."""

from __future__ import annotations

import os

import psutil

from sgl_compiled.server import SGLangServer

__all__ = ["scheduler_threads", "separate"]


def scheduler_threads() -> int:
    """OpenMP threads for :func:`separate`: one core is left to everything else."""
    return max(len(os.sched_getaffinity(0)) - 1, 1)


def separate(server: SGLangServer) -> None:
    """Move everything but the scheduler, this process included, to the last core, and the scheduler to the others.

    OpenMP threads wait for each other in a spin: while any other process holds one of their cores, every pass lasts
    as long as the slowest thread is kept waiting. Start the server with ``OMP_NUM_THREADS`` of
    :func:`scheduler_threads`. Does nothing on a single core.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    main = psutil.Process(server.pid)
    for process in (psutil.Process(), main, *main.children(recursive=True)):
        theirs = cores[:-1] if "scheduler" in " ".join(process.cmdline()) else cores[-1:]
        for thread in process.threads():
            os.sched_setaffinity(thread.id, theirs)
