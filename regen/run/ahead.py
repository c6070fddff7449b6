"""The cluster comes up, and its processes import what an engine is made of, while the plan is made.

Guarantees: nothing is started before `begin`, which the start calls when nothing can refuse the run any more but its
sources; no engine is loaded here, and no row is leased. What goes wrong is said by `joined`, in its turn; where that is
never called, the cluster is left again. Costs a thread; where engines are few and the plan is large, their devices are
reserved while it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from regen.run.own_cluster import prepare_own_cluster
from regen.spec import RunSpec

if TYPE_CHECKING:
    from regen.run.cluster import Joined


class ClusterAhead(AbstractContextManager["ClusterAhead"]):
    """The cluster of one command, from whenever it is wanted to the end of the block."""

    def __init__(self, address: str | None, verbosity: int, imported: Callable[[], None] = lambda: None) -> None:
        """`imported` is called when Ray is: it has loggers of its own."""
        self._address = address
        self._verbosity = verbosity
        self._imported = imported
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cluster")
        self._joining: Future[Joined] | None = None

    def begin(self, spec: RunSpec) -> None:
        """Once, for engines of this spec; returns at once."""
        prepare_own_cluster(self._address)
        self._joining = self._thread.submit(self._join, spec)

    def joined(self, spec: RunSpec) -> Joined:
        """Waits for it; begins now what was not begun. Raises UserError when no cluster answers."""
        if self._joining is None:
            self.begin(spec)
        assert self._joining is not None
        return self._joining.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._joining is not None and self._joining.exception() is None:
                from regen.run import cluster

                cluster.disconnect()
        finally:  # after that: the kernel ends a local cluster's processes with the thread that has started them
            self._thread.shutdown()

    def _join(self, spec: RunSpec) -> Joined:
        from regen.run import cluster

        self._imported()
        return cluster.join(spec, self._address, self._verbosity)
