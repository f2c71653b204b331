"""`exactlyonce serve`, `grade` and `play`: agents in the sandbox, from outside and by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.options import named_folder
from exactlyonce_env.cli.output import JsonTarget, human_console, typed_command, write_json
from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from types import ModuleType

    from rich.console import Console

    from exactlyonce_env.sandbox.hosting import Caller, Host
    from exactlyonce_env.sandbox.session import Session

Task = Annotated[str | None, typer.Option("--task", metavar="NAME", help="One of the tasks.")]
Instance = Annotated[int, typer.Option("--instance", min=0, help="Seeded instance of the task.")]
Write = Annotated[
    str | None,
    typer.Option(
        "--write", metavar="NAME|K", help="Focal write, by name or number; without it the first."
    ),
]
Fault = Annotated[
    str, typer.Option("--fault", metavar="MODE", help="What the focal write meets; ok: nothing.")
]
Contract = Annotated[str, typer.Option("--contract", help="native or keys-everywhere.")]
Docs = Annotated[str, typer.Option("--docs", help="default, no-consistency or explicit.")]
Instruction = Annotated[str, typer.Option("--instruction", help="default or no-cue.")]
Operator = Annotated[str, typer.Option("--operator", help="answers or silent.")]
WrapperName = Annotated[
    str, typer.Option("--wrapper", metavar="NAME", help="What runs around the tools, or none.")
]
Traits = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help="A trait of the services; may be repeated."
    ),
]
LogFolder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Each episode that ends adds a line to DIR/episodes.jsonl.",
        parser=named_folder,
    ),
]


def serve(
    door: Annotated[str, typer.Argument(metavar="mcp|http|model", help="What to serve.")],
    task: Task = None,
    instance: Instance = 0,
    write: Write = None,
    fault: Fault = "ok",
    contract: Contract = "native",
    docs: Docs = "default",
    instruction: Instruction = "default",
    operator: Operator = "answers",
    wrapper: WrapperName = "none",
    option: Traits = None,
    out: LogFolder = None,
    transport: Annotated[
        str, typer.Option("--transport", metavar="stdio|http", help="How MCP is spoken.")
    ] = "stdio",
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: a free one.")
    ] = 8765,
    real_time: Annotated[
        float,
        typer.Option(
            "--real-time",
            metavar="FACTOR",
            help="Wall-clock seconds of one virtual second; 0: answer at once.",
        ),
    ] = 0.0,
    idle: Annotated[
        float,
        typer.Option("--idle", metavar="S", help="A client silent for so long has gone away."),
    ] = 1800.0,
    json_target: JsonTarget = None,
) -> None:
    """Serve sandbox episodes to agents in other processes.

    mcp: the task text is the server's instructions. Over stdio the process is one episode. Over
    http, POST /new opens an episode of the task and answers with its own URL.

    http: POST /episodes {"task": NAME, ...} opens an episode and answers with its URL; the options
    given here are the defaults. GET URL shows instructions and tools, POST URL/calls {"tool": NAME,
    "arguments": {}} calls one, POST URL/turns {"text": TEXT} is a turn without a call, DELETE URL
    leaves.

    model: the small language model of llm:local by OpenAI's protocol, for anything that takes a
    --base-url; of the options only --host, --port and --json bear on it.

    What really happened is shown under the admin URL. Both URLs are printed at the start; --json
    writes them as "url", "open_url" and "admin_url".
    """
    _one_of(door, ("mcp", "http", "model"), "protocol")
    _one_of(transport, ("stdio", "http"), "--transport")
    if door == "model":
        _serve_model(host, port, json_target)
        return
    if door == "mcp" and task is None:
        raise UserError("--task is missing; choose from " + ", ".join(_tasks()))
    fields: dict[str, Any] = {
        "instance": instance,
        "write": write,
        "fault": fault,
        "contract": contract,
        "docs": docs,
        "instruction": instruction,
        "operator": operator,
        "wrapper": wrapper,
        "options": _traits(option),
    }
    if task is not None:
        fields["task"] = task
    if door == "mcp" and transport == "stdio":
        if json_target is not None:
            raise UserError("--json tells where a server listens; MCP over stdio listens nowhere")
        _serve_stdio(fields, out, real_time)
    else:
        _serve_sockets(door == "mcp", fields, out, host, port, real_time, idle, json_target)


def grade(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of `serve … --out DIR`.")],
    json_target: JsonTarget = None,
) -> None:
    """Print the measures of the episodes that ended in a folder."""
    from exactlyonce_env.sandbox.log import read_episodes

    found = read_episodes(folder)
    console = human_console(json_target)
    if not console.quiet:
        from exactlyonce_env.cli.sandbox_tables import episodes_table, episodes_words

        console.print(episodes_table(found))
        console.print(episodes_words(found), markup=False, soft_wrap=True)
    if json_target is not None:
        write_json({"episodes": found.rows, "incomplete_last_line": found.torn}, json_target)


def play(
    world: Annotated[str, typer.Argument(metavar="sandbox", help="What to play.")],
    task: Task = None,
    instance: Instance = 0,
    write: Write = None,
    fault: Fault = "ok",
    contract: Contract = "native",
    docs: Docs = "default",
    instruction: Instruction = "default",
    operator: Operator = "answers",
    wrapper: WrapperName = "none",
    option: Traits = None,
    json_target: JsonTarget = None,
) -> None:
    """Play the agent in the terminal, and see afterwards what really happened.

    Type a tool's name and its arguments, as JSON or as KEY=VALUE words. `tools` lists the tools,
    `help` explains, `quit` or the end of the input walks away.
    """
    from exactlyonce_env.sandbox.hosting import Hosted
    from exactlyonce_env.sandbox.playing import timeline
    from exactlyonce_env.sandbox.session import Session

    _one_of(world, ("sandbox",), "world")
    if task is None:
        raise UserError("--task is missing; choose from " + ", ".join(_tasks()))
    session = Session(
        task,
        instance=instance,
        write=write,
        fault=fault,
        contract=contract,
        docs=docs,
        instruction=instruction,
        operator=operator,
        options=_traits(option),
    )
    caller = wrap_session(session, wrapper)
    console = human_console(json_target)
    _play(console, session, caller)
    record = Hosted("play", session, wrapper=wrapper).close()
    assert record is not None
    record["timeline"] = timeline(session)
    if not console.quiet:
        from exactlyonce_env.cli.sandbox_tables import grade_table, timeline_table

        console.print(timeline_table(record["timeline"]), grade_table(record), sep="\n")
    if json_target is not None:
        write_json(record, json_target)


# --- serving --------------------------------------------------------------------------------------


def _serve_stdio(fields: dict[str, Any], out: Path | None, real_time: float) -> None:
    import asyncio

    from exactlyonce_env.sandbox.hosting import make_variant

    mcp_server = _mcp_server()
    _check(fields, real_time)
    _warm_up()
    holder = _holder(out, real_time=real_time, single=True)
    asyncio.run(mcp_server.serve_stdio(holder, holder.open(make_variant(fields))))


def _serve_sockets(
    with_mcp: bool,
    fields: dict[str, Any],
    out: Path | None,
    address: str,
    port: int,
    real_time: float,
    idle: float,
    json_target: str | None,
) -> None:
    import asyncio

    from exactlyonce_env.sandbox.service import Service
    from exactlyonce_env.sandbox.serving import bind, make_server, serve, url_of

    mcp_server = _mcp_server() if with_mcp else None
    _check(fields, real_time, idle)
    with bind(address, port) as listener:
        _warm_up()
        holder = _holder(out, real_time=real_time, idle_s=idle)
        door = mcp_server.McpDoor(holder, local=address in LOOPBACK) if mcp_server else None
        service = Service(holder, fields, door)
        server = make_server(service, holder)
        url = url_of(listener)
        places = {
            "url": url,
            "open_url": f"{url}/{'new' if door else 'episodes'}",
            "admin_url": f"{url}/admin/{service.token}/episodes",
        }
        console = human_console(json_target)
        for words, name in (
            ("serving on", "url"),
            ("open an episode: POST", "open_url"),
            ("what really happened: GET", "admin_url"),
        ):
            console.print(words, places[name], markup=False, soft_wrap=True)
        if json_target is not None:
            write_json(places, json_target, indent=None)
        sys.stdout.flush()
        try:
            asyncio.run(serve(server, holder, listener, door.open if door else None))
        except KeyboardInterrupt:
            kept = f"unfinished episodes are in {out} as exhausted" if out else "nothing is kept"
            raise KeyboardInterrupt(f"stopped; {kept}") from None


def _serve_model(address: str, port: int, json_target: str | None) -> None:
    """The local model by OpenAI's protocol."""
    import asyncio

    from exactlyonce_env.sandbox.serving import url_of
    from policies.llm.local import local_endpoint
    from policies.llm.local_server import PREFIX, prepare

    listener, server = prepare(local_endpoint(), address, port, "local")
    with listener:
        url = url_of(listener) + PREFIX
        human_console(json_target).print("--base-url", url, markup=False, soft_wrap=True)
        if json_target is not None:
            write_json({"url": url}, json_target, indent=None)
        sys.stdout.flush()
        asyncio.run(server.serve(sockets=[listener]))


