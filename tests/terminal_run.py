"""A run in a process of its own, as `regen run` shows it, without Ray: python -m tests.terminal_run FOLDER [--json].

For tests that look at a terminal. The spec is FOLDER/spec.yaml.
"""

from __future__ import annotations

import sys
from pathlib import Path

from regen.observe.json_lines import for_machines
from regen.observe.live import Aside, TirelessConsole, display
from regen.observe.log import Log, accept_any_text
from regen.run.command import conduct, ending, settle
from regen.run.local import LocalCluster
from regen.run.start import StartOptions, begin
from regen.spec import load_spec

DRAIN_SECONDS = 60.0


def main(folder: Path, as_json: bool) -> int:
    accept_any_text()
    log = Log()
    with for_machines(as_json) as lines:
        begun = begin(load_spec(folder / "spec.yaml"), StartOptions(processes=1), log)
        if lines is not None:
            lines.session = begun.worker_setup.run.session
        with Aside(display(TirelessConsole(stderr=as_json), log, lines)) as shown:
            conduct(begun, LocalCluster(), shown, DRAIN_SECONDS)
        end = ending(begun.storage.url, settle(begun, log), allow_rejects=False)
        if lines is not None:
            lines.end(end.outcome, end.exit_code)
    return end.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--json" in sys.argv))
