"""Options that say how language models are asked, shared by `evaluate` and `agent`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exactlyonce_env.cli.options import split_list, split_numbers
from exactlyonce_env.cli.output import JsonTarget, human_console, write_json
from exactlyonce_env.errors import UserError, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from evaluation.llm.models import ModelOptions
    from policies.llm.policy import LLMPolicy

PANEL = "Options of language models"


def _model(
    flag: str, metavar: str | None, text: str, *, more: Sequence[str] = (), **rest: Any
) -> Any:
    return typer.Option(flag, *more, metavar=metavar, help=text, rich_help_panel=PANEL, **rest)


BaseUrl = Annotated[
    str | None,
    _model("--base-url", "URL", "OpenAI-compatible endpoint; default OPENAI_BASE_URL."),
]
Concurrency = Annotated[
    int | None, _model("--concurrency", "N", "Episodes of a model at the same time [8].")
]
Repeats = Annotated[int | None, _model("--repeats", "K", "How often each world is played [1].")]
PromptNames = Annotated[
    str | None,
    _model(
        "--prompt", "A,B", "vanilla, aware or both [vanilla]; also --prompts.", more=("--prompts",)
    ),
]
Menu = Annotated[str | None, _model("--menu", "A,B", "Menu order: given, reversed [given].")]
Labels = Annotated[
    str | None, _model("--labels", "A,B", "Menu with explanations: on, off or both [on].")
]
Belief = Annotated[
    bool | None, _model("--belief", None, "Ask what the model believes, too.", is_flag=True)
]
Scoring = Annotated[
    str | None,
    _model(
        "--scoring",
        "HOW",
        "sampled: the answer that it writes; likelihood: the action that it finds likeliest "
        "[sampled; of llm:local likelihood].",
    ),
]
Answers = Annotated[
    str | None,
    _model("--answers", "HOW", "schema, tools, text; auto tries if schemas are kept [auto]."),
]
Temperature = Annotated[
    float | None, _model("--temperature", "T", "Default: the provider's own.", min=0.0)
]
AnswerTokens = Annotated[int | None, _model("--answer-tokens", "N", "Longest answer [512].", min=1)]
Timeout = Annotated[
    float | None, _model("--timeout", "S", "How long one answer may take [120].", min=0.001)
]
Retries = Annotated[
    int | None, _model("--retries", "N", "Further tries where the provider fails [6].", min=0)
]
Sockets = Annotated[
    int | None, _model("--sockets", "N", "Requests in flight at the same time [64].", min=1)
]
Price = Annotated[
    str | None, _model("--price", "IN,OUT", "Dollars per million tokens read and written.")
]
MaxUsd = Annotated[float | None, _model("--max-usd", "X", "Most that the run may cost.", min=0.0)]
MaxTokens = Annotated[
    int | None, _model("--max-tokens", "N", "Most tokens that the run may use.", min=0)
]

FACTORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "--prompt": ("condition", {"vanilla": "vanilla", "aware": "aware"}),
    "--menu": ("order", {"given": "given", "reversed": "reversed"}),
    "--labels": ("labels", {"on": True, "off": False}),
    "--scoring": ("scoring", {"sampled": "sampled", "likelihood": "likelihood"}),
}
"""Options that are factors of the prompt: field, and its values by word."""

SETTINGS: Mapping[str, str] = {
    "--base-url": "base_url",
    "--answers": "answers",
    "--temperature": "temperature",
    "--answer-tokens": "max_tokens",
    "--timeout": "timeout_s",
    "--sockets": "sockets",
}
"""Options that say how a model is asked, by field of `policies.llm.asking.Settings`."""


def model_options(asked: Mapping[str, Any]) -> ModelOptions:
    """How models are run.

    Raises
    ------
    UserError
        For a value out of range.
    """
    from evaluation.llm.calling import Limits, Prices
    from evaluation.llm.models import ModelOptions
    from policies.llm.endpoint import Patience

    fields: dict[str, Any] = {
        "limits": Limits(asked.get("--max-usd"), asked.get("--max-tokens")),
        "prices": Prices(*_prices(asked.get("--price"))),
    }
    if asked.get("--retries") is not None:
        fields["patience"] = Patience(retries=asked["--retries"])
    for option in ("--repeats", "--concurrency"):
        if asked.get(option) is not None:
            fields[option.removeprefix("--")] = asked[option]
    return ModelOptions(**fields)


def _prices(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    prices = split_numbers(text, "--price", "dollars")
    if len(prices) != 2 or min(prices) < 0.0:
        raise UserError(f"--price {text!r} is not IN,OUT: dollars per million tokens, such as 1,4")
    return tuple(prices)


def given_settings(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Settings` that the options name."""
    return {
        field: asked[option] for option, field in SETTINGS.items() if asked.get(option) is not None
    }


