"""The error tree. Each branch says who retries; each error carries the exit code that the command line ends with.

    RegenError
    |-- UserError            nobody retries: the message says what to change
    |   |-- SpecError            the spec file or the command line            exit 2
    |   |-- SourceError          a source that cannot be found at all         exit 2
    |   |-- PreflightRefused     what was asked for cannot work               exit 3
    |   |-- ExportRefused        nothing can be exported truthfully           exit 1
    |   |-- RunHeld              somebody else runs this folder               exit 4
    |   `-- FingerprintDrift     what shapes outputs has changed              exit 5
    |-- StoreError           the bytes under the run folder
    |   |-- StoreUnavailable     the caller retries the same bytes            exit 7
    |   |-- StoreRefused         nobody: permission, unsuitable store         exit 7
    |   |-- JournalDamaged       nobody: a published file is not what it was  exit 6
    |   `-- Fenced               nobody: another session has claimed the run  exit 4
    |-- EngineError          the driver replaces the replica; its rows lose no attempt
    |   |-- EngineStartFailed    bounded restarts, then the run ends          exit 8
    |   |-- EngineDied                                                        exit 8
    |   |-- EngineStalled                                                     exit 8
    |   |-- EngineGarbage                                                     exit 8
    |   |-- NodeLost             no restart is used up: it was nobody's fault  exit 8
    |   `-- ServerUnavailable    a server of somebody else's does not answer   exit 8
    |-- SpeculationFailed    nobody: measured not to work, and the spec says `fail`  exit 11
    `-- RowError             only that row is concerned
        |-- RowRefused           nobody: the row can never be sent, it is `rejected`
        `-- RowFailed            the schedule, until `limits.attempts` are used up

Every error here is picklable (all state is in `args`): errors cross processes under Ray.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the `regen` command ends with. Documented in docs/exit-codes.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    PREFLIGHT = 3
    HELD = 4
    DRIFT = 5
    DAMAGED = 6
    STORE = 7
    ENGINE = 8
    DRAINED = 9
    COMPLETED_WITH_REJECTS = 10
    SPECULATION = 11


class RegenError(Exception):
    """Base of every error that regen raises on purpose."""

    exit_code: ExitCode = ExitCode.FAILED


class UserError(RegenError):
    """Nobody retries. The message says what was found, where, and what to do."""

    exit_code = ExitCode.USAGE


class SpecError(UserError):
    """The spec file, or an option, is not acceptable. The message names the path of the key."""


class SourceError(UserError):
    """A source cannot be found or opened at all (one bad *row* is never an error)."""


class PreflightRefused(UserError):
    """What the spec asks for cannot work, known before an engine was started."""

    exit_code = ExitCode.PREFLIGHT


class ExportRefused(UserError):
    """What an export would hold is not what the target saw and sampled, or it would be empty."""

    exit_code = ExitCode.FAILED


class RunHeld(UserError):
    """Another live session runs this folder."""

    exit_code = ExitCode.HELD


class FingerprintDrift(UserError):
    """Something that shapes outputs differs from what the run was begun with."""

    exit_code = ExitCode.DRIFT


class StoreError(RegenError):
    """Something about the bytes under the run folder."""

    exit_code = ExitCode.STORE


class StoreUnavailable(StoreError):
    """The store did not answer or has no room now: the same bytes may be tried again."""


class StoreRefused(StoreError):
    """The store will never take this: no permission, read-only, or unsuitable for a journal."""


class JournalDamaged(StoreError):
    """A published file is missing, truncated or altered. `args[0]` names it."""

    exit_code = ExitCode.DAMAGED


class Fenced(StoreError):
    """Another session has claimed the run since; this one must stop and not write again."""

    exit_code = ExitCode.HELD


class EngineError(RegenError):
    """The replica cannot go on. Its rows go elsewhere and lose no attempt."""

    exit_code = ExitCode.ENGINE


class EngineStartFailed(EngineError):
    """The engine refused to start, or did not within `engine.start_timeout_seconds`."""


class EngineDied(EngineError):
    """The engine, or one of its processes, is gone."""


class EngineStalled(EngineError):
    """Work was assigned and no token came for `engine.stall_timeout_seconds`."""


class EngineGarbage(EngineError):
    """Its answers are loops, walls or nothing where those of other replicas, or its own before, are not."""


class NodeLost(EngineError):
    """A machine under the engine is gone: it says nothing of the engine, nor of the rows that it had."""


class ServerUnavailable(EngineError):
    """A server that somebody else runs cannot be reached, or does not answer as such a server does.

    Rows that were in work there are not to blame: they go back to the queue and are no suspects.
    """


class SpeculationFailed(RegenError):
    """Speculation was measured not to work, or not to be measurable, where the spec asks to stop then."""

    exit_code = ExitCode.SPECULATION


class RowError(RegenError):
    """Only one row is concerned."""


class RowRefused(RowError):
    """This row can never be sent. `args` are (stage, reason, detail)."""

    def __init__(self, stage: str, reason: str, detail: str = "") -> None:
        super().__init__(stage, reason, detail)
        self.stage, self.reason, self.detail = stage, reason, detail

    def __str__(self) -> str:
        return f"{self.stage}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


class RowFailed(RowError):
    """This attempt failed, another may succeed. `args` are (reason, detail)."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return self.reason + (f" ({self.detail})" if self.detail else "")
