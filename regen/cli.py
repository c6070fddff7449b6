"""The `regen` command: parse, call, print. Everything heavy is imported by the command that needs it.

Exit codes are those of `errors.ExitCode` (docs/exit-codes.md). Errors that regen raises on purpose are printed as one
message; anything else is a defect and shows its trace.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from regen import __version__
from regen.errors import ExitCode, RegenError
from regen.observe.log import FORMAT_VARIABLE, Log, LogFormat, accept_any_text
from regen.records import Status

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from regen.observe.terminal_facts import TerminalFacts
    from regen.records import CoordinatorStatus
    from regen.run.commands.doctor import Report
    from regen.run.commands.doctor_servers import ServersReport
    from regen.run.commands.doctor_spec import SpecReport
    from regen.run.look import Look
    from regen.run.session import Standing
    from regen.run.start import Begun

app = typer.Typer(
    name="regen",
    help="Regenerate chat datasets through a target model, with speculation that is proven to work and to pay.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_LOG = Log()

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="The spec file (regen init writes a commented one).")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The run folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="For machines: one JSON document.")]
Address = Annotated[str | None, typer.Option(help="A Ray cluster to join; without, the job's own, or a local one.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Start although a holder seems alive: it will be fenced.")]
AcceptDrift = Annotated[bool, typer.Option("--accept-drift", help="Go on with changed settings; recorded in the run.")]
AllowRejects = Annotated[bool, typer.Option("--allow-rejects", help="Exit 0, not 10, when complete with rejects.")]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Show the output of engines and actors; -vv: all they say.")
]
AsJsonLines = Annotated[bool, typer.Option("--json", help="For machines: JSON lines on stdout (docs/terminal.md).")]


def _set_log_format(log_format: LogFormat | None) -> LogFormat | None:
    if log_format is not None:
        _LOG.format = log_format
        _LOG.adopt_loggers()
    return log_format


Logs = Annotated[
    LogFormat | None, typer.Option("--log-format", callback=_set_log_format, help="regen's own lines: text or json.")
]
LogsOfAll = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format", envvar=FORMAT_VARIABLE, callback=_set_log_format, help="regen's own lines: text or json."
    ),
]


def main() -> None:
    """The console script. Never returns."""
    accept_any_text()
    try:
        app()
    except RegenError as error:
        _LOG.error(str(error), error.exit_code)
        sys.exit(error.exit_code)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    log_format: LogsOfAll = None,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit()


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write the spec.")] = Path("regen.yaml"),
) -> None:
    """Write a commented spec to start from."""
    from regen.spec_text import commented_spec

    if path.exists():
        raise typer.BadParameter(f"{path} exists; regen init overwrites nothing")
    path.write_text(commented_spec(), encoding="utf-8")
    print(f"wrote {path}: set target.model and sources, then: regen plan {path}")


@app.command()
def plan(spec: Spec, as_json: AsJson = False) -> None:
    """Read all sources and show what would be run. Writes nothing into the run folder."""
    from regen.data.target import resolve_target
    from regen.observe.tables import plan_table
    from regen.run.start import StartOptions, dry_plan
    from regen.spec import load_spec
    from regen.store.storage import open_storage

    parsed = load_spec(spec)
    open_storage(parsed.output, parsed.store)  # an output that `run` would refuse is said now
    with dry_plan(parsed, resolve_target(parsed.target), StartOptions().processes) as planned:
        if as_json:
            print(planned.summary.to_json().decode("ascii"), end="")
        else:
            _console().print(plan_table(planned.summary.sources, planned.digest))


@app.command()
def preflight(spec: Spec, as_json: AsJson = False) -> None:
    """What files alone can tell about speculation; exit 3 when it cannot work."""
    from regen.data.target import resolve_target
    from regen.observe.tables import findings_table
    from regen.run.speculation.preflight import examine, refuse
    from regen.spec import load_spec
    from regen.store.storage import open_storage

    parsed = load_spec(spec)
    findings = examine(parsed, resolve_target(parsed.target), open_storage(parsed.output, parsed.store))
    if as_json:
        print(json.dumps([finding.to_json() for finding in findings], indent=1))
    elif findings:
        _console().print(findings_table(findings))
    else:
        print("preflight: speculation is off" if parsed.speculation is None else "preflight: nothing found")
    refuse(findings)


@app.command()
def doctor(
    subject: Annotated[
        str,
        typer.Argument(metavar="URL|SPEC", help="A running vLLM or SGLang server (http://HOST:PORT), or a spec file."),
    ],
    model: Annotated[str | None, typer.Option(help="Which of its models; without, the first.")] = None,
    seconds: Annotated[
        float, typer.Option(min=5, max=3600, help="No more than this; with a spec, its engine's start comes on top.")
    ] = 120.0,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Prompts at a time.")] = 8,
    draft: Annotated[str | None, typer.Option(help="The draft's folder, to look into its files.")] = None,
    expected: Annotated[str | None, typer.Option(help="From the draft's card, by position: 0.53,0.21,0.07.")] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="VAR", help="The variable that holds the key.")] = None,
    as_json: AsJson = False,
) -> None:
    """Whether speculation works at a running server, or in a spec's own engine, by raw counts; exit 3 if not.

    With a spec, only --seconds and --json count: the rest is what the spec says. Of a spec with servers, each is
    examined, --seconds for each.
    """
    if "://" in subject:
        from regen.run.commands.doctor import DoctorOptions, examine_server

        options = DoctorOptions(model, seconds, concurrency, draft, api_key_env, _shares(expected))
        report: Report | SpecReport | ServersReport = examine_server(subject, options, _say)
    else:
        from regen.observe.json_lines import engine_output_on_stderr
        from regen.run.commands.doctor_servers import examine_servers
        from regen.run.commands.doctor_spec import examine_spec
        from regen.spec import load_spec

        with engine_output_on_stderr(verbosity=0):
            spec = load_spec(Path(subject))
            report = (examine_servers if spec.engine.endpoints else examine_spec)(spec, seconds, _say)
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        _print_report(report)
    if report.exit_code is not ExitCode.OK:
        raise typer.Exit(report.exit_code)


@app.command()
def check(
    spec: Spec,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="ADDRESS", help="The Ray cluster; without, this job's or machine."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long nodes may take to answer.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Would this spec fit on that cluster, and is everything there on every node; exit 3 if not. Starts no engine."""
    from regen.observe.tables import facts_table, findings_table
    from regen.run.own_cluster import prepare_own_cluster

    prepare_own_cluster(cluster)
    from regen.run import cluster as ray_cluster
    from regen.run.fleet.fit import Evidence, demand_of, facts, fit, questions_of
    from regen.spec import load_spec, with_absolute_paths
    from regen.speculative.preflight import is_refused

    parsed = with_absolute_paths(load_spec(spec))
    demand, questions = demand_of(parsed), questions_of(parsed)
    ray_cluster.connect(cluster, verbosity=0)
    try:
        evidence = Evidence(demand, questions, ray_cluster.survey(questions, seconds), *ray_cluster.free_resources())
    finally:
        ray_cluster.disconnect()
    findings = fit(evidence)
    if as_json:
        print(json.dumps([finding.to_json() for finding in findings], indent=1))
    else:
        _console().print(facts_table("Cluster", facts(evidence)))
        if findings:
            _console().print(findings_table(findings, "Does not fit" if is_refused(findings) else "Fits"))
    if is_refused(findings):
        raise typer.Exit(ExitCode.PREFLIGHT)


