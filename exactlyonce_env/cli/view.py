"""`exactlyonce view`: the transcripts of a run in the browser."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from exactlyonce_env.cli.output import JsonTarget, human_console, write_json


def view(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder that `evaluate --out` or `agent` wrote.")
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: a free one.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    json_target: JsonTarget = None,
) -> None:
    """Look at the transcripts of a run: each conversation beside what really happened.

    The page is served on this machine alone, needs no network, and only reads; a run that goes on
    may be watched. Episodes are filtered by policy, fault and outcome, and searched. Ctrl-C ends
    it.
    """
    from evaluation.viewer.data import Transcripts
    from evaluation.viewer.server import Viewer

    console = human_console(json_target)
    with Transcripts(run) as transcripts, Viewer(transcripts, host, port) as viewer:
        found = {"url": viewer.url, "run": str(run), "episodes": transcripts.state()["total"]}
        console.print(
            f"{found['episodes']:,} episodes at", viewer.url, markup=False, soft_wrap=True
        )
        if not viewer.local:
            console.print("note: whoever reaches this address can read all transcripts")
        console.print("Ctrl-C ends it")
        if json_target is not None:
            write_json(found, json_target, indent=None)
        sys.stdout.flush()
        if browser:
            threading.Thread(target=_open, args=(viewer.url,), daemon=True).start()
        try:
            viewer.serve_forever()
        except KeyboardInterrupt:
            console.print("stopped")


def _open(url: str) -> None:
    """Open the address in a browser, where there is a screen for one."""
    import webbrowser

    screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if screen or sys.platform == "darwin":
        webbrowser.open(url)