def _mcp_server() -> ModuleType:
    """The module that speaks MCP.

    Raises
    ------
    UserError
        Where the SDK is not installed.
    """
    from importlib import import_module

    from exactlyonce_env.sandbox.serving import INSTALL

    try:
        return import_module("exactlyonce_env.sandbox.mcp_server")
    except ModuleNotFoundError as error:
        if error.name not in ("mcp", "mcp_types"):
            raise
        raise UserError(f"MCP needs the package mcp: {INSTALL}") from None


def _check(fields: dict[str, Any], real_time: float, idle: float = 1.0) -> None:
    """Refuse what is wrong before anything is opened or written."""
    from exactlyonce_env.sandbox.hosting import Host, make_variant

    host = Host(real_time=real_time, idle_s=idle, wrap=wrap_session)
    if "task" in fields:
        host.open(make_variant(fields))


def _holder(out: Path | None, **options: Any) -> Host:
    """What holds the episodes and writes them to the folder."""
    from exactlyonce_env.sandbox.hosting import Host
    from exactlyonce_env.sandbox.log import EpisodeLog

    log = None if out is None else EpisodeLog(out, typed_command())
    return Host(log, wrap=wrap_session, **options)


def _warm_up() -> None:
    """Load what is compiled, so that no client waits for it."""
    from exactlyonce_env.sandbox.log import episode_record
    from exactlyonce_env.sandbox.session import Session

    session = Session("invoice_batch", fault="timeout_post")
    for step in session.task.steps[:2]:
        session.call(step.tool, step.arguments)
    for name in ("billing_list_charges", "escalate_to_human"):
        session.call(name, {"question": "?"} if name == "escalate_to_human" else {})
    episode_record(session)


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def wrap_session(session: Session, spec: str) -> Caller:
    """The session inside the wrapper of that name.

    Raises
    ------
    UserError
        For a name that there is not.
    """
    if spec == "none":
        return session
    from policies.wrappers import wrap

    return wrap(session, spec)