def with_variants(specs: Sequence[str], asked: Mapping[str, Any]) -> list[str | LLMPolicy]:
    """The policies, each language model once for each variant that the options name.

    Raises
    ------
    UserError
        For an unknown word, and for options of models where no model is among the policies.
    """
    models = [spec for spec in specs if spec.strip().startswith("llm:")]
    if not models:
        stray = next((option for option, value in asked.items() if value is not None), None)
        if stray is not None:
            raise UserError(f"{stray} is an option of language models; name one, llm:MODEL")
        return list(specs)
    from policies.llm.address import checked_address
    from policies.llm.asking import Settings
    from policies.llm.policy import llm

    url = asked.get("--base-url")
    if url is not None:
        checked_address(url, "--base-url")
        # Policies that are made elsewhere, in other processes too, ask the same endpoint.
        os.environ["OPENAI_BASE_URL"] = url
    settings = Settings(
        **{"base_url": os.environ.get("OPENAI_BASE_URL") or None, **given_settings(asked)}
    )
    chosen: list[str | LLMPolicy] = []
    for spec in specs:
        if spec not in models:
            chosen.append(spec)
            continue
        name, _, argument = (part.strip() for part in spec.partition(":"))
        policy = llm(name, argument or None)
        _refuse_second_naming(spec, policy, asked)
        chosen += [policy.changed(settings, **factors) for factors in _factors(asked)]
    asked_models = [one for one in chosen if not isinstance(one, str)]
    if asked.get("--answers") and all(m.variant.scoring == "likelihood" for m in asked_models):
        raise UserError(
            "--answers says how a model writes its answer: --scoring likelihood has none"
        )
    return chosen


def _refuse_second_naming(spec: str, policy: LLMPolicy, asked: Mapping[str, Any]) -> None:
    """Refuse a factor that both the spec and an option name."""
    from policies.llm.policy import default_variant

    usual = default_variant(policy.model)
    options = [(option, field) for option, (field, _) in FACTORS.items() if asked.get(option)]
    if asked.get("--belief"):
        options.append(("--belief", "belief"))
    for option, field in options:
        if getattr(policy.variant, field) != getattr(usual, field):
            raise UserError(f"{spec} names what {option} names too; leave one of them out")