@app.command()
def run(
    spec: Spec,
    address: Address = None,
    take_over: TakeOver = False,
    accept_drift: AcceptDrift = False,
    allow_rejects: AllowRejects = False,
    as_json: AsJsonLines = False,
    log_format: Logs = None,
    verbose: Verbose = 0,
) -> None:
    """Start the run of this spec, or continue it. Ctrl-C drains it, a second one stops it."""
    from regen.run.start import StartOptions, begin
    from regen.spec import load_spec

    options = StartOptions(take_over=take_over, accept_drift=accept_drift)
    _conduct(lambda: begin(load_spec(spec), options, _say), address, allow_rejects, as_json, verbose)


@app.command()
def calibrate(
    spec: Spec,
    address: Address = None,
    take_over: TakeOver = False,
    again: Annotated[bool, typer.Option("--again", help="Measure although it was measured before.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Measure whether speculation pays on the run's own rows, then stop. The rows made count toward the run.

    On a finished run nothing is left to measure with: what was chosen before is shown, and without that it is exit 1.
    """
    from regen.observe.tables import calibration_table
    from regen.run import session
    from regen.run.setup import Purpose
    from regen.run.speculation.chosen import require_speculation, standing_choice
    from regen.run.start import StartOptions, begin
    from regen.spec import load_spec

    parsed = load_spec(spec)
    require_speculation(parsed)
    purpose = Purpose.CALIBRATE_AGAIN if again else Purpose.CALIBRATE
    begun = begin(parsed, StartOptions(take_over=take_over, purpose=purpose), _say)
    choice = None if again else standing_choice(begun.storage, begun.record.spec)
    found = session.standing(begun.storage)
    if choice is None and not found.is_finished:
        _drive(begun, address, verbose, as_json)
        newest, found = standing_choice(begun.storage, begun.record.spec), session.standing(begun.storage)
        choice = newest if newest and newest.session == begun.worker_setup.run.session else None
    if found.is_finished:
        session.seal_run(begun.storage, begun.worker_setup.run)
    if choice is None:
        _exit_unmeasured(begun.storage.url, found)
    if as_json:
        print(json.dumps(choice.to_json(), indent=1))
    else:
        _console().print(calibration_table(choice))


@app.command()
def pilot(
    spec: Spec,
    rows: Annotated[int, typer.Option(min=1, help="How many rows, spread over the sources.")] = 50,
    page: Annotated[
        Path | None, typer.Option(help="Where the page goes; without, into the run folder as pilot.html.")
    ] = None,
    gpu_hour_price: Annotated[
        float | None, typer.Option(min=0, help="For the cost; without, the spec's price.")
    ] = None,
    address: Address = None,
    take_over: TakeOver = False,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Make a sample of the run's rows and show what the whole run will be like. The rows made count toward the run."""
    from regen.observe.pilot_page import pilot_page
    from regen.observe.pilot_table import pilot_tables
    from regen.run.commands.pilot import begin_pilot, note_session, read_pilot, rows_left
    from regen.run.start import StartOptions
    from regen.spec import load_spec
    from regen.store.layout import PILOT_PAGE

    if page is not None and not page.absolute().parent.is_dir():
        raise typer.BadParameter(f"--page {page}: {page.absolute().parent} is no folder")
    begun = begin_pilot(load_spec(spec), StartOptions(take_over=take_over), rows, _say)
    if rows_left(begun):
        note_session(begun, _drive(begun, address, verbose, as_json))
    made = read_pilot(begun, gpu_hour_price)
    document = pilot_page(made.view).encode("utf-8")
    if page is None:
        begun.storage.replace(PILOT_PAGE, document)
    else:
        page.write_bytes(document)
    if as_json:
        print(json.dumps(made.to_json(), indent=1))
    else:
        _console().print(pilot_tables(made.view))
    _say(f"the answers, and all of this as a page: {page or f'{begun.storage.url}/{PILOT_PAGE}'}")
    if not made.is_complete:
        _say(f"drained: {made.done:,} of {made.wanted:,} rows are made; the same command makes the rest")
        raise typer.Exit(ExitCode.DRAINED)


@app.command()
def estimate(
    spec: Spec,
    tokens_per_second: Annotated[
        float | None, typer.Option(min=0.001, help="Of all replicas; without, as it was calibrated or measured.")
    ] = None,
    answer_tokens: Annotated[
        float | None, typer.Option(min=1, help="Assume so many an answer, for sources of which no row is made.")
    ] = None,
    gpu_hour_price: Annotated[
        float | None, typer.Option(min=0, help="For the cost; without, the spec's price.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tokens, hours, cost and disk of the run, as ranges, before it has run. Starts no engine and writes nothing."""
    from regen.observe.estimate_table import estimate_tables
    from regen.run.commands.estimate_spec import Assumptions, estimate_spec
    from regen.run.start import StartOptions
    from regen.spec import load_spec

    given = Assumptions(tokens_per_second, answer_tokens, gpu_hour_price)
    made = estimate_spec(load_spec(spec), given, StartOptions().processes)
    if as_json:
        print(json.dumps(made.to_json(), indent=1))
    else:
        _console().print(estimate_tables(made.view()))


@app.command()
def resume(
    run: Run,
    draft: Annotated[str | None, typer.Option(help="Another draft from here on, as its folder or hub name.")] = None,
    method: Annotated[str | None, typer.Option(help="With --draft: its method, if it is another.")] = None,
    num_tokens: Annotated[int | None, typer.Option(help="With --draft: draft tokens a step, if others.")] = None,
    address: Address = None,
    take_over: TakeOver = False,
    accept_drift: AcceptDrift = False,
    allow_rejects: AllowRejects = False,
    as_json: AsJsonLines = False,
    log_format: Logs = None,
    verbose: Verbose = 0,
) -> None:
    """Continue a run from its folder alone. Ctrl-C drains it, a second one stops it."""
    from regen.run.speculation.wanted import NewDraft
    from regen.run.start import StartOptions
    from regen.run.start import resume as begin_again

    if draft is None and (method is not None or num_tokens is not None):
        raise typer.BadParameter("--method and --num-tokens go with --draft")
    options = StartOptions(take_over=take_over, accept_drift=accept_drift)
    new_draft = None if draft is None else NewDraft(draft, method, num_tokens)
    _conduct(lambda: begin_again(run, options, _say, new_draft), address, allow_rejects, as_json, verbose)


@app.command()
def status(
    run: Run,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Until the run ends; with its exit code.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="With --watch: seconds between two looks.")] = 5.0,
) -> None:
    """What is done, who runs it: from the store alone."""
    from regen.run.look import look
    from regen.store.storage import open_storage

    if watch:
        raise typer.Exit(_watch(run, as_json, interval))
    seen = look(open_storage(run))
    if as_json:
        print(json.dumps(seen.to_json()))
    else:
        _print_look(seen)


def _watch(run: str, as_json: bool, interval: float) -> ExitCode:
    from regen.observe.live import display
    from regen.run.commands.watch import no_run_json, watch
    from regen.store.storage import open_storage

    last: Look | None = None
    with display(_console(to_stderr=as_json), _LOG, hears_driver=False) as shown:

        def show(facts: TerminalFacts, seen: Look | None) -> None:
            nonlocal last
            last = seen
            if as_json:
                print(json.dumps(no_run_json(run) if seen is None else seen.to_json()), flush=True)
            else:
                shown(facts)

        code, silent_seconds = watch(open_storage(run), interval, show)
    if last is not None and not as_json and _LOG.format is LogFormat.TEXT:
        _print_look(last)
    if silent_seconds:
        _say(f"no heartbeat for {silent_seconds:.0f} s; to go on: regen resume {run}")
    return code


@app.command()
def verify(
    run: Run,
    as_json: AsJson = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Take damaged journal files out of the count; seal damaged shards again.")
    ] = False,
) -> None:
    """Check every count, id and digest offline; exit 1 with what is wrong."""
    from regen.run.commands.check import check
    from regen.store.storage import open_storage

    if repair:
        raise typer.Exit(_repair(run, as_json))
    found = check(open_storage(run))
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        for finding in found.findings:
            print(f"{finding.code.value}: {finding.where}: {finding.message}")
        print(found.summary())
    if not found.is_right:
        raise typer.Exit(ExitCode.FAILED)


def _repair(run: str, as_json: bool) -> ExitCode:
    from regen.run.commands.repair import repair
    from regen.store.storage import open_storage

    done = repair(open_storage(run))
    if as_json:
        print(json.dumps(done.to_json(), indent=1))
    else:
        for line in done.lines(run):
            print(line)
    return done.exit_code


@app.command()
def retry(
    run: Run,
    status: Annotated[list[Status], typer.Option("--status", help="Rows of this outcome; may be given again.")],
    reason: Annotated[list[str] | None, typer.Option("--reason", help="Only rows with this reason.")] = None,
    source: Annotated[list[str] | None, typer.Option("--source", help="Only rows of this source.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Another cap, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Another temperature.")] = None,
) -> None:
    """Open finished rows again; the next `regen resume` makes them. Until then, and if it fails, the old rows count."""
    from regen.run.commands.retry import retry as reopen
    from regen.store.choosing import Wanted
    from regen.store.storage import open_storage

    wanted = Wanted(frozenset(status), frozenset(reason or ()), frozenset(source or ()))
    given = {"max_tokens": max_tokens, "temperature": temperature}
    opened = reopen(open_storage(run), wanted, {name: value for name, value in given.items() if value is not None})
    if opened.round is None:
        print("no row is as asked for; nothing was changed")
    else:
        print(f"{opened.rows:,} rows opened again (round {opened.round}); make them with: regen resume {run}")


@app.command()
def clean(
    run: Run,
    journal: Annotated[
        bool, typer.Option("--journal", help="Verify it, then delete its journal: it is closed for good.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what is nobody's: abandoned temporaries, plan parts that no plan names, shards of ranges that are none."""
    from regen.run.commands.clean import clean as clean_run
    from regen.store.storage import open_storage

    done = clean_run(open_storage(run), journal=journal, is_dry_run=dry_run, say=_say)
    if as_json:
        print(json.dumps(done.to_json(), indent=1))
    else:
        print("\n".join(done.lines()))


@app.command()
def extend(spec: Spec, as_json: AsJson = False) -> None:
    """Add to the run of this spec the rows that its sources have gained; the next `regen resume` makes them."""
    from regen.run.commands.extend import extend as extend_run
    from regen.run.start import StartOptions
    from regen.spec import load_spec

    made = extend_run(load_spec(spec), StartOptions(), _say)
    if as_json:
        print(json.dumps(made.to_json(), indent=1))
    else:
        print("\n".join(made.lines()))


@app.command()
def seal(run: Run) -> None:
    """Write the shards whose rows are all committed, also in the middle of a run."""
    from regen.run.session import seal_complete
    from regen.store.storage import open_storage

    shards = seal_complete(open_storage(run))
    print(f"{len(shards)} shards sealed, {sum(shard.rows for shard in shards):,} rows")


@app.command()
def report(
    run: Run,
    html: Annotated[Path | None, typer.Option("--html", help="Write the page here, and nothing into the run.")] = None,
    no_samples: Annotated[bool, typer.Option("--no-samples", help="No prompts and answers on the page.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write report.html and README.md of the run, also while it runs; print how the draft was accepted."""
    from regen.observe.acceptance_tables import report_tables
    from regen.run.commands.report import report as make_report
    from regen.run.page.report import write_page_to, write_pages
    from regen.store.storage import open_storage

    storage = open_storage(run)
    if html is None:
        write_pages(storage, _say, not no_samples)
    else:
        write_page_to(storage, html, not no_samples)
    made = make_report(storage)
    if as_json:
        print(json.dumps(made.to_json(), indent=1))
    else:
        _console().print(report_tables(made))


@app.command()
def evaluate(
    run: Run,
    draft: Annotated[str, typer.Option(help="The head: a folder or a hub name.")],
    method: Annotated[str, typer.Option(help="How it is run.")] = "eagle3",
    num_tokens: Annotated[int | None, typer.Option(help="Draft tokens per step; by default the run's own.")] = None,
    layer_convention: Annotated[str | None, typer.Option(help="As in a spec: input or output.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each source.")] = 64,
    as_json: AsJson = False,
    verbose: Verbose = 0,
) -> None:
    """Try another head on rows of a run, beside what was recorded; exit 3 when it is refused or dead."""
    from regen.observe.acceptance_tables import evaluation_table
    from regen.observe.json_lines import engine_output_on_stderr
    from regen.run.commands.evaluate import evaluate as make_evaluation
    from regen.store.storage import open_storage

    asked = {"method": method, "num_tokens": num_tokens, "layer_convention": layer_convention}
    options = {name: value for name, value in asked.items() if value is not None}
    with engine_output_on_stderr(verbose):
        made = make_evaluation(open_storage(run), draft, options, rows, _say)
    if as_json:
        print(json.dumps(made.to_json(), indent=1))
    else:
        _console().print(evaluation_table(made.title, made.sources, made.total))
    for line in made.remarks():
        _say(line)
    if made.exit_code is not ExitCode.OK:
        raise typer.Exit(made.exit_code)


@app.command()
def export(
    run: Run,
    to: Annotated[
        str, typer.Option("--to", help="speculators, specforge, specforge-ids, automodel, messages or sharegpt.")
    ],
    out: Annotated[str, typer.Option("--out", help="The folder to make.")],
    include: Annotated[str, typer.Option(help="Further statuses, by commas: truncated, degenerate, partial.")] = "",
    split: Annotated[str, typer.Option(help="train, eval or all.")] = "train",
    rows_per_file: Annotated[int, typer.Option(help="Records in each file.")] = 10_000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an export that is there.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Export what is done of an unfinished run.")] = False,
    allow_extra_loss: Annotated[
        bool, typer.Option("--allow-extra-loss", help="Although the trainer also trains on template tokens.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a finished run in a trainer's format, with a dataset card; exit 1 when nothing true can be written."""
    from regen.run.commands.export import ExportOptions, statuses_named
    from regen.run.commands.export import export as export_run

    options = ExportOptions(
        to, out, statuses_named(include), split, rows_per_file, overwrite, partial, allow_extra_loss
    )
    done = export_run(run, options, _say)
    if as_json:
        print(json.dumps(done.to_json(), indent=1))
    else:
        print(done.summary())


@app.command()
def submit(
    spec: Spec,
    address: Annotated[str | None, typer.Option(help="The cluster's job server, http://HOST:8265.")] = None,
    take_over: TakeOver = False,
    accept_drift: AcceptDrift = False,
) -> None:
    """Run the spec as a Ray job, on a cluster where regen is installed."""
    from regen.run.cluster import submit as submit_job
    from regen.spec import load_spec

    arguments = ["--allow-rejects"]
    arguments += ["--take-over"] if take_over else []
    arguments += ["--accept-drift"] if accept_drift else []
    job = submit_job(load_spec(spec), address, arguments)
    print(f"submitted as {job}\n  ray job logs {job} --follow\n  ray job stop {job}    drains, and can be continued")


def _conduct(
    make: Callable[[], Begun], address: str | None, allow_rejects: bool, as_json: bool, verbosity: int
) -> None:
    """From nothing to the run's end, told to a person, and with `as_json` to a machine."""
    from regen.observe.json_lines import for_machines
    from regen.observe.live import display
    from regen.observe.tables import plan_line, plan_table, totals_line, totals_table
    from regen.run.command import drive, ending, settle
    from regen.run.page.report import leave_pages
    from regen.run.session import standing

    with for_machines(as_json) as lines:
        begun = make()
        session, console = begun.worker_setup.run.session, _console(to_stderr=as_json)
        _LOG.session = session
        if lines is not None:
            lines.session = session
        if begun.is_new:
            planned = (begun.plan_summary.sources, begun.plan_summary.digest)
            _show(console, plan_table(*planned), plan_line(*planned))
        if not standing(begun.storage).is_finished:
            drive(begun, address, verbosity, display(console, _LOG, lines), _LOG)
        found = settle(begun, _say)
        _show(console, totals_table(found.planned, found.totals), totals_line(found.planned, found.totals))
        leave_pages(begun.storage, _say)
        end = ending(begun.storage.url, found, allow_rejects)
        for told in end.told:
            _say(told)
        if lines is not None:
            lines.end(end.outcome, end.exit_code)
        if end.exit_code is not ExitCode.OK:
            raise typer.Exit(end.exit_code)


def _drive(begun: Begun, address: str | None, verbosity: int, as_json: bool) -> CoordinatorStatus:
    """One session for its result, which is what goes to stdout; the last status."""
    from regen.observe.json_lines import output_on_stderr
    from regen.observe.live import display
    from regen.run.command import drive

    with output_on_stderr() if as_json else nullcontext():
        return drive(begun, address, verbosity, display(_console(to_stderr=as_json), _LOG), _LOG)


def _exit_unmeasured(url: str, found: Standing) -> NoReturn:
    if found.is_finished:
        _say(f"calibration: the run in {url} is finished, so nothing is left to measure with; nothing was chosen")
        raise typer.Exit(ExitCode.FAILED)
    _say("calibration was stopped before it came to an end, and nothing was chosen; the same command goes on")
    raise typer.Exit(ExitCode.DRAINED)


def _print_look(seen: Look) -> None:
    from regen.observe.tables import facts_table, totals_table
    from regen.observe.terminal import one_line

    console = _console()
    console.print(facts_table("Run", seen.facts()))
    for decision in seen.decisions:
        console.print(one_line(f"speculation: {decision}"), highlight=False, soft_wrap=True, markup=False)
    if seen.planned is not None:
        console.print(totals_table(seen.planned, seen.totals))


def _print_report(report: Report | SpecReport | ServersReport) -> None:
    from regen.observe.tables import acceptance_table, facts_table, findings_table

    console = _console()
    console.print(facts_table("Examined", report.facts()))
    if rows := report.counts():
        console.print(acceptance_table("Raw counts", rows))
    if findings := report.all_findings():
        console.print(findings_table(findings, "Findings"))
    console.print(facts_table("Verdict", report.conclusion()))


def _shares(text: str | None) -> tuple[float, ...] | None:
    """Shares by position, in 0..1."""
    if text is None:
        return None
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise typer.BadParameter(f"--expected {text!r}: shares between 0 and 1 are wanted, like 0.53,0.21,0.07")
    return shares


def _show(console: Console, table: RenderableType, line: str) -> None:
    """The table for people, the line where everything is a log line."""
    if _LOG.format is LogFormat.JSON:
        _LOG(line)
    else:
        console.print(table)


def _say(text: str) -> None:
    _LOG(text)


def _console(to_stderr: bool = False) -> Console:
    from regen.observe.live import TirelessConsole

    return TirelessConsole(stderr=to_stderr)