def _one_of(value: str, choices: tuple[str, ...], what: str) -> None:
    if value not in choices:
        raise UserError(f"unknown {what} {value!r}; choose from {', '.join(choices)}")


def _tasks() -> list[str]:
    from exactlyonce_env.sandbox.tasks import TASKS

    return list(TASKS)


def _traits(entries: list[str] | None) -> dict[str, Any]:
    """The traits that ``--option NAME=VALUE`` names."""
    import yaml

    traits = {}
    for entry in entries or ():
        name, equals, text = entry.partition("=")
        if not equals or not name:
            raise UserError(f"--option {entry!r} is not NAME=VALUE")
        try:
            traits[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"--option {entry!r}: the value cannot be read") from None
    return traits


# --- playing --------------------------------------------------------------------------------------

HELP = """\
TOOL {"key": "value"}     call a tool with JSON
TOOL key=value key="…"    call a tool with words; quote values that have spaces
tools                     list the tools
help TOOL                 say what a tool does
quit                      walk away"""


def _play(console: Console, session: Session, caller: Caller) -> None:
    """Take calls from stdin until the episode has ended."""
    from exactlyonce_env.sandbox.playing import parse_call, usage

    tools = {tool.name: tool for tool in session.tools}
    ask = sys.stdin.isatty() and not console.quiet
    if ask:
        import readline  # noqa: F401  (input() keeps a history once it is loaded)
    say = _Printer(console)
    say(session.instructions)
    say("`tools` lists the tools, `help` explains.")
    while not session.ended:
        try:
            line = (input("> ") if ask else _next_line()).strip()
        except EOFError:
            return
        word, _, rest = line.partition(" ")
        if not line:
            continue
        if word in ("quit", "exit"):
            return
        if word == "tools":
            say("\n".join(usage(tool) for tool in tools.values()))
        elif word == "help" and rest.strip() in tools:
            tool = tools[rest.strip()]
            say(f"{tool.description}\n{usage(tool)}")
        elif word == "help":
            say(HELP)
        else:
            try:
                name, arguments = parse_call(line, tools)
            except UserError as error:
                say(str(error))
                continue
            reply = caller.call(name, arguments)
            left = session.max_calls - len(session.calls)
            say(f"{reply.text}\n[{session.now_s:g} s, {left} calls left]")


class _Printer:
    """Prints text as it is, with no markup."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def _next_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