def _factors(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the factors that the options name."""
    named: list[list[tuple[str, Any]]] = []
    for option, (field, values) in FACTORS.items():
        text = asked.get(option)
        if text is None:
            continue
        words = split_list(text, option)
        for word in words:
            if word not in values:
                raise unknown(option, word, tuple(values))
        named.append([(field, values[word]) for word in words])
    if asked.get("--belief"):
        named.append([("belief", True)])
    return [dict(pairs) for pairs in product(*named)]


FACTOR_NAMES = ("wrapper", "contract", "docs", "instruction", "operator", "fault")
"""What tells rows of one model apart, where rows have it."""


def print_accounts(
    console: Console,
    rows: Sequence[Mapping[str, Any]],
    spent: Mapping[str, Mapping[str, Mapping[str, Any]]],
    kept: bool,
) -> None:
    """A row for each language model: what was planned, what came back, and what it cost.

    Parameters
    ----------
    console
        Where it is printed.
    rows
        Rows of a result; only those of models count.
    spent
        By policy what `evaluation.llm.spending.spending` says of all its calls.
    kept
        Whether there is a folder in which a later command goes on.
    """
    from rich.markup import escape
    from rich.table import Table

    models = [row for row in rows if "planned" in row]
    if not models:
        return
    table = Table(title="Language models", title_justify="left", caption_justify="left")
    table.caption = (
        "invalid: answers that were not what was asked for; provider: requests without an answer. "
        "Missing episodes are in no figure above"
    )
    table.add_column("policy", no_wrap=True)
    factors = [n for n in FACTOR_NAMES if len({row[n] for row in models if n in row}) > 1]
    for name in factors:
        table.add_column(name, no_wrap=True)
    headings = ("planned", "returned", "missing", "invalid", "provider", "calls", "tokens", "usd")
    for heading in headings:
        table.add_column(heading, justify="right")
    if any(row["repeats"] > 1 for row in models):
        for heading in ("pass^k", "kappa"):
            table.add_column(heading, justify="right")
    for row in models:
        cells = [escape(str(row[name])) for name in ("policy", *factors)]
        names = ("planned", "returned", "missing", "invalid", "provider_errors", "model_calls")
        cells += [f"{row[name]:,}" for name in (*names, "tokens")]
        cells.append(f"{row['usd']:.2f}" if row["usd"] else "")
        if row["repeats"] > 1:
            cells += [_maybe(row.get("pass_hat_k")), _maybe(row.get("kappa"))]
        table.add_row(*cells)
    console.print(table)
    for row in models:
        for reason, number in row["missing_reasons"].items():
            console.print(f"missing, {row['policy']}: {number} x {reason}", markup=False)
    for policy, stopped in {r["policy"]: r["stopped"] for r in models if "stopped" in r}.items():
        goes_on = "the same command with a higher one goes on"
        if not kept:
            goes_on = "nothing is kept without --out RUN, so that a higher one begins anew"
        console.print(f"the budget {stopped} ended {policy}; {goes_on}", markup=False)
    for policy, uses in spent.items():
        _print_spent(console, policy, uses)


USES = {
    "episodes": "finished episodes",
    "twins": "their twins without a fault",
    "unfinished": "unfinished episodes",
    "trials": "trials of JSON schemas",
}


def _print_spent(console: Console, policy: str, uses: Mapping[str, Mapping[str, Any]]) -> None:
    """Every call of a model, by what it was for."""
    whole = uses["all"]
    parts = [f"{w} {uses[use]['n_calls']:,}" for use, w in USES.items() if uses[use]["n_calls"]]
    if not parts:
        return
    usd = f", ${whole['usd']:.2f}" if whole["usd"] else ""
    console.print(
        f"all calls of {policy}: {whole['n_calls']:,}, "
        f"{whole['tokens_in'] + whole['tokens_out']:,} tokens{usd} ({', '.join(parts)})",
        markup=False,
        soft_wrap=True,
    )


def print_endpoints(console: Console, addresses: Collection[str]) -> None:
    """A note where answers of several endpoints stand side by side."""
    if len(addresses) > 1:
        console.print(
            f"note: the answers came from {len(addresses)} endpoints: {', '.join(addresses)}",
            markup=False,
            soft_wrap=True,
        )


def print_beliefs(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """What models believed, and what every policy decided, beside the exact posterior."""
    from rich.markup import escape
    from rich.table import Table

    stated = [row for row in rows if row["belief"] is not None]
    if stated:
        table = Table(
            title="Stated beliefs against the exact posterior (Brier: 0 best, 2 worst)",
            title_justify="left",
        )
        table.add_column("policy", no_wrap=True)
        for heading in ("decisions", "Brier"):
            table.add_column(heading, justify="right")
        states = tuple(stated[0]["belief"]["mean"])
        for state in states:
            table.add_column(f"{state.replace('_', ' ')}: stated, exact", justify="right")
        for row in stated:
            found = row["belief"]
            means = (found["mean"][state] for state in states)
            table.add_row(
                escape(row["policy"]),
                f"{found['n']:,}",
                f"{found['brier']:.3f}",
                *(f"{mean['stated']:.3f}, {mean['exact']:.3f}" for mean in means),
            )
        console.print(table)
    table = Table(
        title="Share of decisions that re-issue, by exact P(absent)",
        title_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    bins = sorted({entry["low"] for row in rows for entry in row["decisions"]})
    for low in bins:
        table.add_column(f"{low:.1f}+", justify="right")
    for row in rows:
        by_bin = {entry["low"]: entry for entry in row["decisions"]}
        if by_bin:
            cells = (f"{by_bin[b]['reissue']:.2f}" if b in by_bin else "" for b in bins)
            table.add_row(escape(row["policy"]), *cells)
    console.print(table)


def _maybe(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def prompts(
    variant: Annotated[
        str | None,
        typer.Argument(
            metavar="VARIANT", help="Words such as aware+reversed+nolabels+belief; default none."
        ),
    ] = None,
    json_target: JsonTarget = None,
) -> None:
    """Print what language models are told, word for word.

    The fixed text of the variant, the message with the first view of a late-tail world, the JSON
    schema of an answer, the rule for invalid answers, and the words that make variants. Agents of
    the sandbox: their system texts and nudges.
    """
    from evaluation.llm.agent_prompts import CONDITIONS, REFLECT, system_text_of
    from exactlyonce_env.episode import Walk
    from exactlyonce_env.presets import load_plan
    from policies.llm.asking import Question
    from policies.llm.prompts import (
        NUDGES,
        PROMPT_VERSION,
        WORDS,
        answer_schema,
        split_spec,
        system_text,
        view_message,
    )

    rest, chosen = split_spec(f"model+{variant}" if variant else "model")
    if rest != "model":
        raise unknown("variant", rest.removeprefix("model+").split("+")[-1], tuple(WORDS))
    view = Walk(load_plan("late-tail"), 0, 0).view
    words = Question(view.seen, view.contract, chosen, "text").words
    rule = (
        f"An invalid answer is counted and asked anew, with what was wrong, up to {NUDGES} times "
        "an episode; one more ends the episode as finish_uncertain."
    )
    result = {
        "version": PROMPT_VERSION,
        "variant": list(chosen.words),
        "system": system_text(chosen),
        "user": view_message(view.seen, view.contract, words),
        "schema": answer_schema(words, chosen),
        "rule": rule,
        "words": {word: field for word, (field, _) in WORDS.items()},
        "agent": {
            "system": {name: system_text_of(name) for name in CONDITIONS},
            "reflect": REFLECT,
        },
    }
    console = human_console(json_target)
    if not console.quiet:
        import json

        for title, text in (
            (f"system, version {PROMPT_VERSION}, {'+'.join(chosen.words) or 'default'}", "system"),
            ("user, the first view of late-tail's world 0", "user"),
        ):
            console.print(f"--- {title} ---", markup=False)
            console.print(result[text], markup=False, soft_wrap=True)
        console.print("--- schema of an answer ---", markup=False)
        console.print(json.dumps(result["schema"]), markup=False, soft_wrap=True)
        console.print(rule, soft_wrap=True)
        console.print("variants: " + ", ".join(WORDS), soft_wrap=True)
        for name in CONDITIONS:
            console.print(f"--- system of an agent, {name} ---", markup=False)
            console.print(system_text_of(name), markup=False, soft_wrap=True)
        console.print("--- after a tool error, reflect ---", markup=False)
        console.print(REFLECT, markup=False, soft_wrap=True)
    if json_target is not None:
        write_json(result, json_target)
